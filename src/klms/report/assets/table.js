// The table of a task. A click on a header sorts by its column, another reverses the order; empty cells stay last.
const narrow = window.matchMedia('(max-width: 640px)');

// A header may be broken after a slash, but not after its first letter, and a short one nowhere.
const breakable = (name) => (name.length > 9 ? name.replace(/^x /, 'x\u00a0') : name.replace(' ', '\u00a0'))
  .split('/').flatMap((part, index) => (index ? ['/', h('wbr'), part] : [part]));

function drawTable(task, view) {
  const { columns, rows } = task.table;
  const { sorted } = view;
  const spreads = columns.map((_, index) => rows.some((row) => row.cells[index].spread));
  const names = ['row', ...columns.map((column) => column.name)];
  const hints = ['name of the row in its experiment, or of the method', ...columns.map((column) => column.hint)];
  const heads = names.map((name, index) => h('th', { scope: 'col' }, h('button', {
    type: 'button',
    title: hints[index],
    class: name.length > 20 ? 'long' : null,
    'data-key': `${task.slug}/sort/${name}`,
    onclick: () => {
      // The first click puts the largest number first, but the names in alphabetical order.
      sorted.down = sorted.column === name ? !sorted.down : index > 0;
      sorted.column = name;
      update();
    },
  }, breakable(name))));
  const table = h('table', null, h('thead'));
  const value = (row, index) => (index ? row.cells[index - 1].value : `${row.title} ${row.settings}`);
  const nameCell = (row, more) => h('th', more, swatch(row, false),
    h('span', { class: 'method', title: row.method }, row.title), row.settings ? h('small', null, row.settings) : null);
  const cells = (row) => row.cells.map((cell, index) => h('td', {
    class: columns[index].name.startsWith('paper') ? 'paper' : null,
    title: cell.deviation === null ? null : `± ${shown(cell.deviation, 2)}`,
  }, cell.text, spreads[index] ? h('span', { class: 'spread' }, cell.spread ? ` ± ${cell.spread}` : '') : null));
  // On a narrow screen a name stands above its numbers, so that the first columns fit beside each other.
  const body = (row) => (narrow.matches
    ? h('tbody', { class: 'tall' }, h('tr', null, nameCell(row, { scope: 'rowgroup', colspan: columns.length })), h('tr', null, cells(row)))
    : h('tbody', null, h('tr', null, nameCell(row, { scope: 'row' }), cells(row))));

  function update() {
    const index = names.indexOf(sorted.column);
    heads.forEach((head, k) => {
      if (k === index) head.setAttribute('aria-sort', sorted.down ? 'descending' : 'ascending');
      else head.removeAttribute('aria-sort');
    });
    if (narrow.matches) heads[0].setAttribute('colspan', columns.length);
    else heads[0].removeAttribute('colspan');
    const headRows = narrow.matches ? [heads.slice(0, 1), heads.slice(1)] : [heads];
    table.tHead.replaceChildren(...headRows.map((row) => h('tr', null, row)));
    const sign = sorted.down ? -1 : 1;
    const passing = shownRows(task, view);
    const ordered = rows.filter((_, k) => passing.has(k));
    if (index >= 0) {
      ordered.sort((one, two) => {
        const [a, b] = [value(one, index), value(two, index)];
        if (a === null || b === null) return (a === null) - (b === null);
        return sign * (typeof a === 'string' ? a.localeCompare(b, 'en') : a - b);
      });
    }
    table.replaceChildren(table.tHead, ...ordered.map(body));
  }
  narrow.onchange = () => sections.forEach((section) => section.update());
  const element = h('div', { class: 'scroll results', tabindex: 0, role: 'region', 'aria-label': `Results: ${task.title}` }, table);
  return { element, update };
}

// One row per run, with links to its files.
function drawRuns(task, view, open) {
  const names = ['run', 'row', 'seed', 'rounds', 'accuracy', 'bits/parameter up', 'MB up', 'MB down', 'MB total', 'files'];
  const links = (files) => Object.entries(files).flatMap(([name, address]) => [h('a', { href: address, target: '_blank', rel: 'noopener' }, name), ' ']);
  const row = (run) => h('tr', null,
    h('th', { scope: 'row' }, run.name),
    ...[task.table.rows[run.row].name, run.seed, run.rounds, shown(run.accuracy), shown(run.bits),
      ...['up', 'down', 'total'].map((way) => shown(run.megabytes[way]))].map((text) => h('td', null, text)),
    h('td', { class: 'links' }, links(run.files)));
  const body = h('tbody');
  const summary = h('summary', { 'data-key': `${task.slug}/runs` });
  const details = h('details', { class: 'more', open: open.has(task.slug) },
    summary,
    h('div', { class: 'scroll plain', tabindex: 0, role: 'region', 'aria-label': 'All runs' },
      h('table', null, h('thead', null, h('tr', null, names.map((name) => h('th', { scope: 'col' }, h('span', null, name))))), body)));
  details.addEventListener('toggle', () => (details.open ? open.add(task.slug) : open.delete(task.slug)));

  function update() {
    const rows = shownRows(task, view);
    const runs = task.runs.filter((run) => rows.has(run.row));
    summary.textContent = `All runs (${runs.length})`;
    body.replaceChildren(...runs.map(row));
  }
  return { element: details, update };
}
