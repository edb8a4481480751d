// Scales from numbers to pixels, and the ticks along an axis.
function nice(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
}

function logTicks(low, high, count) {
  const from = Math.floor(Math.log10(low));
  const to = Math.ceil(Math.log10(high));
  const factors = Math.log10(high / low) <= 2.2 ? [1, 2, 5] : [1];
  let ticks = [];
  for (let power = from; power <= to; power += 1) {
    for (const factor of factors) ticks.push(Number((factor * 10 ** power).toPrecision(6)));
  }
  ticks = ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  if (ticks.length < 2) return nice(low, high, Math.min(4, count)); // less than a decade: ticks as on a linear axis
  const skip = Math.ceil(ticks.length / count);
  return ticks.filter((_, index) => index % skip === 0);
}

// The range covers `values` with a margin, and starts at zero if `zero` is set.
function scale(values, from, to, { log = false, zero = false, count = 6, air = 0.04, tight = false } = {}) {
  const usable = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  let low = usable.length ? usable.reduce((a, b) => Math.min(a, b)) : log ? 0.1 : 0;
  let high = usable.length ? usable.reduce((a, b) => Math.max(a, b)) : 1;
  const forward = log ? Math.log10 : (value) => value;
  const back = log ? (value) => 10 ** value : (value) => value;
  if (zero && !log) low = Math.min(0, low);
  let [a, b] = [forward(low), forward(high)];
  const margin = (b - a || Math.abs(a) * 0.1 || 1) * air;
  if (!tight) {
    if (!(zero && low === 0)) a -= margin;
    b += margin;
  } else if (a === b) b = a + 1;
  [low, high] = [back(a), back(b)];
  const place = (value) => from + ((forward(log ? Math.max(value, low) : value) - a) / (b - a)) * (to - from);
  place.ticks = log ? logTicks(low, high, count) : nice(low, high, count);
  return place;
}

const tickText = (value) => (Math.abs(value) >= 1e6 ? `${shown(value / 1e6, 3)}M` : shown(value, 6));

// The frame of a plot: grid, ticks and labels of the axes.
function frame(width, height, xValues, yValues, xAxis, yAxis, options = {}) {
  const narrow = width < 420;
  const bottom = height - 38;
  const top = options.top || 10;
  const y = scale(yValues, bottom, top, { log: yAxis.log, count: 6, zero: options.zero });
  const left = Math.max(...y.ticks.map((tick) => tickText(tick).length), 3) * 6.7 + 26;
  const right = width - 12;
  const x = scale(xValues, left, right, { log: xAxis.log, count: narrow ? 5 : 8, tight: options.tight });
  if (xValues.every(Number.isInteger)) x.ticks = x.ticks.filter(Number.isInteger); // there is no round 2.5
  const svg = s('svg', { height, viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: 'img' });
  for (const tick of y.ticks) {
    svg.append(s('line', { class: 'grid', x1: left, x2: right, y1: y(tick), y2: y(tick) }));
    svg.append(s('text', { x: left - 7, y: y(tick) + 4, 'text-anchor': 'end' }, tickText(tick)));
  }
  let free = -Infinity;
  for (const tick of x.ticks) {
    svg.append(s('line', { class: 'grid', x1: x(tick), x2: x(tick), y1: top, y2: bottom }));
    const half = tickText(tick).length * 3.4;
    const at = Math.min(x(tick), width - half - 1);
    if (at - half < free) continue;
    free = at + half + 6;
    svg.append(s('text', { x: at, y: bottom + 16, 'text-anchor': 'middle' }, tickText(tick)));
  }
  svg.append(s('line', { class: 'axis', x1: left, x2: right, y1: bottom, y2: bottom }));
  const logged = (axis) => axis.label + (axis.log ? ' (log)' : '');
  svg.append(s('text', { x: (left + right) / 2, y: height - 4, 'text-anchor': 'middle' }, logged(xAxis)));
  const middle = (top + bottom) / 2;
  svg.append(s('text', { x: 11, y: middle, 'text-anchor': 'middle', transform: `rotate(-90 11 ${middle})` }, logged(yAxis)));
  return { svg, x, y, left, right, top, bottom };
}
