// Draws every plot of the page when it comes near the screen; in ink and paper of the reader's choice, and
// once more, narrow and black on white, for a printer.
(() => {
  const figures = [...document.querySelectorAll('.plot')];
  const drawn = new Set();
  const style = () => getComputedStyle(document.documentElement);
  const colours = () => ({ ink: style().getPropertyValue('--ink').trim(), rule: style().getPropertyValue('--rule').trim(), paper: style().getPropertyValue('--paper').trim() });
  const look = (layout, narrow, { ink, rule, paper }) => {
    const axis = (given) => ({ ...given, gridcolor: rule, linecolor: ink, tickcolor: rule });
    const full = { ...layout, paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', font: { color: ink, size: narrow ? 11 : 13 } };
    for (const key of Object.keys(layout)) if (/^[xy]axis/.test(key)) full[key] = axis(layout[key]);
    full.shapes = (layout.shapes || []).map((s) => ({ ...s, line: { color: ink, ...s.line } }));
    full.annotations = (layout.annotations || []).map((a) => ({ bgcolor: paper, borderpad: 1, ...a }));
    if (narrow) full.margin = { ...layout.margin, l: Math.min(40, (layout.margin || {}).l ?? 40), r: 8 };
    return full;
  };
  const spec = (figure) => JSON.parse(figure.querySelector('script').textContent);
  const draw = (figure, ink = colours(), width) => {
    const { traces, layout } = spec(figure);
    const box = figure.querySelector('.canvas');
    const wide = width || box.clientWidth;
    const full = look(layout, wide < 480, ink);
    full.width = wide;
    full.height = box.clientHeight;
    drawn.add(figure);
    return Plotly.react(box, traces, full, { displayModeBar: false, displaylogo: false }).then(() => {
      if (!window.firstPictureMs) window.firstPictureMs = performance.now();
      figure.dataset.drawn = 'yes';
    });
  };
  const again = () => drawn.forEach((figure) => draw(figure));
  if (figures.length) draw(figures[0]);
  const near = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) if (isIntersecting && !drawn.has(target)) draw(target);
  }, { rootMargin: '800px' });
  figures.forEach((figure) => near.observe(figure));
  let waiting;
  addEventListener('resize', () => { clearTimeout(waiting); waiting = setTimeout(again, 150); });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', again);
  addEventListener('beforeprint', () => figures.forEach((figure) => draw(figure, { ink: '#000', rule: '#ccc', paper: '#fff' }, figure.closest('.panels') ? 300 : 640)));
  addEventListener('afterprint', again);
})();
