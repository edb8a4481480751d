// Shows the target under the pointer, or the one that the arrow keys reach. Targets: {x, y, title, lines, box}.
const tip = document.getElementById('tip');
function hideTip() {
  tip.hidden = true;
  document.querySelectorAll('.focus').forEach((element) => element.remove());
}
function explore(svg, targets, reach = 40) {
  let current = null;
  const show = (target) => {
    hideTip();
    current = target;
    if (!target) return;
    if (target.box) svg.append(s('rect', { class: 'focus', ...target.box }));
    else svg.append(s('circle', { class: 'focus', cx: target.x, cy: target.y, r: 6.5 }));
    tip.replaceChildren(h('b', null, target.title), ...target.lines.map((line) => h('div', null, line)));
    tip.hidden = false;
    const frame = svg.getBoundingClientRect();
    const left = frame.left + target.x + 14;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    const flipped = left > room ? frame.left + target.x - tip.offsetWidth - 14 : left;
    const top = frame.top + target.y - tip.offsetHeight - 10;
    const x = Math.max(8, Math.min(flipped, room));
    tip.style.transform = `translate(${x}px, ${top < 8 ? frame.top + target.y + 14 : top}px)`;
  };
  svg.addEventListener('pointermove', (event) => {
    const frame = svg.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
    let best = null;
    let least = reach;
    for (const target of targets) {
      const box = target.box;
      const inside = box && x >= box.x && x <= box.x + box.width && y >= box.y && y <= box.y + box.height;
      const distance = inside ? 0 : box ? Infinity : Math.hypot(target.x - x, target.y - y);
      if (distance < least) [best, least] = [target, distance];
    }
    if (best !== current) show(best);
  });
  svg.addEventListener('pointerleave', () => show(null));
  svg.addEventListener('blur', () => show(null));
  svg.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') return show(null);
    const [dx, dy] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key] || [0, 0];
    if (!dx && !dy) return undefined;
    event.preventDefault();
    if (!current) return show(targets[0] || null);
    let best = current;
    let least = Infinity;
    for (const target of targets) {
      const along = (target.x - current.x) * dx + (target.y - current.y) * dy;
      const across = Math.abs((target.x - current.x) * dy) + Math.abs((target.y - current.y) * dx);
      if (along > 0.5 && along + 3 * across < least) [best, least] = [target, along + 3 * across];
    }
    return show(best);
  });
}
