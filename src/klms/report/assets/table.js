// The table of a task. A click on a header sorts by its column, another reverses the order; empty cells stay last.
// A header may be broken after a slash, but not after its first letter, and a short one nowhere.
const breakable = (name) => (name.length > 9 ? name.replace(/^x /, 'x\u00a0') : name.replace(' ', '\u00a0'))
  .split('/').flatMap((part, index) => (index ? ['/', h('wbr'), part] : [part]));

function drawTable(task, sorted) {
  const { columns, rows } = task.table;
  const body = h('tbody');
  const spreads = columns.map((_, index) => rows.some((row) => row.cells[index].spread));
  const names = ['method', ...columns.map((column) => column.name)];
  const hints = ['name of the method, as in klms methods', ...columns.map((column) => column.hint)];
  const heads = names.map((name, index) => h('th', { scope: 'col' }, h('button', {
    type: 'button',
    title: hints[index],
    class: name.length > 20 ? 'long' : null,
    'data-key': `${task.slug}/sort/${name}`,
    onclick: () => {
      // The first click puts the largest number first, but the names in alphabetical order.
      sorted.down = sorted.column === name ? !sorted.down : index > 0;
      sorted.column = name;
      order();
    },
  }, breakable(name))));
  const value = (row, index) => (index ? row.cells[index - 1].value : `${row.method} ${row.settings}`);
  const element = (row) => {
    const label = swatch({ style: row.style }, false);
    return h('tr', null,
      h('th', { scope: 'row' }, label, h('span', { class: 'method', title: row.method }, row.method), row.settings ? h('small', null, row.settings) : null),
      ...row.cells.map((cell, index) => h('td', {
        class: columns[index].name.startsWith('paper') ? 'paper' : null,
        title: cell.deviation === null ? null : `± ${shown(cell.deviation, 2)}`,
      }, cell.text,
        spreads[index] ? h('span', { class: 'spread' }, cell.spread ? ` ± ${cell.spread}` : '') : null)));
  };
  function order() {
    const index = names.indexOf(sorted.column);
    heads.forEach((head, k) => {
      if (k === index) head.setAttribute('aria-sort', sorted.down ? 'descending' : 'ascending');
      else head.removeAttribute('aria-sort');
    });
    const sign = sorted.down ? -1 : 1;
    const ordered = index < 0 ? rows : [...rows].sort((one, two) => {
      const [a, b] = [value(one, index), value(two, index)];
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (typeof a === 'string' ? a.localeCompare(b, 'en') : a - b);
    });
    body.replaceChildren(...ordered.map(element));
  }
  order();
  const label = `Results: ${task.title}`;
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label },
    h('table', null, h('thead', null, h('tr', null, heads)), body));
}

// One row per run.
function drawRuns(task, open) {
  const names = ['run', 'method and settings', 'seed', 'rounds', 'accuracy', 'bits/parameter up', 'MB up', 'MB down', 'MB total'];
  const size = (value) => shown(value) || '-';
  const rows = task.runs.map((run) => h('tr', null,
    h('th', { scope: 'row' }, run.name),
    ...[run.group, run.seed, run.rounds, shown(run.accuracy), shown(run.bits),
      ...['up', 'down', 'total'].map((way) => size(run.megabytes[way]))].map((text) => h('td', null, text))));
  const details = h('details', { class: 'runs', open: open.has(task.slug) },
    h('summary', { 'data-key': `${task.slug}/runs` }, `All runs (${task.runs.length})`),
    h('div', { class: 'scroll plain', tabindex: 0, role: 'region', 'aria-label': 'All runs' },
      h('table', null,
        h('thead', null, h('tr', null, names.map((name) => h('th', { scope: 'col' }, h('span', null, name))))),
        h('tbody', null, rows))));
  details.addEventListener('toggle', () => (details.open ? open.add(task.slug) : open.delete(task.slug)));
  return details;
}
