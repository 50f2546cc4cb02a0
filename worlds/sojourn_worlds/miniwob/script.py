"""The JavaScript that runs in every page before the page's own: a clock that only steps move, and a reader of the page.

The clock replaces `Date`, timers and animation frames, so that an episode's time passes by steps and not by how long a
model thinks: the same actions give the same pages on a slow machine. It differs from a real browser: CSS transitions
and animations are off, and a page that measures the mouse between two steps sees it stand still.
"""

from sojourn_worlds.miniwob.reader import LISTENERS, NAMES, READER
from sojourn_worlds.miniwob.seal import SEAL

CLOCK = r"""
const frame = window.requestAnimationFrame.bind(window);
const RealDate = window.Date, epoch = RealDate.UTC(2020, 0, 1, 12);
let now = epoch, serial = 0, timers = new Map();
const arm = (run, delay, period) => { timers.set(++serial, {at: now + delay, run, period}); return serial; };
const callable = (f, args) => typeof f === 'function' ? () => f.apply(window, args) : refuse;
const wait = ms => Math.max(0, Number(ms) || 0);
window.setTimeout = (f, ms, ...args) => arm(callable(f, args), wait(ms), 0);
window.setInterval = (f, ms, ...args) => arm(callable(f, args), Math.max(4, wait(ms)), Math.max(4, wait(ms)));
window.requestAnimationFrame = f => arm(() => f(now - epoch), 16 - (now - epoch) % 16, 0);
window.clearTimeout = window.clearInterval = window.cancelAnimationFrame = id => { timers.delete(Number(id)); };
window.Date = new Proxy(RealDate, {
  construct: (T, args) => args.length ? new T(...args) : new T(now),
  apply: () => new RealDate(now).toString(),
  get: (T, key) => key === 'now' ? () => now : T[key],
});
performance.now = () => now - epoch;
const advance = ms => {
  const end = now + ms;
  for (let count = 0; ; count++) {
    let id = 0, due = null;
    for (const [key, t] of timers) if (t.at <= end && (!due || t.at < due.at || (t.at === due.at && key < id)))
      { id = key; due = t; }
    if (!due) break;
    if (count === 100000) throw new Error('the timers of the page do not end');
    now = Math.max(now, due.at);
    if (due.period) due.at = now + due.period; else timers.delete(id);
    try { due.run(); } catch (error) { console.error(error); }
  }
  now = end;
};
"""

