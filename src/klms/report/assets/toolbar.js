// The controls above a task: a filter of rows, what makes a line, the axis, and the legend of all charts.
function drawToolbar(task, view) {
  const { slug } = task;
  const suggested = [
    ...new Set(task.table.rows.map((row) => row.method)),
    ...varied(task).flatMap((name) => valuesOf(task.runs, name).map((value) => settingWord(name, value))),
  ];
  const count = h('span', { class: 'count', role: 'status' });
  const filter = h('input', {
    type: 'search',
    class: 'filter',
    placeholder: 'klms, lr=0.1, -fedavg',
    title: 'Words that names must contain, or settings such as lr=0.1; a minus excludes',
    list: `${slug}-words`,
    value: view.filter,
    'data-key': `${slug}/filter`,
    oninput: (event) => { view.filter = event.target.value; view.update(); },
  });
  const select = (name, label, options, chosen, act) => h('label', null, h('span', null, label), h('select', {
    'data-key': `${slug}/${name}`,
    onchange: (event) => { act(event.target.value); view.update(); },
  }, options.map(([value, text]) => h('option', { value, selected: value === chosen }, text))));
  const log = h('input', {
    type: 'checkbox',
    'data-key': `${slug}/log`,
    onchange: () => { view.log.set(axisOf(task, view).column, log.checked); zoomTo(view.shared, null); view.update(); },
  });
  const reset = h('button', { type: 'button', class: 'reset', 'data-key': `${slug}/reset`, onclick: () => zoomTo(view.shared, null) }, 'Reset zoom');
  view.shared.zoomed = () => { reset.hidden = !view.shared.zoom; };
  view.shared.zoomed();
  const several = task.runs.length > task.table.rows.length;
  const groups = [['rows', several ? 'means over seeds' : 'rows of the table'], ['runs', 'single runs'], ['method', 'means by method'],
    ...varied(task).filter((name) => name !== 'method').map((name) => [name, `means by ${name}`])];
  const legend = h('div', { class: 'legend', role: 'group', 'aria-label': 'Lines' });
  const bar = h('div', { class: 'tools' },
    h('div', { class: 'controls' },
      h('label', null, h('span', null, 'Filter'), filter), count,
      h('datalist', { id: `${slug}-words` }, suggested.map((word) => h('option', { value: word }))),
      select('lines', 'Lines', groups, view.lines, (value) => { view.lines = value; view.hidden.clear(); }),
      select('axis', 'x axis', task.axes.map((axis) => [axis.column, axis.label]), view.axis, (value) => {
        view.axis = value;
        zoomTo(view.shared, null);
      }),
      h('label', { class: 'check' }, log, h('span', null, 'log')), reset),
    legend);
  const update = () => {
    if (filter.value !== view.filter) filter.value = view.filter;
    log.checked = axisOf(task, view).log;
    const shownCount = shownRows(task, view).size;
    count.textContent = shownCount < task.table.rows.length ? `${shownCount} of ${task.table.rows.length} rows` : '';
    fillLegend(legend, task, view);
  };
  return { element: bar, update };
}

// Buttons that hide and show lines in all charts; pointing at one dims the others.
function fillLegend(legend, task, view) {
  const focused = document.activeElement?.dataset.key;
  const lines = linesOf(task, view);
  const light = (label) => {
    for (const chart of view.shared.charts) {
      const index = label === null ? -1 : chart.series.findIndex((one) => one.line === label);
      chart.setSeries(index > 0 ? index : null, { focus: true }, true);
    }
  };
  const tool = (name, text, act) => h('button', { type: 'button', class: 'all', 'data-key': `${task.slug}/${name}`, onclick: () => { act(); view.update(); } }, text);
  const any = lines.some((line) => !view.hidden.has(line.label));
  legend.replaceChildren(...lines.map((line) => h('button', {
    type: 'button',
    'aria-pressed': String(!view.hidden.has(line.label)),
    'data-key': `${task.slug}/line/${line.label}`,
    title: `${line.runs.length} run${line.runs.length > 1 ? 's' : ''}: ${cut(line.runs.map((run) => run.name).join(', '), 300)}`,
    onclick: () => {
      if (!view.hidden.delete(line.label)) view.hidden.add(line.label);
      view.update();
    },
    onpointerenter: (event) => event.pointerType === 'mouse' && light(line.label),
    onpointerleave: () => light(null),
  }, swatch(line, true), line.label)), ...(lines.length > 3 ? [tool('all', any ? 'hide all' : 'show all', () => {
    if (any) lines.forEach((line) => view.hidden.add(line.label));
    else view.hidden.clear();
  })] : []));
  if (focused) refocus(focused, legend);
}
