// Lines, bands, error bars, markers and layers of a chart, for its canvas and for the SVG file.
// Where numbers are on the canvas, or, in CSS pixels, on a drawing of the same size.
function placesOf(chart, canvas) {
  const { left, top } = chart.bbox;
  const ratio = window.devicePixelRatio;
  return {
    x: (value) => chart.valToPos(value, 'x', canvas) + (canvas ? 0 : left / ratio),
    y: (value) => chart.valToPos(value, 'y', canvas) + (canvas ? 0 : top / ratio),
    unit: canvas ? ratio : 1,
  };
}

// The line of a series, and the area under steps.
function linePath(one, at) {
  const places = one.x.map((x, index) => [at.x(x).toFixed(1), at.y(one.y[index]).toFixed(1)]);
  if (one.stepped) return `M${places.map(([x, y], index) => (index ? `H${x}V${y}` : `${x} ${y}`)).join('')}`;
  return `M${places.map((pair) => pair.join(' ')).join('L')}`;
}

const areaPath = (one, at) => `${linePath(one, at)}V${at.y(0)}H${at.x(one.x[0])}Z`;

function pathsOf(one, at) {
  if (!one.joined) return null;
  return { stroke: new Path2D(linePath(one, at)), fill: one.stepped ? new Path2D(areaPath(one, at)) : null };
}

const hasBand = (spec, one) => one.joined && !spec.y.log && one.deviation.some(Boolean);

// One standard deviation around a curve, as a path.
function bandPath(one, at) {
  const edge = (sign) => one.x.map((x, index) => `${at.x(x).toFixed(1)} ${at.y(one.y[index] + sign * (one.deviation[index] || 0)).toFixed(1)}`);
  return `M${edge(1).join('L')}L${edge(-1).reverse().join('L')}Z`;
}

function errorPath(one, at) {
  return one.x.map((x, index) => {
    const deviation = one.deviation[index];
    if (!deviation) return '';
    const [px, up, down] = [at.x(x), at.y(one.y[index] + deviation), at.y(one.y[index] - deviation)];
    const wide = 3 * at.unit;
    return `M${px} ${up}V${down}M${px - wide} ${up}h${2 * wide}M${px - wide} ${down}h${2 * wide}`;
  }).join('');
}

// Bands, error bars and markers, which uPlot does not draw.
function drawExtras(chart, spec, index) {
  const one = spec.series[index];
  if (!one) return;
  const { ctx, bbox } = chart;
  const at = placesOf(chart, true);
  const strength = chart.series[index + 1].alpha ?? 1;
  const air = (one.markers || 0) * at.unit;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left - air, bbox.top - air, bbox.width + 2 * air, bbox.height + 2 * air);
  ctx.clip();
  ctx.setLineDash([]);
  ctx.strokeStyle = ink(colour(one.style));
  ctx.fillStyle = ctx.strokeStyle;
  if (hasBand(spec, one)) {
    ctx.globalAlpha = 0.12 * strength;
    ctx.fill(new Path2D(bandPath(one, at)));
  }
  ctx.globalAlpha = strength;
  ctx.lineWidth = 1.5 * at.unit;
  if (!one.joined) ctx.stroke(new Path2D(errorPath(one, at)));
  if (one.markers) {
    const shape = new Path2D(one.paper ? CROSS : SHAPES[one.style.shape % SHAPES.length]);
    const path = new Path2D();
    const size = one.markers * at.unit;
    one.x.forEach((x, k) => path.addPath(shape, new DOMMatrix([size, 0, 0, size, at.x(x), at.y(one.y[k])])));
    if (one.style.hollow) ctx.fillStyle = ink('card');
    if (!one.paper) ctx.fill(path);
    ctx.stroke(path);
  }
  ctx.restore();
}

// Names and first positions of layers, above the plot.
function drawMarks(chart, spec) {
  const { ctx, bbox } = chart;
  const at = placesOf(chart, true);
  ctx.save();
  ctx.strokeStyle = ink('soft');
  ctx.fillStyle = ink('soft');
  ctx.font = FONT.replace('12', String(12 * at.unit));
  ctx.textAlign = 'center';
  ctx.setLineDash([2 * at.unit, 3 * at.unit]);
  for (const { from, to, name } of marksIn(spec, at, bbox.left, bbox.left + bbox.width, at.unit)) {
    if (from > bbox.left) ctx.stroke(new Path2D(`M${from} ${bbox.top}V${bbox.top + bbox.height}`));
    if (name) ctx.fillText(name, (from + to) / 2, bbox.top - 6 * at.unit);
  }
  ctx.restore();
}

// The marks between two edges, without the names that have no room.
function marksIn(spec, at, left, right, unit) {
  const marks = spec.marks || [];
  const end = spec.series[0].x[spec.series[0].x.length - 1];
  return marks.map(([position, name], index) => {
    const from = Math.max(left, at.x(position));
    const to = Math.min(right, at.x(index + 1 < marks.length ? marks[index + 1][0] : end));
    return { from, to, name: to - from > name.length * 6.6 * unit ? name : '' };
  }).filter(({ from, to }) => from < to);
}
