// The page: sections of tables and figures, dark and light colours, and new data every few seconds if the page is live.
// What the reader has chosen (hidden series, panels, order) survives a redraw.
const chosen = { hidden: new Map(), view: new Map(), panel: new Map(), sorted: new Map(), open: new Set() };
const kept = (map, key, fresh) => map.get(key) || map.set(key, fresh()).get(key);
const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) if (target.redraw && target.clientWidth !== target.drawn) target.redraw();
});

function drawFigure(task, figure, csv) {
  figure.key = `${task.slug}/${figure.id}`;
  const hidden = kept(chosen.hidden, figure.key, () => new Set());
  const view = kept(chosen.view, figure.key, () => ({ hidden, whole: false, logX: null }));
  const plot = h('div', { class: 'plot' });
  const legend = h('div');
  let panel = null;
  if (figure.panels) {
    const wanted = figure.panels.findIndex((one) => one.name === chosen.panel.get(figure.key));
    panel = figure.panels[Math.max(0, wanted)];
  }
  const select = figure.panels && figure.panels.length > 1 ? h('select', {
    class: 'panel',
    'aria-label': `${figure.title}: which`,
    'data-key': `${figure.key}/panel`,
    onchange: (event) => {
      panel = figure.panels[event.target.selectedIndex];
      chosen.panel.set(figure.key, panel.name);
      redraw();
    },
  }, figure.panels.map((one) => h('option', { selected: one === panel }, one.name))) : null;

  function draw(width) {
    if (figure.kind === 'curves') return drawCurves(figure, width, view);
    return { heat: drawHeat, steps: drawSteps, bars: drawBars }[figure.kind](figure, panel, width, hidden);
  }
  function download() {
    let entries = [];
    if (figure.kind === 'curves') {
      entries = seriesEntries(figure).filter(({ members }) => members.some((series) => !hidden.has(series.name)))
        .map((entry) => [entry.label, symbol(entry.shown, figure.joined)]);
    } else if (figure.kind === 'bars' && hasLegend(panel)) {
      entries = panel.columns.map((part, index) => [part, partSymbol(index, panel.columns.length)]).filter(([part]) => !hidden.has(part));
    }
    const title = `${figure.title}: ${[panel && panel.name, task.title].filter(Boolean).join('; ')}`;
    save(`${task.slug}-${figure.id}.svg`, svgFile(title, draw(FILE_WIDTH), entries));
  }
  function redraw() {
    hideTip();
    const focused = document.activeElement && document.activeElement.dataset.key;
    const width = plot.clientWidth;
    plot.drawn = width;
    if (width < 50) return;
    const svg = draw(width);
    svg.setAttribute('aria-label', `${figure.title}. ${figure.caption} Arrow keys move from point to point.`);
    plot.replaceChildren(svg);
    const made = figure.kind === 'curves' ? curvesLegend(figure, view, plot, redraw)
      : figure.kind === 'bars' ? barsLegend(figure, panel, hidden, redraw) : null;
    legend.replaceChildren(...(made ? [made] : []));
    if (focused) refocus(focused, legend);
  }
  plot.redraw = redraw;
  sizes.observe(plot);
  const files = h('div', { class: 'files' },
    csv ? h('a', { href: `figures/${task.slug}-${figure.id}.csv`, title: 'the numbers of this figure' }, 'CSV') : null,
    h('button', { type: 'button', title: 'save this figure as a file', 'data-key': `${figure.key}/svg`, onclick: download }, 'SVG'));
  return h('figure', { id: `${task.slug}-${figure.id}` },
    h('div', { class: 'head' }, h('h3', null, figure.title), files),
    h('figcaption', null, figure.caption), select, plot, legend);
}

function refocus(key, inside) {
  const element = [...inside.querySelectorAll('[data-key]')].find((one) => one.dataset.key === key);
  if (element) element.focus({ preventScroll: true });
}

