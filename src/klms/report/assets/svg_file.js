// A figure as an SVG file that stands alone. It is drawn again at a fixed width, on white, with its title and legend, and
// the styles that the page's style sheet gives to its elements are written into them as attributes.
const FILE_WIDTH = 720;
const SHAPE_STYLES = ['fill', 'stroke', 'stroke-width', 'stroke-dasharray', 'stroke-linecap', 'stroke-linejoin', 'opacity'];
const TEXT_STYLES = ['fill', 'font-size', 'font-weight'];

// Mixed colours are computed as color(srgb 0.1 0.2 0.3), which few programs that read SVG understand.
function plainColour(value) {
  const found = /^color\(srgb (\S+) (\S+) (\S+?)\)?$/.exec(value);
  return found ? `rgb(${found.slice(1).map((share) => Math.round(255 * share)).join(', ')})` : value;
}

// Entries of a legend: [label, symbol] in rows that are as wide as the file. Returns the height.
function fileLegend(file, entries, top) {
  let [x, y] = [12, top];
  for (const [label, symbol] of entries) {
    const text = s('text', null, label);
    file.append(text);
    const width = text.getComputedTextLength() + 46;
    if (x > 12 && x + width > FILE_WIDTH) [x, y] = [12, y + 20];
    text.setAttribute('x', x + 28);
    text.setAttribute('y', y + 10);
    symbol.setAttribute('transform', `translate(${x} ${y})`);
    file.append(symbol);
    x += width;
  }
  return entries.length ? y + 26 - top : 0;
}

function inlineStyles(file) {
  for (const element of file.querySelectorAll('path, line, rect, circle, text')) {
    const style = getComputedStyle(element);
    for (const name of element.matches('text') ? TEXT_STYLES : SHAPE_STYLES) {
      element.setAttribute(name, plainColour(style.getPropertyValue(name)));
    }
  }
  file.setAttribute('font-family', getComputedStyle(file).fontFamily);
  for (const element of [file, ...file.querySelectorAll('*')]) {
    for (const name of ['class', 'data-series', 'data-part']) element.removeAttribute(name);
  }
}

// `drawing` is an <svg> of width FILE_WIDTH that is not on the page; returns the content of the file.
function svgFile(title, drawing, entries) {
  const tall = Number(drawing.getAttribute('height'));
  const file = s('svg', { width: FILE_WIDTH });
  const stage = h('div', { class: 'stage' }, file); // styles are computed only for elements of the page
  document.body.append(stage);
  drawing.querySelectorAll('[display=none]').forEach((element) => element.remove());
  file.append(s('text', { class: 'title', x: 12, y: 24 }, title), s('g', { transform: 'translate(0 36)' }, [...drawing.childNodes]));
  const height = 44 + tall + fileLegend(file, entries, 46 + tall);
  file.setAttribute('height', height);
  file.setAttribute('viewBox', `0 0 ${FILE_WIDTH} ${height}`);
  file.prepend(s('rect', { class: 'paper', width: FILE_WIDTH, height }));
  inlineStyles(file);
  stage.remove();
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(file)}\n`;
}

function save(name, content) {
  const link = h('a', { href: URL.createObjectURL(new Blob([content], { type: 'image/svg+xml' })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
