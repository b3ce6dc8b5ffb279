'use strict';
(() => {
  // Links: the numbers of the one that the mouse or the keyboard is at.
  for (const picture of document.querySelectorAll('.drawing svg.fabric')) {
    const panel = picture.closest('section').querySelector('[data-numbers]');
    const links = [...picture.querySelectorAll('.link')];
    const order = [...links].sort((a, b) => a.dataset.a.localeCompare(b.dataset.a, 'en', {numeric: true}));
    const show = link => {
      for (const other of links) other.classList.toggle('chosen', other === link);
      if (panel && link) panel.textContent = link.getAttribute('aria-label');
    };
    const go = link => {
      for (const other of links) other.tabIndex = other === link ? 0 : -1;
      link.focus();
    };
    for (const link of links) {
      link.addEventListener('pointerenter', () => show(link));
      link.addEventListener('focus', () => show(link));
      link.addEventListener('click', () => go(link));
      link.addEventListener('keydown', event => {
        const at = order.indexOf(link), last = order.length - 1;
        const next = {ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last};
        if (!(event.key in next)) return;
        event.preventDefault();
        go(order[Math.max(0, Math.min(last, next[event.key]))]);
      });
    }
    if (order.length) for (const link of links) link.tabIndex = link === order[0] ? 0 : -1;
  }

  // On paper everything is open.
  let closed = [];
  addEventListener('beforeprint', () => {
    closed = [...document.querySelectorAll('details:not([open])')];
    for (const each of closed) each.open = true;
  });
  addEventListener('afterprint', () => {
    for (const each of closed) each.open = false;
  });
  document.documentElement.dataset.ready = 'yes';
})();
