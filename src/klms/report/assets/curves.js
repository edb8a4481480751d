// Points and curves, with one colour per family of methods.
// A few low points of the first rounds would press all others against the upper edge. The axis therefore begins where
// most of the points do, unless the reader asks for the whole range.
function lowest(figure, points) {
  if (!figure.joined || figure.y.log || points.length < 12) return -Infinity;
  const ys = points.map((point) => point.y).sort((a, b) => a - b);
  const most = ys[Math.floor(ys.length * 0.14)];
  const top = ys[ys.length - 1];
  return top - most < 0.5 * (top - ys[0]) ? most : -Infinity;
}

function drawCurves(figure, width, view) {
  const { hidden } = view;
  const height = Math.round(Math.max(250, Math.min(370, width * 0.62)));
  const visible = figure.series.filter((series) => !hidden.has(series.name));
  const points = visible.flatMap((series) => series.points);
  const xAxis = { ...figure.x, log: view.logX ?? figure.x.log };
  const spread = (point) => (figure.y.log ? 0 : point.deviation || 0);
  view.low = lowest(figure, points);
  const low = view.whole ? -Infinity : view.low;
  const yAxis = low > -Infinity ? { ...figure.y, label: `${figure.y.label}, lower part cut off` } : figure.y;
  const ys = points.filter((point) => point.y >= low)
    .flatMap((point) => [Math.max(point.y - spread(point), low), point.y + spread(point)]);
  const { svg, x, y, left, right, top, bottom } = frame(width, height, points.map((point) => point.x), ys, xAxis, yAxis);
  const clip = `clip-${figure.key.replace(/[^a-z0-9]/g, '-')}`;
  svg.append(s('clipPath', { id: clip }, s('rect', { x: left - 8, y: top - 8, width: right - left + 16, height: bottom - top + 8 })));
  const few = figure.series.every((series) => series.points.length <= 14);
  const targets = [];
  for (const series of figure.series) {
    const off = hidden.has(series.name);
    const group = s('g', {
      class: `series ${colour(series.style)}`,
      'data-series': series.name,
      display: off ? 'none' : null,
      'clip-path': `url(#${clip})`,
    });
    const at = series.points.map((point) => [x(point.x), y(point.y)]);
    if (figure.joined) {
      const low = series.points.map((point) => `${x(point.x).toFixed(1)} ${y(point.y - (point.deviation || 0)).toFixed(1)}`);
      const high = series.points.map((point) => `${x(point.x).toFixed(1)} ${y(point.y + (point.deviation || 0)).toFixed(1)}`);
      if (series.points.some((point) => point.deviation) && !figure.y.log) {
        group.append(s('path', { class: 'band', d: `M${high.join('L')}L${low.reverse().join('L')}Z` }));
      }
      const line = at.map((pair) => pair.map((n) => n.toFixed(1)).join(' ')).join('L');
      group.append(s('path', { class: 'line', d: `M${line}`, 'stroke-dasharray': dash(series.style) }));
    } else {
      for (const point of series.points.filter((one) => one.deviation)) {
        const [px, up, down] = [x(point.x), y(point.y + point.deviation), y(point.y - point.deviation)];
        group.append(s('path', { class: 'error', d: `M${px} ${up}V${down}M${px - 3} ${up}h6M${px - 3} ${down}h6` }));
      }
    }
    if (!figure.joined || few || at.length === 1) {
      for (const [px, py] of at) group.append(marker(series, px, py, figure.joined ? 2.6 : series.paper ? 4 : 5));
    }
    if (!off) {
      series.points.forEach((point, index) => {
        if (at[index][1] > bottom + 1) return;
        const more = point.deviation === null ? '' : ` ± ${shown(point.deviation, 2)}`;
        targets.push({
          x: at[index][0],
          y: at[index][1],
          title: series.name,
          lines: [`${figure.y.label} ${shown(point.y)}${more}`, `${figure.x.label} ${shown(point.x)}`],
        });
      });
    }
    svg.append(group);
  }
  explore(svg, targets);
  return svg;
}

// What the legend lists; all points of the paper share one entry.
function seriesEntries(figure) {
  const entries = figure.series.filter((series) => !series.paper).map((series) => ({ label: series.name, members: [series], shown: series }));
  const paper = figure.series.filter((series) => series.paper);
  if (paper.length) entries.push({ label: 'paper', members: paper, shown: { ...paper[0], style: { ...paper[0].style, hue: 12, shade: 0 } } });
  return entries;
}

// Buttons that hide and show series; pointing at one dims the others.
function curvesLegend(figure, view, plot, redraw) {
  const { hidden } = view;
  const box = h('div', { class: 'legend', role: 'group', 'aria-label': 'Series' });
  const entries = seriesEntries(figure);
  for (const { label, members, shown: series } of entries) {
    const names = members.map((series) => series.name);
    const light = (on) => {
      plot.classList.toggle('dim', on);
      for (const group of plot.querySelectorAll('[data-series]')) {
        group.classList.toggle('lit', on && names.includes(group.dataset.series));
      }
    };
    box.append(h('button', {
      type: 'button',
      'aria-pressed': String(!names.every((name) => hidden.has(name))),
      'data-key': `${figure.key}/${label}`,
      onclick: () => {
        const off = names.every((name) => hidden.has(name));
        names.forEach((name) => (off ? hidden.delete(name) : hidden.add(name)));
        redraw();
      },
      onpointerenter: (event) => event.pointerType === 'mouse' && light(true),
      onpointerleave: () => light(false),
    }, swatch(series, figure.joined), label));
  }
  const tool = (name, label, act) => box.append(h('button', {
    type: 'button',
    class: 'all',
    'data-key': `${figure.key}/tool/${name}`,
    onclick: () => { act(); redraw(); },
  }, label));
  const any = figure.series.some((series) => !hidden.has(series.name));
  box.append(h('span', { class: 'push' }));
  if (view.low > -Infinity) tool('range', view.whole ? 'cut off low values' : 'whole range', () => { view.whole = !view.whole; });
  const log = view.logX ?? figure.x.log;
  tool('axis', log ? 'linear x' : 'log x', () => { view.logX = !log; });
  if (entries.length > 3) {
    tool('all', any ? 'hide all' : 'show all', () => {
      if (any) figure.series.forEach((series) => hidden.add(series.name));
      else hidden.clear();
    });
  }
  return box;
}
