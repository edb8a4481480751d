// The settings and versions of the rows that are shown, side by side: by default only those that differ.
function drawSettings(task, view, open) {
  const key = `${task.slug}/settings`;
  const body = h('div', { class: 'scroll plain', tabindex: 0, role: 'region', 'aria-label': 'Settings' });
  const all = h('input', { type: 'checkbox', checked: view.same, 'data-key': `${key}/same`, onchange: () => { view.same = all.checked; update(); } });
  const details = h('details', { class: 'more', open: open.has(key) },
    h('summary', { 'data-key': key }, 'Settings and their differences'),
    h('p', { class: 'note' }, h('label', { class: 'check' }, all, h('span', null, 'also settings that do not differ')),
      ' A click on a value filters by it.'),
    body);
  details.addEventListener('toggle', () => {
    if (details.open) open.add(key);
    else open.delete(key);
    update();
  });

  function update() {
    if (details.open) body.replaceChildren(settingsTable(task, view));
  }
  return { element: details, update };
}

function settingsTable(task, view) {
  const rows = shownRows(task, view);
  const runs = task.runs.filter((run) => rows.has(run.row));
  const columns = view.lines === 'runs' ? runs.map((run) => ({ name: run.name, row: run.row, runs: [run] }))
    : [...rows].map((row) => ({ name: task.table.rows[row].name, row, runs: runs.filter((run) => run.row === row) }));
  const lines = ['settings', 'versions'].flatMap((of) => [...new Set(runs.flatMap((run) => Object.keys(run[of])))].map((name) => ({
    name,
    of,
    values: columns.map((column) => valuesOf(column.runs, name, of)),
  })));
  const differs = ({ values }) => new Set(values.map((some) => some.join('\n'))).size > 1;
  const shownLines = lines.filter((line) => view.same || differs(line));
  const value = (line, text) => (line.of === 'versions' ? text : h('button', {
    type: 'button',
    onclick: () => {
      const word = settingWord(line.name, text);
      if (!view.filter.includes(word)) view.filter = `${view.filter} ${word}`.trim();
      view.update();
    },
  }, text === '' ? '""' : text));
  if (!shownLines.length) return h('p', { class: 'empty' }, columns.length > 1 ? 'All settings are the same.' : 'There is nothing to compare with.');
  return h('table', null,
    h('thead', null, h('tr', null, h('th', { scope: 'col' }, h('span', null, 'setting')),
      columns.map((column) => h('th', { scope: 'col' }, h('span', null, swatch(task.table.rows[column.row], false), ` ${column.name}`))))),
    h('tbody', null, shownLines.map((line) => h('tr', { class: differs(line) ? 'differs' : null },
      h('th', { scope: 'row' }, line.of === 'versions' ? `version of ${line.name}` : line.name),
      line.values.map((values) => h('td', null, values.flatMap((text, index) => (index ? [', ', value(line, text)] : [value(line, text)]))))))));
}
