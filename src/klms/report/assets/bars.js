// Stacked bars, and the legend that hides their parts.
// A scale from 0 to the largest sum, with a little air.
function barScale(sums, from, to, count) {
  const high = sums.reduce((a, b) => Math.max(a, b), 0) * 1.04 || 1;
  const place = (value) => from + (value / high) * (to - from);
  place.ticks = nice(0, high, count);
  return place;
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
  const x = barScale(sums, left, width - 14, width < 420 ? 4 : 7);
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
  const bottom = height - 38;
  const y = barScale(sums, bottom, 10, 6);
  const left = Math.max(...y.ticks.map((tick) => tickText(tick).length), 3) * 6.7 + 26;
  const right = width - 12;
  const svg = s('svg', { height, viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: 'img' });
  for (const tick of y.ticks) {
    svg.append(s('line', { class: 'grid', x1: left, x2: right, y1: y(tick), y2: y(tick) }));
    svg.append(s('text', { x: left - 7, y: y(tick) + 4, 'text-anchor': 'end' }, tickText(tick)));
  }
  svg.append(s('line', { class: 'axis', x1: left, x2: right, y1: bottom, y2: bottom }));
  svg.append(s('text', { x: (left + right) / 2, y: height - 4, 'text-anchor': 'middle' }, figure.categories));
  svg.append(s('text', { x: 11, y: bottom / 2, 'text-anchor': 'middle', transform: `rotate(-90 11 ${bottom / 2})` }, figure.axis.label));
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

function barsLegend(key, panel, hidden, redraw) {
  if (!hasLegend(panel)) return null;
  const box = h('div', { class: 'legend', role: 'group', 'aria-label': 'Parts' });
  panel.columns.forEach((part, index) => {
    box.append(h('button', {
      type: 'button',
      'aria-pressed': String(!hidden.has(part)),
      'data-key': `${key}/${part}`,
      onclick: () => {
        if (!hidden.delete(part)) hidden.add(part);
        redraw();
      },
    }, icon('5 0 12 12', partSymbol(index, panel.columns.length)), part));
  });
  return box;
}
