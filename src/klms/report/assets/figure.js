// A figure of a task: title, files, a choice of panels, the plot and, for bars, a legend. uPlot draws curves, points and
// steps; heat maps and bars are SVG elements of our own.
const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) if (target.redraw && target.clientWidth !== target.drawn) target.redraw();
});
const SVGS = { heat: drawHeat, bars: drawBars };

// What the reader can choose between: the axes of points, or the panels of the rows that pass the filter.
function panelsOf(task, figure, view) {
  if (figure.kind === 'curves') return [{ name: '' }];
  if (figure.kind === 'points') return costsOf(figure).map((axis) => ({ name: axis.label, axis }));
  const passing = shownRows(task, view);
  const gone = new Set(task.table.rows.filter((_, index) => !passing.has(index)).map((row) => row.name));
  const panels = figure.panels.filter((panel) => !gone.has(panel.name));
  if (!figure.horizontal) return panels;
  const rest = (panel, values) => values.filter((_, index) => !gone.has(panel.rows[index]));
  return panels.map((panel) => ({ ...panel, rows: rest(panel, panel.rows), values: rest(panel, panel.values) }))
    .filter((panel) => panel.rows.length);
}

function specOf(task, figure, view, panel) {
  if (figure.kind === 'curves') return curvesSpec(task, figure, view);
  return figure.kind === 'points' ? pointsSpec(task, figure, view, panel.axis) : stepsSpec(figure, panel);
}

function saveFigure(task, figure, view, panel, own, shared) {
  const title = `${figure.title}: ${[figure.panels && panel.name, task.title].filter(Boolean).join('; ')}`;
  const write = (drawing, entries) => save(`${task.slug}-${figure.id}.svg`, svgFile(title, drawing, entries));
  if (SVGS[figure.kind]) {
    const parts = figure.kind === 'bars' && hasLegend(panel) ? panel.columns : [];
    const entries = parts.map((part, index) => [part, partSymbol(index, parts.length)]).filter(([part]) => !own.hidden.has(part));
    write(SVGS[figure.kind](figure, panel, FILE_WIDTH, own.hidden), entries);
    return;
  }
  const spec = specOf(task, figure, view, panel);
  if (!spec.series.length) return;
  const entries = figure.kind === 'steps' ? [] : spec.series.map((one) => [one.label, symbol(one, Boolean(one.joined))]);
  makeChart(spec, FILE_WIDTH, { zoom: shared.zoom, charts: new Set() }, (chart) => {
    write(chartSvg(chart, spec), entries);
    chart.destroy();
  });
}

function drawFigure(task, figure, view, csv) {
  const key = `${task.slug}/${figure.id}`;
  const own = kept(chosen.figures, key, () => ({ hidden: new Set(), panel: null, shared: { zoom: null, charts: new Set() } }));
  const shared = figure.kind === 'curves' ? view.shared : own.shared;
  const [plot, legend] = [h('div', { class: 'plot' }), h('div')];
  const select = h('select', {
    class: 'panel',
    'aria-label': `${figure.title}: which`,
    'data-key': `${key}/panel`,
    onchange: (event) => {
      own.panel = event.target.value;
      zoomTo(own.shared, null);
      update();
    },
  });

  function current() {
    const panels = panelsOf(task, figure, view);
    const panel = panels.find((one) => one.name === own.panel) || panels[0];
    select.replaceChildren(...panels.map((one) => h('option', { value: one.name, selected: one === panel }, one.name)));
    select.hidden = !panel || !panel.name;
    select.disabled = panels.length < 2;
    return panel;
  }
  function drop() {
    if (!plot.chart) return;
    shared.charts.delete(plot.chart);
    if (shared.active === plot.chart) shared.active = null;
    plot.chart.destroy();
    plot.chart = null;
  }
  function update() {
    hideTip();
    drop();
    plot.drawn = plot.clientWidth;
    if (plot.drawn < 50) return;
    const panel = current();
    const svg = panel && SVGS[figure.kind];
    const spec = panel && !svg ? specOf(task, figure, view, panel) : null;
    plot.tabIndex = -1;
    if (svg) {
      const drawing = svg(figure, panel, plot.drawn, own.hidden);
      drawing.setAttribute('aria-label', `${figure.title}. ${figure.caption} Arrow keys move from part to part.`);
      plot.replaceChildren(drawing);
    } else if (spec && spec.series.length) {
      plot.chart = makeChart(spec, plot.drawn, shared);
      plot.replaceChildren(plot.chart.root);
      plot.tabIndex = 0;
      addPointer(plot.chart, spec, shared, plot);
    } else {
      plot.replaceChildren(h('p', { class: 'empty' }, 'Nothing to show: no row passes the filter, or all lines are hidden.'));
    }
    if (svg && figure.kind === 'bars') {
      const focused = document.activeElement?.dataset.key;
      legend.replaceChildren(...[barsLegend(key, panel, own.hidden, update)].filter(Boolean));
      if (focused) refocus(focused, legend);
    }
  }
  plot.redraw = update;
  sizes.observe(plot);
  if (!SVGS[figure.kind]) {
    plot.setAttribute('role', 'group');
    plot.setAttribute('aria-label', `${figure.title}. ${figure.caption} Arrow keys read values, plus zooms in, Escape zooms out.`);
  }
  const download = () => {
    const panel = current();
    if (panel) saveFigure(task, figure, view, panel, own, shared);
  };
  const files = h('div', { class: 'files' },
    csv ? h('a', { href: `figures/${task.slug}-${figure.id}.csv`, title: 'the numbers of this figure' }, 'CSV') : null,
    h('button', { type: 'button', title: 'save this figure as a file', 'data-key': `${key}/svg`, onclick: download }, 'SVG'));
  const measures = figure.measures?.length > 1 ? figure.measures : [];
  const strokes = measures.map((measure, index) => h('span', null, swatch({ style: { hue: GREY, shade: 0, dashes: index } }, true), measure.label));
  const element = h('figure', { id: `${task.slug}-${figure.id}` },
    h('div', { class: 'head' }, h('h3', null, figure.title), files),
    h('figcaption', null, figure.caption), strokes.length ? h('p', { class: 'key' }, strokes) : null, select, plot, legend);
  return { element, update, drop };
}
