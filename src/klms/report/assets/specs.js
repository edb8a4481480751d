// What the three kinds of charts show: axes and series, each with its points {x, y, deviation} in ascending order of x.
function curvesSpec(task, figure, view) {
  const axis = axisOf(task, view);
  const several = figure.measures.length > 1;
  const series = drawnLines(task, view).flatMap((line) => figure.measures.map((measure, index) => ({
    label: several ? `${line.label}: ${measure.label}` : line.label,
    line: line.label,
    style: several ? { ...line.style, dashes: index } : line.style,
    ...onAxes(meanCurve(line.runs, axis.column, measure.column), axis, figure.y),
    joined: true,
  })));
  const few = series.every((one) => one.x.length <= 14);
  return {
    x: { label: axis.label, log: axis.log, whole: axis.column === 'round' },
    y: figure.y,
    range: rangeOfAxis(task, view, axis),
    series: series.filter((one) => one.x.length).map((one) => ({ ...one, markers: few || one.x.length === 1 ? 2.6 : 0 })),
  };
}

// All curves of a task have the same range, also those of rounds that were not evaluated.
function rangeOfAxis(task, view, axis) {
  const values = drawnLines(task, view).flatMap((line) => line.runs.flatMap((run) => run.columns[axis.column] || []))
    .filter((value) => !axis.log || value > 0);
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

// Logarithmic axes have no place for zero.
function onAxes(points, xAxis, yAxis) {
  const keep = points.x.map((x, index) => (!xAxis.log || x > 0) && (!yAxis.log || points.y[index] > 0));
  return Object.fromEntries(Object.entries(points).map(([name, values]) => [name, values.filter((_, index) => keep[index])]));
}

const costsOf = (figure) => figure.x.filter((_, index) => figure.points.some((point) => point.x[index]));

function pointsSpec(task, figure, view, axis) {
  const index = figure.x.indexOf(axis);
  const rows = new Set(drawnLines(task, view).flatMap((line) => line.runs.map((run) => task.table.rows[run.row].name)));
  const series = figure.points.filter((point) => rows.has(point.row) && point.x[index] > 0).map((point) => ({
    label: point.paper ? `paper: ${point.row}` : point.row,
    style: point.style,
    paper: point.paper,
    x: [point.x[index]],
    y: [point.y],
    deviation: [point.deviation],
    markers: point.paper ? 4 : 5,
  }));
  return { x: axis, y: figure.y, series, air: 0.05 };
}

function stepsSpec(figure, panel) {
  const y = [...panel.heights, panel.heights[panel.heights.length - 1]];
  const series = { label: panel.name, style: panel.style, x: panel.starts, y, deviation: y.map(() => null), joined: true, stepped: true };
  return { x: figure.x, y: figure.y, series: [series], marks: panel.marks, zero: true, air: 0 };
}
