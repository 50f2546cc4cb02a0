"""The JavaScript that seals a page before its own scripts run: what an agent types never becomes script.

Four protections, each of which would suffice. The page's policy (`policy`) refuses script that is not the page's own. A
default policy of Trusted Types takes handlers, scripts and addresses of scripts out of every string that a page turns
into markup. What outlives an episode (storage, workers, popups) is deleted from the window, of frames too, and
navigation is refused. And the reward is kept in a closure: `core.endEpisode` accepts it only from the page's own
scripts (no other function may be on the stack), so what is written to the page's globals has no effect.

The last does not hold against script that runs in the page and calls one of the page's own functions from a timer, as
nothing tells that call from the page's own; no such script runs, as long as one of the first two holds. Markup that
does nothing (`<b>`) is not refused: the page itself allows it, and it wins nothing.
"""

SEAL = r"""
let refusals = 0, forgiven = 0, taken = false;
const refuse = () => { refusals++; };
window.addEventListener('securitypolicyviolation', () => { if (forgiven) forgiven--; else refuse(); }, true);
if (window.navigation) navigation.addEventListener('navigate', event => {
  if (!event.destination.sameDocument && event.cancelable) { event.preventDefault(); refuse(); }
});
for (const name of ['open', 'localStorage', 'sessionStorage', 'indexedDB', 'caches', 'cookieStore', 'Worker',
  'SharedWorker', 'WebSocket', 'WebTransport', 'EventSource', 'BroadcastChannel', 'RTCPeerConnection',
  'webkitRTCPeerConnection', 'sharedStorage', 'webkitRequestFileSystem']) delete window[name];
delete Document.prototype.cookie;
for (const name of ['serviceWorker', 'storage', 'locks', 'sendBeacon', 'storageBuckets', 'webkitPersistentStorage',
  'webkitTemporaryStorage']) delete Navigator.prototype[name];
const SUSPECT = new RegExp('<(script|iframe|frame|object|embed|meta|base|link|template|portal)'
  + '|[^a-z]on[a-z]+\\s*=|srcdoc|formaction|script\\s*:|xlink|&#', 'i');
const DROPPED = 'script, frame, frameset, object, embed, meta, base, portal, template, link[href], link[rel]';
const ADDRESS = /^(href|src|action|formaction|data|xlink:href|to|from|values)$/;
const harmless = ({name, value}, tag) => !/^on/.test(name) && name !== 'srcdoc' && !(tag === 'IFRAME' && name === 'src')
  && !(ADDRESS.test(name) && /^(javascript|vbscript|data:(?!image\/))/i.test(value.replace(/[\x00-\x20]/g, '')));
const plain = trustedTypes.createPolicy('sojourn', {createHTML: html => html});
const cleaned = html => {
  const holder = document.createElement('template');
  let changed = false;
  holder.innerHTML = plain.createHTML(html);
  for (const el of holder.content.querySelectorAll(DROPPED)) { el.remove(); changed = true; }
  for (const el of holder.content.querySelectorAll('*')) for (const attribute of [...el.attributes])
    if (!harmless(attribute, el.tagName)) { el.removeAttributeNode(attribute); changed = true; }
  if (!changed) return html;
  refuse();
  return holder.innerHTML;
};
const emptied = text => {  // before the agent acts, it is the page's own: jscolor reads its options so,
  if (taken) { refuse(); return ''; }
  if (text === 't') forgiven++;  // and jQuery sets a handler, "t", to see whether it can
  return text;
};
trustedTypes.createPolicy('default',
  {createHTML: html => SUSPECT.test(html) ? cleaned(html) : html, createScript: emptied, createScriptURL: () => null});

let game = null, over = true, paid = 0, payers = {}, known = {}, looking = false;
Object.defineProperty(Error, 'stackTraceLimit', {value: 100, writable: false, configurable: false});
Object.defineProperty(Error, 'prepareStackTrace', {get: () => looking ? (_, sites) => sites : undefined, set: refuse});
const callers = () => {
  looking = true;
  const sites = new Error().stack;
  looking = false;
  return sites;
};
const honest = sites => {  // without a method that the page could have changed; the first two are ours
  let first = true;
  for (let at = 2; at < sites.length; at++) {
    const site = sites[at], hash = site.getScriptHash();
    if (site.getFileName() === '' && !site.isEval()) break;  // ours, or the driver's
    if (!(hash in (first ? payers : known)) && (first || !site.isNative() || site.isEval())) return false;
    first = false;
  }
  return !first;
};
const table = names => { const made = Object.create(null); for (const name of names) made[name] = true; return made; };
const begin = (mayPay, are) => { payers = table(mayPay); known = table(are); over = false; paid = 0; };
const reward = () => paid >= -1 ? (paid <= 1 ? paid : 1) : -1;
let ending = null;
const endEpisode = function (amount, ...rest) {
  if (over) return;
  if (!honest(callers())) return refuse();
  over = true;
  paid = +amount;
  ending.call(game, amount, ...rest);
};
Object.defineProperty(window, 'core', {get: () => game, set: made => {
  if (game) return refuse();
  game = made;
  Object.defineProperty(game, 'endEpisode',
    {get: () => endEpisode, set: real => { if (ending) refuse(); else ending = real; }});
}});
"""
