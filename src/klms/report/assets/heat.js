// Heat maps: one row per layer, one column per round.
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
