// What the reader has chosen of a task (a filter, what makes a line, an axis), and what is shown of it.
const freshView = () => ({
  filter: '', lines: 'rows', axis: 'round', log: new Map(), hidden: new Set(), sorted: { column: null, down: false }, same: false,
  shared: { zoom: null, charts: new Set() },
});

// Words of the filter must occur in a name, words such as lr=0.1 must be a setting; a minus excludes.
function passes(filter, names, settings) {
  return (filter.toLowerCase().match(/-?"[^"]*"|\S+/g) || []).every((word) => {
    const excludes = word.length > 1 && word.startsWith('-');
    const wanted = word.slice(excludes ? 1 : 0).replaceAll('"', '');
    return excludes !== (wanted.includes('=') ? settings.includes(wanted) : names.some((name) => name.includes(wanted)));
  });
}

const settingWord = (name, value) => (/\s/.test(value) ? `"${name}=${value}"` : `${name}=${value}`);

// The numbers of the rows that pass the filter.
function shownRows(task, view) {
  const texts = task.texts || (task.texts = task.table.rows.map((row, index) => {
    const runs = task.runs.filter((run) => run.row === index);
    return {
      names: [row.name, row.method, row.settings, ...runs.map((run) => run.name)].map((text) => text.toLowerCase()),
      settings: runs.flatMap((run) => Object.entries(run.settings).map((pair) => pair.join('=').toLowerCase())),
    };
  }));
  return new Set([...texts.keys()].filter((index) => passes(view.filter, texts[index].names, texts[index].settings)));
}

const valuesOf = (runs, name, of = 'settings') => [...new Set(runs.map((run) => run[of][name]).filter((value) => value !== undefined))];

// Settings that differ between runs of the task.
function varied(task) {
  const names = [...new Set(task.runs.flatMap((run) => Object.keys(run.settings)))];
  return names.filter((name) => valuesOf(task.runs, name).length > 1);
}

// The lines of all curves: a mean over seeds for each row, every run, or a mean for each method or value of a setting.
function linesOf(task, view) {
  const rows = shownRows(task, view);
  const runs = task.runs.filter((run) => rows.has(run.row) && (run.averaged || view.lines === 'runs'));
  const label = {
    rows: (run) => task.table.rows[run.row].name,
    runs: (run) => run.name,
    method: (run) => task.table.rows[run.row].method,
  }[view.lines] || ((run) => `${view.lines} ${run.settings[view.lines] ?? 'not set'}`);
  const lines = new Map();
  for (const run of runs) {
    const style = view.lines in run.settings && view.lines !== 'method'
      ? { hue: lines.size % GREY, shade: 0, shape: lines.size, dashes: Math.floor(lines.size / GREY) % 4, hollow: false }
      : task.table.rows[run.row].style;
    kept(lines, label(run), () => ({ label: label(run), style, runs: [] })).runs.push(run);
  }
  return [...lines.values()];
}

const drawnLines = (task, view) => linesOf(task, view).filter((line) => !view.hidden.has(line.label));

function axisOf(task, view) {
  const axis = task.axes.find((one) => one.column === view.axis) || task.axes[0];
  return { ...axis, log: view.log.get(axis.column) ?? axis.log };
}
