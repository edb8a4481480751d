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
// The entry of a map; made if there is none.
const kept = (map, key, fresh) => (map.has(key) ? map : map.set(key, fresh())).get(key);

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

// A text that is cut to so many letters.
const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

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
