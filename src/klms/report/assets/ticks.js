// Round numbers along an axis, for the figures that are not uPlot's and for its logarithmic axes, whose own ticks begin
// wherever the axis does.
function nice(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
}

function logTicks(low, high, count) {
  const factors = Math.log10(high / low) <= 2.2 ? [1, 2, 5] : [1];
  const powers = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) powers.push(power);
  const ticks = powers.flatMap((power) => factors.map((factor) => Number((factor * 10 ** power).toPrecision(6))))
    .filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  if (ticks.length < 3) return nice(low, high, Math.min(4, count)); // less than a decade: ticks as on a linear axis
  const skip = Math.ceil(ticks.length / count);
  return ticks.filter((_, index) => index % skip === 0);
}

const tickText = (value) => (Math.abs(value) >= 1e6 ? `${shown(value / 1e6, 3)}M` : shown(value, 6));

// A range with some air at both ends.
function widened(low, high, log, share) {
  if (log) return widened(Math.log(low), Math.log(high), false, share).map(Math.exp);
  const margin = (high - low || Math.abs(low) * 0.1 || 1) * share;
  return [low - margin, high + margin];
}
