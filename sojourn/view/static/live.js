// Follows the server: a changed page is fetched again and swapped in; keys, chart hints, theme. Pages work without it.
"use strict";

const root = document.documentElement;
const kept = localStorage.getItem("theme");
if (kept) root.dataset.theme = kept;

function flipTheme() {
  const dark = getComputedStyle(root).colorScheme === "dark" ||
    (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
}

// ---- going from page to page: the new page is fetched and put in the place of the old one

const FILE = /^\/(runs|play)\/[^/]+\/(json|text|blobs|export)\//;
const served = "mark" in document.body.dataset; // a report is one file
let visits = 0;

const parsed = (text) => new DOMParser().parseFromString(text, "text/html");

// `kept` is where the page was scrolled to, of one that is come back to.
async function visit(address, kept = null) {
  const mine = ++visits;
  root.classList.add("waiting");
  let page, answer;
  try {
    answer = await fetch(address);
    page = answer.headers.get("content-type").startsWith("text/html") ? parsed(await answer.text()) : null;
  } catch { page = null; }
  if (mine !== visits) return;
  root.classList.remove("waiting");
  if (!page) { location.href = address; return; }
  const hash = new URL(address, location.href).hash;
  if (kept === null) {
    history.replaceState({ scroll: scrollY }, "");
    history.pushState({ scroll: 0 }, "", answer.url + hash);
  }
  show(page);
  if (kept === null && hash) document.getElementById(hash.slice(1))?.scrollIntoView();
  else scrollTo(0, kept ?? 0);
}

function show(page) {
  document.title = page.title;
  document.head.querySelectorAll("link[rel=prev], link[rel=next]").forEach((one) => one.remove());
  document.head.append(...page.head.querySelectorAll("link[rel=prev], link[rel=next]"));
  Object.assign(document.body.dataset, page.body.dataset);
  for (const part of ["header", "main"]) document.querySelector(part).replaceWith(document.adoptNode(page.querySelector(part)));
  document.getElementById("main").focus({ preventScroll: true });
  follow();
}

function turnTo(href, apart) {
  const address = new URL(href, location.href);
  if (apart) window.open(address);
  else if (!served || address.origin !== location.origin || FILE.test(address.pathname)) location.href = address;
  else visit(address.href);
}

function link(event) {
  const one = event.target.closest?.("a[href]");
  if (!one || !served || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const address = new URL(one.getAttribute("href"), location.href);
  if (address.hash && address.href.split("#")[0] === location.href.split("#")[0]) return;
  event.preventDefault();
  turnTo(address.href, false);
}

addEventListener("submit", (event) => {
  const form = event.target;
  if (!served || form.method !== "get") return;
  event.preventDefault();
  const address = new URL(form.getAttribute("action") || location.pathname, location.href);
  address.search = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
  visit(address.href);
});

if (served) {
  history.scrollRestoration = "manual";
  addEventListener("popstate", (event) => visit(location.href, event.state?.scroll ?? 0));
}

// ---- following

let stream = null, asked = false, again = false;

async function refresh() {
  if (asked) { again = true; return; }
  asked = true;
  const at = visits;
  try {
    const page = parsed(await (await fetch(location.href)).text());
    const fresh = page.getElementById("main");
    if (fresh && at === visits && !busy()) swap(document.getElementById("main"), fresh);
  } catch { /* the server is gone; the stream says so */ }
  asked = false;
  if (again) { again = false; refresh(); }
}

// A page is not swapped under somebody who chooses or types.
function busy() {
  const at = document.activeElement;
  return (at && at.matches("main input, main select")) ||
    document.querySelector("main input[type=checkbox]:checked:not([data-submit])") !== null;
}

function swap(old, fresh) {
  const opened = [...old.querySelectorAll("details")].map((one) => one.open), chosen = current()?.dataset.href;
  const before = [...old.children], after = [...document.adoptNode(fresh).children];
  if (before.length === after.length) before.forEach((one, at) => { if (one.outerHTML !== after[at].outerHTML) one.replaceWith(after[at]); });
  else old.replaceChildren(...after);
  old.querySelectorAll("details").forEach((one, at) => { if (opened[at] !== undefined) one.open = opened[at]; });
  if (chosen && !current()) rows().find((one) => one.dataset.href === chosen)?.classList.add("chosen");
}

function follow() {
  stream?.close();
  const { run, live, mark } = document.body.dataset, pulse = document.getElementById("pulse");
  if (live !== "1") { pulse.hidden = true; return; }
  stream = new EventSource("/events?" + new URLSearchParams({ run, mark }));
  stream.onopen = () => { pulse.className = "pulse on"; pulse.title = "follows the run"; };
  stream.onmessage = refresh;
  stream.onerror = () => { pulse.className = "pulse lost"; pulse.title = "the viewer does not answer"; };
}

addEventListener("pagehide", () => stream?.close());
addEventListener("pageshow", (event) => { if (event.persisted) follow(); });

// ---- keys

const rows = () => [...document.querySelectorAll("[data-row]")];
const current = () => document.querySelector("[data-row].chosen");

function move(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(current());
  const next = all[Math.min(all.length - 1, Math.max(0, at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by))];
  current()?.classList.remove("chosen");
  next.classList.add("chosen");
  next.scrollIntoView({ block: "nearest" });
}

function go(selector) {
  const found = document.querySelector(selector);
  if (found) turnTo(found.href, false);
}

const press = (selector) => document.querySelector(selector)?.click();

async function copy(address) {
  const button = document.querySelector("[data-copy]");
  let told = "copied";
  try { await navigator.clipboard.writeText(await (await fetch(address)).text()); } catch { told = "the browser refuses: open JSON"; }
  button.textContent = told;
  setTimeout(() => { button.textContent = "copy"; }, 1500);
}

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  Enter: () => { const href = current()?.dataset.href; if (href) turnTo(href, false); },
  h: () => go("header a[rel=up], main a[rel=up]"),
  "[": () => go("link[rel=prev]"),
  "]": () => go("link[rel=next], main a[rel=next]"),
  g: () => turnTo("/", false),
  d: flipTheme,
  t: () => document.querySelector(".controls [data-none].on") ? press("[data-key=t]") : press(".controls [data-none]"),
  c: () => { const one = document.querySelector("[data-copy]"); if (one) copy(one.dataset.copy); },
  "/": () => { const field = document.querySelector("input[type=search]"); field?.focus(); field?.select(); },
  "?": () => document.getElementById("help").showModal(),
};

addEventListener("keydown", (event) => {
  const writing = event.target.matches("input, textarea, select");
  if (event.key === "Escape" && writing) { event.target.blur(); return; }
  if (writing || event.ctrlKey || event.metaKey || event.altKey || document.getElementById("help").open) return;
  if (event.key === "Enter" && event.target.matches("a, button, summary")) return;
  if (KEYS[event.key]) { event.preventDefault(); KEYS[event.key](); }
});

addEventListener("click", (event) => {
  const target = event.target;
  if (target.id === "theme") flipTheme();
  else if (target.id === "keys") KEYS["?"]();
  else if (target.dataset?.copy) copy(target.dataset.copy);
  else if (!target.closest("a, input, button, select, label, summary") && !String(getSelection())) {
    const href = target.closest("[data-href]")?.dataset.href;
    if (href) turnTo(href, event.ctrlKey || event.metaKey);
  } else link(event);
});

addEventListener("change", (event) => { if (event.target.dataset.submit !== undefined) event.target.form.requestSubmit(); });

// ---- charts

const LEFT = 46, RIGHT = 10, WIDTH = 420, read = new WeakMap();

function short(value) {
  return value === null ? "-" : Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

function hint(event) {
  const svg = event.target.closest?.(".chart svg");
  document.querySelectorAll(".tip, .cross").forEach((one) => one.remove());
  if (!svg) return;
  if (!read.has(svg)) read.set(svg, { curves: JSON.parse(svg.dataset.curves), area: JSON.parse(svg.dataset.area) });
  const box = svg.getBoundingClientRect(), { curves, area } = read.get(svg);
  const inside = ((event.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
  if (inside < 0 || inside > 1) return;
  const x = area[0] + inside * (area[1] - area[0]);
  const lines = [];
  let near = null;
  for (const curve of curves) {
    let best = 0;
    curve.x.forEach((at, index) => { if (Math.abs(at - x) < Math.abs(curve.x[best] - x)) best = index; });
    near = near === null || Math.abs(curve.x[best] - x) < Math.abs(near - x) ? curve.x[best] : near;
    lines.push(curve.name + "  " + short(curve.y[best]));
  }
  const cross = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const place = LEFT + (WIDTH - LEFT - RIGHT) * (near - area[0]) / (area[1] - area[0]);
  for (const [name, value] of [["x1", place], ["x2", place], ["y1", 12], ["y2", 166], ["class", "cross"]]) cross.setAttribute(name, value);
  svg.append(cross);
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.textContent = "step " + near + "\n" + lines.join("\n");
  svg.parentElement.append(tip);
  tip.style.left = Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth) + "px";
  tip.style.top = Math.max(0, event.clientY - box.top) + "px";
}

addEventListener("mousemove", hint, { passive: true });

follow();