VERBS = r"""
const goal = () => { const said = core.getUtterance(); return (said.utterance || said).replace(/\s+/g, ' ').trim(); };
const read = mode => {
  if (over) return {done: true, raw: reward(), refused: refusals, goal: '', entries: []};
  nodes = new Map();
  return {done: false, raw: 0, refused: refusals, goal: goal(), entries: mode === 'dom' ? readDom() : readText()};
};
const painted = () => new Promise(done => frame(() => frame(() => done(true))));
const loaded = picture => picture.complete ? true : new Promise(done => {
  for (const type of ['load', 'error']) picture.addEventListener(type, () => done(true)); });
const addresses = () => [...document.styleSheets].flatMap(sheet => [...sheet.cssRules].flatMap(rule =>
  !/content: *url/.test(rule.cssText) ? [] : [...rule.cssText.matchAll(/url\("([^"]+)"\)/g)]
    .map(([, url]) => new URL(url, sheet.href || location.href).href)));
const ask = url => { const picture = new Image(); picture.src = url; return picture; };
let wanted = null, icons = [];
const settle = async () => {  // the icons are asked for each time: Chromium drops those of a page from its memory when
  wanted = wanted || addresses();  // another that has them too is closed, and what shows one next would be without
  for (let tries = 0; tries < 3; tries++) {
    icons = wanted.map(ask);
    const late = [...icons, ...document.images].filter(picture => !picture.complete);
    if (late.length) await Promise.all(late.map(loaded));
    if (icons.every(icon => icon.naturalWidth)) return true;
  }
  return false;
};
const DRAWN = ['backgroundImage', 'listStyleImage', 'borderImageSource'];
const pictured = async () => {  // Chromium asks for what a style sheet draws when something shows it first
  const shownNow = new Set();
  for (const el of document.querySelectorAll('*')) for (const part of [null, '::before', '::after']) {
    const style = getComputedStyle(el, part);
    for (const name of DRAWN) for (const [, url] of style[name].matchAll(/url\("([^"]+)"\)/g)) shownNow.add(url);
  }
  await Promise.all([...shownNow].map(ask).map(loaded));
  return painted();
};
const reset = async (seed, ms, mayPay, are, mode) => {
  if (!await settle()) throw new Error('an icon of the page could not be loaded');
  timers = new Map(); now = epoch;
  const anchor = document.body.insertBefore(document.createElement('a'), document.body.firstChild);
  anchor.tabIndex = -1; anchor.focus(); anchor.remove();  // Tab starts from the top again
  Math.seedrandom(seed);
  core.EPISODE_MAX_TIME = 1e8;
  begin(mayPay, are);
  core.startEpisodeReal();
  for (const id of HIDDEN) { const el = document.getElementById(id); if (el) el.setAttribute('aria-hidden', 'true'); }
  await settle();
  advance(ms);
  if (icons.length) await painted();
  return read(mode);
};
const unfocused = async () => {  // the browser takes the focus from what cannot have it any more when it paints next
  const el = document.activeElement;
  if (el && (el.matches(':disabled') || !el.checkVisibility({visibilityProperty: true}))) await painted();
};
const after = async (ms, mode) => {
  if (!over) { await settle(); await unfocused(); advance(ms); await unfocused(); }
  return read(mode);
};
const uncovered = (el, r) => {
  const centre = {x: r.left + r.width / 2, y: r.top + r.height / 2};
  const open = p => el.contains(document.elementFromPoint(p.x, p.y));
  if (open(centre)) return centre;
  let best = centre, far = Infinity;
  for (let y = r.top + 1; y < r.bottom; y += 2) for (let x = r.left + 1; x < r.right; x += 2) {
    const away = (x - centre.x) ** 2 + (y - centre.y) ** 2;
    if (away < far && open({x, y})) { best = {x, y}; far = away; }
  }
  return best;
};
const mark = labels => {
  document.querySelectorAll('.sojourn-mark').forEach(el => el.remove());
  const draw = (style, text) => {
    const el = document.createElement('div');
    el.className = 'sojourn-mark';
    el.style.cssText = 'position:fixed;z-index:2147483647;pointer-events:none;box-sizing:border-box;margin:0;' + style;
    el.textContent = text;
    document.documentElement.appendChild(el);
  };
  const paints = ['#c00000', '#0050c0', '#007000', '#8000a0', '#a05000'], tags = [];
  for (const [id, label] of labels) {
    const el = nodes.get(id), r = el.getClientRects()[0] || el.getBoundingClientRect();
    if (!r.width || r.right <= 0 || r.bottom <= 0 || r.left >= 160 || r.top >= 210) continue;
    const paint = paints[(Number(label) - 1) % paints.length];
    const box = `left:${r.left}px;top:${r.top}px;width:${r.width}px;height:${r.height}px;`;
    draw(`${box}border:1px solid ${paint};padding:0;`, '');
    tags.push([Math.max(0, Math.min(r.left, 148)), Math.max(0, r.top - 5), paint, label]);
  }
  for (const [x, y, paint, label] of tags)
    draw(`left:${x}px;top:${y}px;background:${paint};color:#fff;font:bold 8px/9px sans-serif;padding:0 1px;`, label);
  return true;
};
const lines = text => { const range = document.createRange(); range.selectNodeContents(text);
  return range.getClientRects(); };
const locate = id => {
  const el = nodes.get(id);
  if (!el || !el.isConnected) return null;
  el.scrollIntoView({block: 'nearest', inline: 'nearest', behavior: 'instant'});
  let r = el.getClientRects()[0] || el.getBoundingClientRect();
  const covered = [...el.querySelectorAll('*')].filter(c => ids.has(c) && nodes.get(ids.get(c)) === c);
  const text = covered.length && [...el.childNodes, ...[...el.querySelectorAll('*')].flatMap(c => [...c.childNodes])]
    .find(n => n instanceof Text && n.data.trim() && !covered.some(c => c.contains(n)));
  if (text) r = lines(text)[0] || r;
  return uncovered(el, r);
};
const changed = el => { for (const type of ['input', 'change']) el.dispatchEvent(new Event(type, {bubbles: true})); };
const choose = (id, index) => {
  const el = nodes.get(id);
  el.focus();
  if (el.multiple) el.options[index].selected = !el.options[index].selected; else el.selectedIndex = index;
  changed(el);
  return true;
};
const put = (id, value) => {
  const el = nodes.get(id), trial = el.cloneNode();
  trial.value = value;
  if (trial.value !== value) return false;
  el.focus(); el.value = value;
  changed(el);
  return true;
};
const empty = id => {
  const el = id ? nodes.get(id) : document.activeElement;
  if (el.select) el.select(); else if (el.isContentEditable) getSelection().selectAllChildren(el);
  return true;
};
const scrolls = el => el.scrollHeight > el.clientHeight + 3 && (el.tagName === 'TEXTAREA' || el.tagName === 'HTML'
  || /auto|scroll/.test(getComputedStyle(el).overflowY));
const scroll = async (id, sign) => {
  const all = [...document.querySelectorAll('#area, #area *, html')];
  const el = id ? nodes.get(id) : all.find(e => shown(e) && scrolls(e));
  if (!el) return false;
  const before = el.scrollTop;
  el.scrollTop = before + sign * Math.max(20, 0.8 * el.clientHeight);
  if (el.scrollTop === before) return false;
  return painted();
};
const selected = () => { const el = document.activeElement;
  return (el && el.selectionStart !== undefined && el.selectionStart !== null
    ? el.value.slice(el.selectionStart, el.selectionEnd) : String(getSelection())).slice(0, 10000); };
for (const type of ['click', 'submit']) window.addEventListener(type, event => {
  const link = event.target.closest && event.target.closest('a[href]');
  if (type === 'submit' || (link && !/^#/.test(link.getAttribute('href')))) event.preventDefault();
}, true);
const quiet = '*, *::before, *::after { transition: none !important; animation: none !important; '
  + 'caret-color: transparent; }';
document.addEventListener('DOMContentLoaded', () => {
  const style = document.createElement('style'); style.textContent = quiet; document.head.appendChild(style);
});
const verbs = {reset, after, read, locate, choose, put, empty, scroll, pictured, selected, mark, entries: readText};
if (window === window.top) Object.defineProperty(window, '__sojourn', {configurable: true,
  value: () => { delete window.__sojourn; taken = true; return verbs; }});  // the first to ask has them: `Seat.goto`
"""

INIT_SCRIPT = "(() => {" + SEAL + CLOCK + LISTENERS + NAMES + READER + VERBS + "})();"
