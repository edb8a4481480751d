// Figures that show one panel at a time: heat maps, steps, stacked bars.
const HEAT = ['440154', '472d7b', '3b528b', '2c728e', '21918c', '28ae80', '5ec962', 'addc30', 'fde725'];

function heatColour(share) {
  const place = Math.max(0, Math.min(1, share)) * (HEAT.length - 1);
  const index = Math.min(HEAT.length - 2, Math.floor(place));
  const mixed = [0, 2, 4].map((offset) => {
    const [a, b] = [HEAT[index], HEAT[index + 1]].map((hex) => parseInt(hex.slice(offset, offset + 2), 16));
    return Math.round(a + (b - a) * (place - index));
  });
  return `rgb(${mixed.join(',')})`;
}

const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

function drawHeat(figure, panel, width) {
  const letters = Math.min(Math.max(...panel.rows.map((name) => name.length)), width < 480 ? 13 : 22);
  const left = letters * 6.5 + 10;
  const tall = Math.max(13, Math.min(30, 300 / panel.rows.length));
  const bottom = 6 + tall * panel.rows.length;
  const wide = (width - left - 4) / panel.columns.length;
  const height = bottom + 74;
  const svg = s('svg', { height, viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: 'img' });
  const all = panel.values.flat().filter((value) => value > 0);
  const [low, high] = all.length ? [Math.min(...all), Math.max(...all)] : [0, 1];
  const log = high > 30 * low;
  const share = (value) => {
    if (value <= 0) return 0;
    return log ? Math.log(value / low) / (Math.log(high / low) || 1) : value / high;
  };
  const targets = [];
  panel.rows.forEach((name, row) => {
    const y = 6 + row * tall;
    svg.append(s('text', { x: left - 7, y: y + tall / 2 + 4, 'text-anchor': 'end' }, cut(name, letters), s('title', null, name)));
    panel.columns.forEach((column, index) => {
      const value = panel.values[row][index];
      const box = { x: left + index * wide, y, width: wide, height: tall };
      svg.append(s('rect', { ...box, width: wide + 0.4, height: tall - 1, fill: heatColour(share(value)) }));
      targets.push({
        x: box.x + wide / 2,
        y: y + tall / 2,
        box,
        title: name,
        lines: [`${figure.x.label} ${column}`, `${figure.unit} ${shown(value)} bits/parameter`],
      });
    });
  });
  let free = -Infinity;
  panel.columns.forEach((column, index) => {
    const text = column.split(' ')[0];
    const at = left + (index + 0.5) * wide;
    if (at - text.length * 3.4 < free) return;
    free = at + text.length * 3.4 + 22;
    if (at + text.length * 3.4 < width) svg.append(s('text', { x: at, y: bottom + 15, 'text-anchor': 'middle' }, text));
  });
  svg.append(s('text', { x: (left + width) / 2, y: bottom + 32, 'text-anchor': 'middle' }, figure.x.label));
  const [from, length] = [left, Math.min(220, width - left - 4)];
  for (let k = 0; k < 44; k += 1) {
    svg.append(s('rect', { x: from + (k * length) / 44, y: bottom + 44, width: length / 44 + 0.4, height: 9, fill: heatColour(k / 43) }));
  }
  svg.append(s('text', { x: from, y: height - 6 }, shown(log ? low : 0, 2)));
  svg.append(s('text', { x: from + length, y: height - 6, 'text-anchor': 'end' }, shown(high, 2)));
  svg.append(s('text', { x: from + length / 2, y: height - 6, 'text-anchor': 'middle' }, log ? `${figure.unit} (log)` : figure.unit));
  explore(svg, targets);
  return svg;
}

function drawSteps(figure, panel, width) {
  const height = Math.round(Math.max(250, Math.min(370, width * 0.62)));
  const options = { zero: true, tight: true, top: 20 };
  const { svg, x, y, top, bottom } = frame(width, height, panel.starts, panel.heights, figure.x, figure.y, options);
  const group = s('g', { class: colour(panel.style) });
  let path = '';
  const targets = [];
  panel.heights.forEach((value, index) => {
    const [a, b] = [x(panel.starts[index]), x(panel.starts[index + 1])];
    path += `${index ? 'L' : 'M'}${a.toFixed(2)} ${y(value).toFixed(1)}H${b.toFixed(2)}`;
    const range = `parameters ${shown(panel.starts[index], 9)} to ${shown(panel.starts[index + 1], 9)}`;
    targets.push({ x: (a + b) / 2, y: y(value), title: `${shown(value)} parameters`, lines: [range] });
  });
  const [first, end] = [x(panel.starts[0]), x(panel.starts[panel.starts.length - 1])];
  group.append(s('path', { class: 'area', d: `${path}L${end} ${bottom}L${first} ${bottom}Z` }));
  group.append(s('path', { class: 'edge', d: path }));
  panel.marks.forEach(([position, name], index) => {
    const [a, b] = [x(position), index + 1 < panel.marks.length ? x(panel.marks[index + 1][0]) : end];
    if (position) svg.append(s('line', { class: 'mark', x1: a, x2: a, y1: top - 4, y2: bottom }));
    if (b - a > name.length * 6.6) svg.append(s('text', { x: (a + b) / 2, y: top - 6, 'text-anchor': 'middle' }, name));
  });
  svg.append(group);
  explore(svg, targets);
  return svg;
}

