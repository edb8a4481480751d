// The mean of a column over runs, against the mean of another column; only rounds that all runs have count.
function meanCurve(runs, axis, column) {
  const curve = { x: [], y: [], deviation: [] };
  const rounds = runs.reduce((least, run) => Math.min(least, run.columns.round.length), Infinity);
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  for (let k = 0; k < rounds; k += 1) {
    const [xs, ys] = [axis, column].map((name) => runs.map((run) => run.columns[name]?.[k] ?? null));
    if (xs.includes(null) || ys.includes(null)) continue;
    const [x, y] = [mean(xs), mean(ys)];
    // A round without bytes does not advance the axis: its value takes the place of the one before.
    if (curve.x.length && x <= curve.x[curve.x.length - 1]) for (const values of Object.values(curve)) values.pop();
    curve.x.push(x);
    curve.y.push(y);
    curve.deviation.push(ys.length > 1 ? Math.sqrt(ys.reduce((sum, value) => sum + (value - y) ** 2, 0) / (ys.length - 1)) : null);
  }
  return curve;
}
