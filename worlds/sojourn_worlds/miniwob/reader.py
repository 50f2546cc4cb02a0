"""The JavaScript that reads a page: which elements listen to clicks, how elements are named, and what is listed of
them.
"""

LISTENERS = r"""
const CLICKS = new Set(['click', 'mousedown', 'mouseup', 'dblclick', 'pointerdown']);
const heard = new WeakMap();
const count = (target, type, by) => {
  if (!CLICKS.has(type) || !(target instanceof Element)) return;
  const types = heard.get(target) || {};
  types[type] = Math.max(0, (types[type] || 0) + by);
  heard.set(target, types);
};
for (const [verb, by] of [['addEventListener', 1], ['removeEventListener', -1]]) {
  const real = EventTarget.prototype[verb];
  EventTarget.prototype[verb] = function (type, ...rest) {
    count(this, type, by);
    return real.call(this, type, ...rest);
  };
}
const hears = el => Boolean(el.onclick || el.onmousedown) || Object.values(heard.get(el) || {}).some(n => n > 0);
"""

NAMES = r"""
const HIDDEN = new Set(['query', 'reward-display', 'sync-task-cover', 'click-canvas', 'attention-canvas']);
const clean = s => (s || '').replace(/\s+/g, ' ').trim().replace(/"/g, "'");
const PALETTE = {black: [0,0,0], white: [255,255,255], gray: [128,128,128], silver: [192,192,192], red: [255,0,0],
  maroon: [128,0,0], orange: [255,165,0], gold: [255,215,0], yellow: [255,255,0], olive: [128,128,0], lime: [0,255,0],
  green: [0,128,0], teal: [0,128,128], aqua: [0,255,255], blue: [0,0,255], navy: [0,0,128], purple: [128,0,128],
  magenta: [255,0,255], pink: [255,192,203]};
const colour = css => {
  const rgb = (css || '').match(/[\d.]+/g);
  if (!rgb || rgb.length < 3 || (rgb.length === 4 && Number(rgb[3]) === 0)) return '';
  const far = c => PALETTE[c].reduce((sum, v, i) => sum + (v - rgb[i]) ** 2, 0);
  return Object.keys(PALETTE).reduce((best, c) => far(c) < far(best) ? c : best);
};
const DULL = /^ui-|^d3-|^(widget|color|item|box)$/;
const wordy = el => [el.id, ...el.classList].find(w => /^[a-z][a-z0-9-]{2,}$/.test(w) && !DULL.test(w));
const ownLabel = el => el.labels && el.labels.length ? clean(el.labels[0].innerText) : '';
const said = (el, attribute) => el.getAttribute(attribute) || '';
const formName = el => clean(said(el, 'aria-label') || ownLabel(el) || said(el, 'placeholder') || el.title)
  .replace(/[:\s]+$/, '');
const itemName = (el, text) => {
  if (el.classList.contains('ui-dialog-titlebar-close')) return 'x';
  if (el.classList.contains('ui-slider-handle')) return /[0-9]/.test(el.parentElement.id) ? el.parentElement.id : '';
  const picture = el.tagName === 'IMG' ? el : el.querySelector('img');
  const paint = colour(getComputedStyle(el).backgroundColor);
  const word = (wordy(el) || '').replace(/^ql-/, '').replace(/-/g, ' ');
  return clean(el.getAttribute('aria-label')) || text || clean(picture && picture.alt) || clean(el.title) ||
    (el.id ? word || paint : paint && paint !== 'white' ? paint : word || paint);
};
const INPUTS = {checkbox: 'checkbox', radio: 'radio', button: 'button', submit: 'button', reset: 'button',
  image: 'button', range: 'slider', color: 'color', date: 'date', time: 'time', month: 'month', week: 'week',
  password: 'password'};
const ROLES = new Set(['tab', 'menuitem', 'option', 'checkbox', 'radio', 'slider', 'button', 'link', 'spinbutton']);
const roleOf = el => {
  if (el.tagName === 'INPUT') return INPUTS[el.type] || 'textbox';
  if (el.tagName === 'SELECT') return 'list';
  if (el.tagName === 'TEXTAREA') return 'textarea';
  if (el.isContentEditable) return 'textbox';
  const own = said(el, 'role'), role = own === 'presentation' ? said(el.parentElement, 'role') : own;
  if (ROLES.has(role)) return role;
  if (el.classList.contains('ui-slider-handle')) return 'slider';
  if (el.tagName === 'BUTTON') return 'button';
  if (el.tagName === 'A' || el.classList.contains('alink')) return 'link';
  return ['folder', 'file'].find(c => el.classList.contains(c) || el.querySelector(':scope > .' + c)) || 'item';
};
"""