// Up to ten parts have the colours of the page; more are spread over the colour wheel.
function partFill(index, count) {
  return count <= 10 ? { class: `part h${index} k0` } : { fill: `hsl(${Math.round((index * 360) / count)} 58% ${index % 2 ? 62 : 48}%)` };
}

function drawBars(figure, panel, width, hidden) {
  const shownParts = panel.columns.map((part) => !hidden.has(part));
  const sums = panel.values.map((values) => values.reduce((sum, value, index) => sum + (shownParts[index] ? value : 0), 0));
  return figure.horizontal ? horizontalBars(figure, panel, width, shownParts, sums) : verticalBars(figure, panel, width, shownParts, sums);
}

function horizontalBars(figure, panel, width, on, sums) {
  const above = width < 560;
  const letters = Math.min(Math.max(...panel.rows.map((name) => name.length)), above ? Math.floor(width / 7) : 36);
  const left = above ? 4 : letters * 6.5 + 12;
  const step = above ? 36 : 24;
  const bottom = 6 + panel.rows.length * step;
  const height = bottom + 38;
  const x = scale(sums, left, width - 14, { zero: true, count: width < 420 ? 4 : 7 });
  const svg = s('svg', { height, viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: 'img' });
  for (const tick of x.ticks) {
    svg.append(s('line', { class: 'grid', x1: x(tick), x2: x(tick), y1: 6, y2: bottom }));
    svg.append(s('text', { x: x(tick), y: bottom + 16, 'text-anchor': above && !tick ? 'start' : 'middle' }, tickText(tick)));
  }
  svg.append(s('text', { x: (left + width) / 2, y: height - 3, 'text-anchor': 'middle' }, figure.axis.label));
  const targets = [];
  panel.rows.forEach((name, row) => {
    const top = 6 + row * step + (above ? 17 : 4);
    const text = above ? { x: left, y: top - 4 } : { x: left - 8, y: top + 12, 'text-anchor': 'end' };
    svg.append(s('text', { class: 'name', ...text }, cut(name, letters), s('title', null, name)));
    let sum = 0;
    panel.columns.forEach((part, index) => {
      const value = panel.values[row][index];
      if (!on[index] || !value) return;
      const box = { x: x(sum), y: top, width: x(sum + value) - x(sum), height: 16 };
      sum += value;
      svg.append(s('rect', { ...box, ...partFill(index, panel.columns.length), 'data-part': part }));
      const lines = [`${part} ${shown(value, 3)}`, `total ${shown(sums[row], 3)}`];
      targets.push({ x: box.x + box.width / 2, y: top + 8, box, title: name, lines });
    });
  });
  explore(svg, targets);
  return svg;
}

function verticalBars(figure, panel, width, on, sums) {
  const height = Math.round(Math.max(250, Math.min(370, width * 0.62)));
  const count = panel.rows.length;
  const { svg, y, left, right, bottom } = frame(width, height, [], [0, ...sums], { label: figure.categories }, figure.axis, { zero: true });
  svg.querySelectorAll('line.grid').forEach((line) => line.getAttribute('x1') === line.getAttribute('x2') && line.remove());
  svg.querySelectorAll('text').forEach((text) => Number(text.getAttribute('y')) === bottom + 16 && text.remove());
  const wide = (right - left) / count;
  const bar = Math.max(1, Math.min(38, wide * 0.78));
  const targets = [];
  let free = -Infinity;
  panel.rows.forEach((name, index) => {
    const middle = left + (index + 0.5) * wide;
    if (middle - name.length * 3.4 > free) {
      free = middle + name.length * 3.4 + 6;
      svg.append(s('text', { x: middle, y: bottom + 16, 'text-anchor': 'middle' }, name));
    }
    let sum = 0;
    panel.columns.forEach((part, k) => {
      const value = panel.values[index][k];
      if (!on[k] || !value) return;
      const box = { x: middle - bar / 2, y: y(sum + value), width: bar, height: y(sum) - y(sum + value) };
      sum += value;
      svg.append(s('rect', { ...box, ...partFill(k, panel.columns.length), 'data-part': part }));
      const lines = [`${part}: ${shown(value)}`, `total ${shown(sums[index])}`];
      targets.push({ x: middle, y: box.y + box.height / 2, box, title: `${figure.categories} ${name}`, lines });
    });
  });
  explore(svg, targets);
  return svg;
}

const partSymbol = (index, count) => s('g', null, s('rect', { x: 5, width: 12, height: 12, rx: 3, ...partFill(index, count) }));
const hasLegend = (panel) => panel.columns.length > 1 && panel.columns.length <= 20;

function barsLegend(figure, panel, hidden, redraw) {
  if (!hasLegend(panel)) return null;
  const box = h('div', { class: 'legend', role: 'group', 'aria-label': 'Parts' });
  panel.columns.forEach((part, index) => {
    box.append(h('button', {
      type: 'button',
      'aria-pressed': String(!hidden.has(part)),
      'data-key': `${figure.key}/${part}`,
      onclick: () => {
        if (!hidden.delete(part)) hidden.add(part);
        redraw();
      },
    }, icon('5 0 12 12', partSymbol(index, panel.columns.length)), part));
  });
  return box;
}