function drawTask(task, csv) {
  const sorted = kept(chosen.sorted, task.slug, () => ({ column: null, down: false }));
  const note = task.table.paper
    ? `The paper's numbers are from ${task.table.paper}. Its model, rounds and amount of data differ from those of the runs here, `
      + 'so its numbers are for orientation only.'
    : '';
  const notes = 'Mean ± sample standard deviation over seeds. Click a header to sort. Bits are those of messages that were sent and decoded. '
    + 'Up is what the clients send, down what they are sent, total both; a dash stands for what a run did not record. '
    + `Times smaller than float32: up compares 32 bits per parameter, total 32 bits per parameter each way. ${note}`;
  return h('section', { id: task.slug },
    h('h2', null, task.title),
    h('p', { class: 'sub' }, task.subtitle),
    drawTable(task, sorted),
    h('p', { class: 'note' }, notes),
    h('div', { class: 'figures' }, task.figures.map((figure) => drawFigure(task, figure, csv))),
    drawRuns(task, chosen.open));
}

function render(data, live) {
  const main = document.getElementById('main');
  const focused = document.activeElement && document.activeElement.dataset.key;
  const scroll = window.scrollY;
  sizes.disconnect();
  const methods = new Set(data.tasks.flatMap((task) => task.table.rows.map((row) => row.method)));
  const count = (n, word) => `${n} ${word}${n === 1 ? '' : 's'}`;
  const facts = `${count(data.runs, 'run')}, ${count(methods.size, 'method')}`;
  const state = data.all_finished ? (live ? ', all finished' : '') : ', some not finished';
  document.getElementById('state').replaceChildren(h('span', { class: live ? 'live' : null }, facts + state));
  const titles = data.tasks.map((task) => task.title);
  const name = (task) => (titles.filter((title) => title === task.title).length > 1 ? `${task.title}; ${task.subtitle}` : task.title);
  document.getElementById('tasks').replaceChildren(
    ...(data.tasks.length > 1 ? data.tasks.map((task) => h('a', { href: `#${task.slug}` }, name(task))) : []));
  const remarks = (list, summary) => (list.length ? h('details', { class: 'notice' },
    h('summary', null, summary),
    h('ul', null, list.map((one) => h('li', null, `${one.name}: ${one.why}`)))) : null);
  const notices = [
    remarks(data.left_out, `${count(data.left_out.length, 'folder')} left out`),
    remarks(data.incomplete, `${count(data.incomplete.length, 'run')} incomplete`),
  ];
  const empty = data.tasks.length ? null : h('p', { class: 'notice' }, 'No run has finished a round yet.');
  main.replaceChildren(...[...notices, empty].filter(Boolean), ...data.tasks.map((task) => drawTask(task, data.csv)));
  main.querySelectorAll('.plot').forEach((plot) => plot.redraw());
  window.scrollTo(0, scroll);
  if (focused) refocus(focused, main);
}

const theme = document.getElementById('theme');
const system = window.matchMedia('(prefers-color-scheme: dark)');
const stored = (value) => {
  try {
    if (value) localStorage.setItem('klms-theme', value);
    return localStorage.getItem('klms-theme');
  } catch { return value; }
};
if (['dark', 'light'].includes(stored())) document.documentElement.dataset.theme = stored();
theme.addEventListener('click', () => {
  const dark = (document.documentElement.dataset.theme || (system.matches ? 'dark' : 'light')) === 'dark';
  document.documentElement.dataset.theme = dark ? 'light' : 'dark';
  stored(document.documentElement.dataset.theme);
});
window.addEventListener('scroll', hideTip, { passive: true });

const data = JSON.parse(document.getElementById('data').textContent);
render(data, data.poll > 0);
if (data.poll) {
  let last = '';
  const ask = async () => {
    try {
      const answer = await fetch('data.json', { cache: 'no-cache' });
      if (!answer.ok) throw new Error(answer.statusText);
      const news = await answer.text();
      if (news !== last) render(JSON.parse((last = news)), true);
    } catch {
      document.getElementById('state').textContent = 'The server does not answer. This page shows its last data.';
      last = '';
    }
    setTimeout(ask, data.poll * 1000);
  };
  setTimeout(ask, data.poll * 1000);
}
