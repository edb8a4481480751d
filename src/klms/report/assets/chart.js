// A chart by uPlot, in the colours of the page. Charts that share an object {zoom, charts, sync, active} have one range of
// x, and with `sync` one pointer.
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif';
const WHOLE = Array.from({ length: 30 }, (_, k) => [1, 2, 5][k % 3] * 10 ** Math.floor(k / 3));
const MOST_DOTS = 12; // under the pointer
const MOST_DIMMED = 30; // lines of other charts that are dimmed with those under the pointer
const probe = document.body.appendChild(h('i', { hidden: true }));
const inks = new Map();

// The colour that the style sheet gives to a class: a canvas does not know style sheets.
function ink(name) {
  probe.className = `probe ${name}`;
  return kept(inks, name, () => getComputedStyle(probe).color);
}

function zoomTo(shared, range) {
  shared.zoom = range;
  for (const chart of shared.charts) chart.setScale('x', { min: 0, max: 1 }); // the scale asks `shared` for its range
  if (shared.zoomed) shared.zoomed();
}

// The range of y of what can be seen, with deviations.
function rangeOfY(spec, low, high) {
  const values = [];
  for (const { x, y, deviation } of spec.series) {
    y.forEach((value, index) => {
      if (x[index] < low || x[index] > high) return;
      const spread = spec.y.log ? 0 : deviation[index] || 0;
      values.push(value - spread, value + spread);
    });
  }
  const [least, most] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  if (least > most) return spec.y.log ? [0.1, 1] : [0, 1];
  const range = widened(least, most, spec.y.log, 0.05);
  return spec.zero ? [0, range[1]] : range;
}

function axisOptions(axis, ticks, more) {
  return {
    label: axis.label + (axis.log ? ' (log)' : ''),
    labelSize: 18,
    labelGap: 2,
    font: FONT,
    labelFont: FONT,
    stroke: () => ink('soft'),
    grid: { stroke: () => ink('lines'), width: 1, filter: (_, splits) => splits },
    ticks: { show: false },
    values: (_, splits) => (axis.ticks = splits).map(tickText), // kept for the SVG file
    filter: (_, splits) => splits, // uPlot would label only the powers of ten
    ...(axis.log ? { splits: (_, __, low, high) => logTicks(low, high, ticks) } : axis.whole ? { incrs: WHOLE } : {}),
    ...more,
  };
}

function makeChart(spec, width, shared, ready) {
  const { series } = spec;
  const table = uPlot.join(series.map((one) => [one.x, one.y]));
  const xs = table[0];
  const whole = widened(...(spec.range || [xs[0], xs[xs.length - 1]]), spec.x.log, spec.air ?? 0.02);
  const joined = series.every((one) => one.joined);
  const matchSeries = (chart, source, index) => (
    index === null ? null : chart.series.findIndex((one) => one.line === source.series[index].line));
  const chart = new uPlot({
    width,
    height: Math.round(Math.max(250, Math.min(350, width * 0.6))),
    padding: [spec.marks ? 20 : 10, 14, 0, 2],
    legend: { show: false },
    focus: { alpha: 0.2 },
    scales: {
      x: { time: false, distr: spec.x.log ? 3 : 1, range: () => shared.zoom || whole },
      y: { distr: spec.y.log ? 3 : 1, range: (u) => rangeOfY(spec, u.scales.x.min ?? whole[0], u.scales.x.max ?? whole[1]) },
    },
    axes: [
      axisOptions(spec.x, width < 420 ? 5 : 8, { size: 24, space: 55 }),
      axisOptions(spec.y, 6, { space: 36, size: (_, values) => Math.max(3, ...(values || []).map((text) => text.length)) * 6.7 + 8 }),
    ],
    series: [{}, ...series.map((one) => ({
      label: one.label,
      line: one.line,
      stroke: () => ink(colour(one.style)),
      fill: one.stepped ? () => ink(`${colour(one.style)} faint`) : undefined,
      width: one.stepped ? 1.2 : 1.9,
      dash: dash(one.style)?.split(' ').map(Number),
      spanGaps: true,
      points: { show: false },
      auto: false, // the range of y is ours
      // uPlot's own paths go through the x of all series, ours through those of this one.
      paths: (u) => pathsOf(one, placesOf(u, true)),
    }))],
    cursor: {
      x: joined,
      y: false,
      points: { size: 8, one: series.length > MOST_DOTS || !joined },
      drag: { x: true, y: false, setScale: false, dist: 5 },
      bind: { dblclick: () => () => { zoomTo(shared, null); return null; } },
      hover: { skip: [null, undefined], prox: joined ? null : 30 },
      focus: {
        prox: series.length > 1 || !joined ? 30 : -1,
        dist: (u, _, index, there, here) => {
          if (shared.active && shared.active !== u) return Infinity; // it follows the chart under the pointer
          return joined ? there - here : Math.hypot(there - here, u.valToPos(u.data[0][index], 'x') - u.cursor.left);
        },
      },
      sync: shared.sync ? {
        key: shared.sync,
        setSeries: series.length <= MOST_DIMMED,
        scales: ['x', null],
        match: [(a, b) => a === b, (a, b) => a === b, matchSeries],
        filters: { pub: (type) => !['mousedown', 'mouseup', 'dblclick'].includes(type), sub: () => true },
      } : undefined,
    },
    hooks: {
      ready: ready ? [ready] : [],
      drawSeries: [(u, index) => drawExtras(u, spec, index - 1)],
      draw: [(u) => drawMarks(u, spec)],
      setSelect: [(u) => {
        const { left, width: wide } = u.select;
        if (wide > 5) zoomTo(shared, [u.posToVal(left, 'x'), u.posToVal(left + wide, 'x')]);
        u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      }],
      setCursor: [(u) => u.readout && u.readout()],
      setSeries: [(u, index, options) => {
        if (options.focus === undefined) return;
        u.focused = index;
        if (u.readout) u.readout();
      }],
    },
  }, table);
  shared.charts.add(chart);
  return chart;
}
