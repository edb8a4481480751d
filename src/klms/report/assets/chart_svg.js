// A chart as SVG elements, for the file that a reader saves: what uPlot has on its canvas, at the same places.
function chartSvg(chart, spec) {
  const ratio = window.devicePixelRatio;
  const [left, top, wide, tall] = ['left', 'top', 'width', 'height'].map((name) => chart.bbox[name] / ratio);
  const [right, bottom] = [left + wide, top + tall];
  const at = placesOf(chart, false);
  const svg = s('svg', { height: chart.height, viewBox: `0 0 ${chart.width} ${chart.height}` });
  const clip = s('clipPath', { id: 'plot' }, s('rect', { x: left - 6, y: top - 6, width: wide + 12, height: tall + 12 }));
  svg.append(clip);
  for (const tick of spec.y.ticks.filter((tick) => at.y(tick) >= top - 1 && at.y(tick) <= bottom + 1)) {
    svg.append(s('line', { class: 'grid', x1: left, x2: right, y1: at.y(tick), y2: at.y(tick) }));
    svg.append(s('text', { x: left - 7, y: at.y(tick) + 4, 'text-anchor': 'end' }, tickText(tick)));
  }
  for (const tick of spec.x.ticks.filter((tick) => at.x(tick) >= left - 1 && at.x(tick) <= right + 1)) {
    svg.append(s('line', { class: 'grid', x1: at.x(tick), x2: at.x(tick), y1: top, y2: bottom }));
    svg.append(s('text', { x: at.x(tick), y: bottom + 16, 'text-anchor': 'middle' }, tickText(tick)));
  }
  svg.append(s('line', { class: 'axis', x1: left, x2: right, y1: bottom, y2: bottom }));
  const [labelX, labelY] = [spec.x, spec.y].map((axis) => axis.label + (axis.log ? ' (log)' : ''));
  svg.append(s('text', { x: (left + right) / 2, y: chart.height - 4, 'text-anchor': 'middle' }, labelX));
  const middle = (top + bottom) / 2;
  svg.append(s('text', { x: 12, y: middle, 'text-anchor': 'middle', transform: `rotate(-90 12 ${middle})` }, labelY));
  for (const one of spec.series) svg.append(seriesSvg(one, spec, at));
  for (const { from, to, name } of marksIn(spec, at, left, right, 1)) {
    if (from > left) svg.append(s('line', { class: 'mark', x1: from, x2: from, y1: top, y2: bottom }));
    if (name) svg.append(s('text', { x: (from + to) / 2, y: top - 6, 'text-anchor': 'middle' }, name));
  }
  return svg;
}

function seriesSvg(one, spec, at) {
  const group = s('g', { class: `series ${colour(one.style)}`, 'clip-path': 'url(#plot)' });
  if (one.stepped) {
    group.append(s('path', { class: 'area', d: areaPath(one, at) }), s('path', { class: 'edge', d: linePath(one, at) }));
    return group;
  }
  if (hasBand(spec, one)) group.append(s('path', { class: 'band', d: bandPath(one, at) }));
  if (one.joined) group.append(s('path', { class: 'line', d: linePath(one, at), 'stroke-dasharray': dash(one.style) }));
  else group.append(s('path', { class: 'error', d: errorPath(one, at) || 'M0 0' }));
  if (one.markers) one.x.forEach((x, index) => group.append(marker(one, at.x(x), at.y(one.y[index]), one.markers)));
  return group;
}
