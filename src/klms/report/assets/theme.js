// Dark and light colours: the system's, until the reader presses the button.
const system = window.matchMedia('(prefers-color-scheme: dark)');
const stored = (value) => {
  try {
    if (value) localStorage.setItem('klms-theme', value);
    return localStorage.getItem('klms-theme');
  } catch { return value; }
};
const recolour = () => {
  inks.clear();
  document.querySelectorAll('.plot').forEach((plot) => plot.chart && plot.chart.redraw(false));
};
if (['dark', 'light'].includes(stored())) document.documentElement.dataset.theme = stored();
document.getElementById('theme').addEventListener('click', () => {
  const dark = (document.documentElement.dataset.theme || (system.matches ? 'dark' : 'light')) === 'dark';
  document.documentElement.dataset.theme = dark ? 'light' : 'dark';
  stored(document.documentElement.dataset.theme);
  recolour();
});
system.addEventListener('change', recolour);
