// The page: a section of controls, table, figures and details for each task.
// What the reader has chosen (filters, hidden lines, panels, order) survives a redraw.
const chosen = { views: new Map(), figures: new Map(), open: new Set() };

function refocus(key, inside) {
  const element = [...inside.querySelectorAll('[data-key]')].find((one) => one.dataset.key === key);
  if (!element) return;
  element.focus({ preventScroll: true });
  if (element.type === 'search') element.setSelectionRange(element.value.length, element.value.length);
}

function drawTask(task, csv) {
  const view = kept(chosen.views, task.slug, freshView);
  view.shared.sync = task.slug;
  const paper = task.table.paper
    ? ` The paper's numbers are from ${task.table.paper}. They are for orientation only: its model, rounds and amount of data differ.`
    : '';
  const notes = 'Mean ± sample standard deviation over seeds. Click a header to sort; point at it to see what it measures. '
    + `Up is what the clients send, down what they are sent.${paper}`;
  const [toolbar, table] = [drawToolbar(task, view), drawTable(task, view)];
  const figures = task.figures.map((figure) => drawFigure(task, figure, view, csv));
  const details = [drawSettings(task, view, chosen.open), drawRuns(task, view, chosen.open)];
  view.update = () => [toolbar, table, ...figures, ...details].forEach((part) => part.update());
  const element = h('section', { id: task.slug },
    h('h2', null, task.title),
    h('p', { class: 'sub' }, task.subtitle),
    toolbar.element,
    table.element,
    h('p', { class: 'note' }, notes),
    details.map((part) => part.element),
    h('p', { class: 'note' }, 'Curves are means over runs, with a band of one standard deviation. Drag to zoom, double-click to zoom out; all curves have the same pointer and range.'),
    h('div', { class: 'figures' }, figures.map((figure) => figure.element)));
  return { element, update: view.update, drop: () => figures.forEach((figure) => figure.drop()) };
}

let sections = [];

function render(data, live) {
  const main = document.getElementById('main');
  const focused = document.activeElement?.dataset.key;
  const scroll = window.scrollY;
  sizes.disconnect();
  sections.forEach((section) => section.drop());
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
  sections = data.tasks.map((task) => drawTask(task, data.csv));
  main.replaceChildren(...[...notices, empty].filter(Boolean), ...sections.map((section) => section.element));
  sections.forEach((section) => section.update());
  window.scrollTo(0, scroll);
  if (focused) refocus(focused, main);
}

window.addEventListener('scroll', hideTip, { passive: true });
const data = JSON.parse(document.getElementById('data').textContent);
render(data, data.poll > 0);
if (data.poll) follow(data.poll);
