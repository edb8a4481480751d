// What a chart says at the pointer, and the keys that move the pointer and zoom.
const MOST_LINES = 8;

function readoutLines(chart, spec) {
  const { idxs, top } = chart.cursor;
  const { min, max } = chart.scales.x;
  const items = spec.series.map((one, index) => {
    const at = idxs[index + 1];
    const x = chart.data[0][at];
    const value = x >= min && x <= max ? chart.data[index + 1][at] : null;
    return { one, index: index + 1, at, value, deviation: one.deviation[one.x.indexOf(x)] };
  }).filter((item) => item.value !== null && item.value !== undefined);
  if (!spec.series[0].joined) return items.filter((item) => item.index === chart.focused);
  items.sort((a, b) => b.value - a.value);
  if (items.length <= MOST_LINES) return items;
  const far = (item) => (chart.focused ? (item.index === chart.focused ? 0 : Infinity) : Math.abs(chart.valToPos(item.value, 'y') - top));
  const nearest = items.reduce((best, item, index) => (far(item) < far(items[best]) ? index : best), 0);
  const first = Math.max(0, Math.min(nearest - MOST_LINES / 2, items.length - MOST_LINES));
  return items.slice(first, first + MOST_LINES);
}

function addPointer(chart, spec, shared, plot) {
  const box = h('div', { class: 'readout', hidden: true });
  chart.over.append(box);
  chart.readout = () => {
    const { left, idx } = chart.cursor;
    const lines = left < 0 || idx === null || idx === undefined ? [] : readoutLines(chart, spec);
    box.hidden = !lines.length;
    if (!lines.length) return;
    const x = chart.data[0][spec.series[0].joined ? idx : lines[0].at];
    box.replaceChildren(h('b', null, `${spec.x.label} ${shown(x)}`), ...lines.map(({ one, index, value, deviation }) => (
      h('div', { class: index === chart.focused ? 'on' : null },
        swatch(one, Boolean(one.joined)), h('span', null, one.label),
        h('em', null, shown(value) + (deviation === null || deviation === undefined ? '' : ` ± ${shown(deviation, 2)}`))))));
    const room = chart.over.clientWidth;
    const right = left > room / 2 ? left - box.offsetWidth - 12 : left + 12;
    box.style.transform = `translate(${Math.max(-40, Math.min(right, room - box.offsetWidth))}px, 4px)`;
  };
  chart.over.addEventListener('mouseenter', () => { shared.active = chart; });
  // Only the chart that has the keyboard's focus speaks to a screen reader.
  plot.onfocus = () => box.setAttribute('aria-live', 'polite');
  plot.onblur = () => {
    box.removeAttribute('aria-live');
    chart.setCursor({ left: -10, top: -10 }, true, true);
  };
  plot.onkeydown = (event) => {
    const act = KEYS[event.key];
    if (!act || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    shared.active = chart;
    act(chart, shared);
  };
}

const moveTo = (chart, x, top) => chart.setCursor({ left: chart.valToPos(x, 'x'), top }, true, true);

function step(chart, by) {
  const xs = chart.data[0];
  const { min, max } = chart.scales.x;
  const seen = xs.filter((x) => x >= min && x <= max);
  if (!seen.length) return;
  const { idx, left, top } = chart.cursor;
  const now = left < 0 ? -1 : seen.indexOf(xs[idx]);
  const next = seen[Math.max(0, Math.min(seen.length - 1, now < 0 ? 0 : now + by))];
  moveTo(chart, next, top < 0 ? chart.over.clientHeight / 2 : top);
  // A point has the focus only if the pointer is near it.
  if (chart.cursor.idxs.some(Number.isInteger) && !chart.focused) climb(chart, 0);
}

// Moves the pointer to the next value above or below it.
function climb(chart, direction) {
  const { idx, idxs, top } = chart.cursor;
  if (idx === null || idx === undefined) return;
  const tops = chart.data.slice(1).map((ys, index) => ys[idxs[index + 1]]).filter((y) => y !== null && y !== undefined)
    .map((y) => chart.valToPos(y, 'y')).filter((at) => !direction || (at - top) * direction > 1);
  if (!tops.length) return;
  const next = tops.reduce((best, at) => (Math.abs(at - top) < Math.abs(best - top) ? at : best));
  moveTo(chart, chart.data[0][idx], next);
}

function zoomIn(chart, shared) {
  const middle = chart.cursor.left < 0 ? chart.over.clientWidth / 2 : chart.cursor.left;
  const quarter = chart.over.clientWidth / 4;
  zoomTo(shared, [chart.posToVal(middle - quarter, 'x'), chart.posToVal(middle + quarter, 'x')]);
}

const KEYS = {
  ArrowRight: (chart) => step(chart, 1),
  ArrowLeft: (chart) => step(chart, -1),
  ArrowUp: (chart) => climb(chart, -1),
  ArrowDown: (chart) => climb(chart, 1),
  '+': zoomIn,
  '=': zoomIn,
  '-': (_, shared) => zoomTo(shared, null),
  Escape: (_, shared) => zoomTo(shared, null),
};