READER = r"""
const ids = new WeakMap();
let nodes = new Map(), last = 0;
const idOf = el => { if (!ids.has(el)) ids.set(el, ++last); nodes.set(ids.get(el), el); return ids.get(el); };
const box = r => ({x: Math.round(r.left + r.width / 2), y: Math.round(r.top + r.height / 2),
  w: Math.round(r.width), h: Math.round(r.height)});
const shown = el => el.checkVisibility({visibilityProperty: true, opacityProperty: true}) && !HIDDEN.has(el.id);
const clipped = el => { const r = el.getBoundingClientRect();
  return r.right <= 0 || (r.width <= 1 && r.height <= 1 && getComputedStyle(el).overflow === 'hidden'); };
const size = el => { const r = el.getBoundingClientRect(); return Math.min(r.width, r.height); };
const FORM = new Set(['INPUT', 'SELECT', 'TEXTAREA', 'BUTTON']);
const WHOLE = el => el === document.body || ['wrap', 'area'].includes(el.id) || el.getAttribute('role') === 'dialog'
  || el.classList.contains('hitarea');
const SHAPES = new Set(['circle', 'ellipse', 'rect', 'polygon', 'polyline', 'line', 'path', 'text', 'image']);
const native = el => FORM.has(el.tagName) || (el.tagName === 'A' && (el.href || hears(el))) || el.tagName === 'CANVAS'
  || el.tagName === 'IMG';
const editable = el => el.isContentEditable && !(el.parentElement && el.parentElement.isContentEditable);
const MOVES = ['alink', 'ui-draggable', 'ui-slider-handle', 'ui-sortable-handle', 'ui-menu-item-wrapper'];
const loose = el => !WHOLE(el) && (hears(el) || MOVES.some(c => el.classList.contains(c))
  || (/pointer|move/.test(getComputedStyle(el).cursor)
      && getComputedStyle(el).cursor !== getComputedStyle(el.parentElement).cursor));
const stateOf = (el, role) => {
  if (el.disabled) return 'disabled';
  if (role === 'checkbox' || role === 'radio') return el.checked || said(el, 'aria-checked') === 'true' ? 'on' : '';
  if (role === 'textarea') {
    const more = [el.scrollTop > 0 ? 'above' : '', el.scrollTop + el.clientHeight < el.scrollHeight - 3 ? 'below' : ''];
    return more.some(Boolean) ? 'more ' + more.filter(Boolean).join(' and ') : '';
  }
  const near = role === 'tab' || role === 'folder' ? el.closest('li, h3, [role=tab]') || el : el;
  const open = said(near, 'aria-selected') === 'true' || said(near, 'aria-expanded') === 'true'
    || near.classList.contains('collapsable');
  if (open) return 'open';
  const marks = {clicked: 'on', active: 'on', selected: 'on', 'ui-selected': 'on', 'mark-x': 'X', 'mark-o': 'O'};
  return marks[[...el.classList].find(c => c in marks)] || '';
};
const valueOf = el => el.tagName === 'SELECT' ? [...el.selectedOptions].map(o => clean(o.text)).join(', ')
  : el.isContentEditable ? clean(el.innerText)
  : FORM.has(el.tagName) && !/^(checkbox|radio|button|submit|reset|image)$/.test(el.type) ? clean(el.value) : '';
const entry = (el, name, where) => {
  const role = el.tagName === 'CANVAS' ? 'canvas' : el.tagName === 'IMG' && !hears(el) ? 'image' : roleOf(el);
  const options = el.tagName === 'SELECT' ? [...el.options].map(o => clean(o.text)) : [];
  return {kind: 'element', id: idOf(el), role, name: name.slice(0, 80), value: valueOf(el), state: stateOf(el, role),
    options, ...box(where || el.getClientRects()[0] || el.getBoundingClientRect())};
};
const shapeName = el => {
  const style = getComputedStyle(el), paint = colour(style.fill) || colour(style.stroke);
  if (el.tagName === 'text') return clean(el.textContent) + (paint && paint !== 'black' ? ' ' + paint : '');
  if (el.tagName === 'line') {
    const at = (x, y) => { const p = new DOMPoint(x, y).matrixTransform(el.getScreenCTM());
      return Math.round(p.x) + ',' + Math.round(p.y); };
    return at(el.x1.baseVal.value, el.y1.baseVal.value) + ' to ' + at(el.x2.baseVal.value, el.y2.baseVal.value);
  }
  if (!el.points) return paint;
  const m = el.getScreenCTM(), points = [...el.points].map(p => p.matrixTransform(m));
  return clean(paint + ' ' + points.map(p => Math.round(p.x) + ',' + Math.round(p.y)).join(' '));
};
const drawn = (el, role, name) => ({kind: 'shape', id: idOf(el), role, name, value: '', state: '', options: [],
  ...box(el.getBoundingClientRect())});
const shape = (el, out) => {
  const r = el.getBoundingClientRect();
  if (Math.max(r.width, r.height) < 3 || getComputedStyle(el).visibility === 'hidden') return;
  out.push(drawn(el, el.tagName, shapeName(el)));
};
const textOf = (node, out) => {
  const range = document.createRange();
  range.selectNodeContents(node);
  const r = range.getBoundingClientRect(), text = clean(node.data);
  if (text && r.width > 0 && r.height > 0) out.push({kind: 'text', text, node});
};
const takeLabel = out => {
  let at = out.length - 1;
  while (at >= 0 && out[at].kind === 'cell') at--;
  if (at > 0 && out[at].kind === 'break') {
    while (at > 0 && out[at].kind === 'break') at--;
    if (out[at].kind !== 'text' || !/^[^.!?]{0,10}[a-z]{3}[^.!?]{0,12}$/i.test(out[at].text)) return '';
  }
  if (at < 0 || out[at].kind !== 'text' || out[at].text.length > 40) return '';
  return clean(out.splice(at, 1)[0].text.replace(/[:\s]+$/, ''));
};
const field = (el, out) => {
  const tick = /^(checkbox|radio)$/.test(el.type || '');
  const press = el.tagName === 'BUTTON' || /^(button|submit|reset|image)$/.test(el.type || '');
  if (press) return out.push(entry(el, itemName(el, clean(el.tagName === 'INPUT' ? el.value : el.innerText))));
  const own = formName(el), name = own || (tick ? '' : takeLabel(out));
  if (tick && !name && el.nextSibling instanceof Text) return out.push({...entry(el, clean(el.nextSibling.data))});
  return out.push({...entry(el, name), borrowed: !own});
};
const own = (el, out, from) => {
  const texts = out.slice(from).filter(e => e.kind === 'text');
  if (!texts.length) return;
  const range = document.createRange();
  range.selectNodeContents(texts[0].node);
  const where = range.getClientRects()[0];
  const kept = out.splice(from).filter(e => e.kind === 'element' || e.kind === 'shape');
  out.push(entry(el, clean(texts.map(t => t.text).join(' ')), where), ...kept);
};
const walk = (el, out) => {
  if (!shown(el) || clipped(el) || ['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD'].includes(el.tagName)) return;
  if (el instanceof SVGElement && SHAPES.has(el.tagName)) return shape(el, out);
  if (FORM.has(el.tagName) || editable(el)) { if (el.type !== 'hidden' && size(el) > 2) field(el, out); return; }
  if (native(el)) {
    const name = el.tagName === 'CANVAS' ? '' : itemName(el, clean(el.innerText));
    if (el.getClientRects().length) out.push(entry(el, name));
    return;
  }
  const display = getComputedStyle(el).display, block = !/^(inline|contents|table-cell|none)/.test(display);
  if (block) out.push({kind: 'break'});
  const from = out.length, named = el.tagName === 'LABEL' && el.control && shown(el.control);
  for (const child of el.childNodes) {
    if (child instanceof Element) walk(child, out);
    else if (child instanceof Text && !named) textOf(child, out);
  }
  if (!(el instanceof SVGElement) && loose(el)) {
    const icon = Math.max(el.offsetWidth, el.offsetHeight) <= 40;
    const inner = out.slice(from).filter(e => e.kind === 'element' || (e.kind === 'shape' && !icon));
    const text = clean(out.slice(from).filter(e => e.kind === 'text').map(t => t.text).join(' '));
    if (inner.length && hears(el)) own(el, out, from);
    else if (!inner.length && size(el) > 2 && text.length <= 80) {
      out.splice(from);
      out.push(entry(el, itemName(el, text)));
    }
  } else if (!el.childNodes.length && size(el) >= 4 && colour(getComputedStyle(el).backgroundColor))
    out.push(drawn(el, 'box', colour(getComputedStyle(el).backgroundColor)));
  if (display === 'table-cell') out.push({kind: 'cell'});
  if (block || el.tagName === 'BR') out.push({kind: 'break'});
};
const readText = () => {
  const out = [];
  walk(document.body, out);
  return out.map(({node, ...rest}) => rest);
};
const readDom = () => {
  const out = [], visit = (info, depth) => {
    const el = core.previousDOMInfo[info.ref];
    const said = clean(info.text) || '', value = info.value === undefined ? '' : String(info.value);
    const where = {x: Math.round(info.left + info.width / 2), y: Math.round(info.top + info.height / 2)};
    if (el) { const e = entry(el, said, el.getBoundingClientRect());
      out.push({...e, kind: 'dom', ref: info.ref, depth, tag: info.tag.toLowerCase(), mark: String(el.id || ''),
        value, ...where, w: Math.round(info.width), h: Math.round(info.height)}); }
    else out.push({kind: 'domtext', depth, text: said});
    info.children.forEach(child => visit(child, depth + 1));
  };
  visit(core.getDOMInfo(document.body), 0);
  return out;
};
"""
