// Elements. All text is inserted as text: no part of the data is ever parsed as HTML.
const SVG = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ''));
  return element;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const DASHES = [null, '6 4', '1.5 4', '9 3 2 3'];
const colour = (style) => `h${style.hue} k${style.shade}`;
const dash = (style) => DASHES[style.dashes];

// A number, rounded to `digits` significant digits.
function shown(value, digits = 4) {
  if (value === null || value === undefined) return '';
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size < 1e-5 || size >= 1e9) return value.toExponential(2);
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return value.toLocaleString('en', { maximumFractionDigits: Math.min(places, 10) });
}

const SHAPES = [
  'M-1 0A1 1 0 1 0 1 0A1 1 0 1 0-1 0Z',
  'M-.9-.9H.9V.9H-.9Z',
  'M0-1.15L1.05.8H-1.05Z',
  'M0-1.25L1.25 0L0 1.25L-1.25 0Z',
  'M0 1.15L1.05-.8H-1.05Z',
];
const CROSS = 'M-.9-.9L.9.9M-.9.9L.9-.9';

function marker(series, x, y, size) {
  return s('path', {
    class: series.paper ? 'dot cross' : series.style.hollow ? 'dot hollow' : 'dot',
    d: series.paper ? CROSS : SHAPES[series.style.shape % SHAPES.length],
    transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${size})`,
    'vector-effect': 'non-scaling-stroke',
  });
}

// The entry of a series in a legend, 22 by 12 pixels.
function symbol(series, joined) {
  const drawn = joined ? s('path', { class: 'line', d: 'M1 6H21', 'stroke-dasharray': dash(series.style) }) : marker(series, 11, 6, 4);
  return s('g', { class: `series ${colour(series.style)}` }, drawn);
}

const icon = (viewBox, drawn) => s('svg', { viewBox, width: viewBox.split(' ')[2], height: 12, 'aria-hidden': 'true' }, drawn);
const swatch = (series, joined) => icon(joined ? '0 0 22 12' : '3 0 16 12', symbol(series, joined));

// Shows the target under the pointer, or the one that the arrow keys reach. Targets: {x, y, title, lines, box}.
const tip = document.getElementById('tip');
function hideTip() {
  tip.hidden = true;
  document.querySelectorAll('.focus').forEach((element) => element.remove());
}
function explore(svg, targets, reach = 40) {
  let current = null;
  const show = (target) => {
    hideTip();
    current = target;
    if (!target) return;
    if (target.box) svg.append(s('rect', { class: 'focus', ...target.box }));
    else svg.append(s('circle', { class: 'focus', cx: target.x, cy: target.y, r: 6.5 }));
    tip.replaceChildren(h('b', null, target.title), ...target.lines.map((line) => h('div', null, line)));
    tip.hidden = false;
    const frame = svg.getBoundingClientRect();
    const left = frame.left + target.x + 14;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    const flipped = left > room ? frame.left + target.x - tip.offsetWidth - 14 : left;
    const top = frame.top + target.y - tip.offsetHeight - 10;
    const x = Math.max(8, Math.min(flipped, room));
    tip.style.transform = `translate(${x}px, ${top < 8 ? frame.top + target.y + 14 : top}px)`;
  };
  svg.addEventListener('pointermove', (event) => {
    const frame = svg.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
    let best = null;
    let least = reach;
    for (const target of targets) {
      const box = target.box;
      const inside = box && x >= box.x && x <= box.x + box.width && y >= box.y && y <= box.y + box.height;
      const distance = inside ? 0 : box ? Infinity : Math.hypot(target.x - x, target.y - y);
      if (distance < least) [best, least] = [target, distance];
    }
    if (best !== current) show(best);
  });
  svg.addEventListener('pointerleave', () => show(null));
  svg.addEventListener('blur', () => show(null));
  svg.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') return show(null);
    const [dx, dy] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key] || [0, 0];
    if (!dx && !dy) return undefined;
    event.preventDefault();
    if (!current) return show(targets[0] || null);
    let best = current;
    let least = Infinity;
    for (const target of targets) {
      const along = (target.x - current.x) * dx + (target.y - current.y) * dy;
      const across = Math.abs((target.x - current.x) * dy) + Math.abs((target.y - current.y) * dx);
      if (along > 0.5 && along + 3 * across < least) [best, least] = [target, along + 3 * across];
    }
    return show(best);
  });
}
