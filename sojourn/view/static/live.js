// Updates pages while a run goes on, and adds keyboard shortcuts, chart hints and the theme. Pages work without it.
"use strict";

const root = document.documentElement;
const savedTheme = localStorage.getItem("theme");
if (savedTheme) root.dataset.theme = savedTheme;

function flipTheme() {
  const dark = getComputedStyle(root).colorScheme === "dark" ||
    (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
}

// ---- navigation: a new page is fetched, and replaces the content of the old one

const FILE = /^\/(runs|play)\/[^/]+\/(json|text|blobs|export)\//;
const served = "fingerprint" in document.body.dataset; // false for a report, which is one file without a server
let visits = 0;

const parse = (text) => new DOMParser().parseFromString(text, "text/html");

// `scroll` is the saved position of a page in the history; null for a page that is opened anew.
async function visit(address, scroll = null) {
  const visitNumber = ++visits;
  root.classList.add("waiting");
  let page, answer;
  try {
    answer = await fetch(address);
    page = answer.headers.get("content-type").startsWith("text/html") ? parse(await answer.text()) : null;
  } catch { page = null; }
  if (visitNumber !== visits) return; // another page was asked for in the meantime
  root.classList.remove("waiting");
  if (!page) { location.href = address; return; }
  const hash = new URL(address, location.href).hash;
  if (scroll === null) {
    history.replaceState({ scroll: scrollY }, "");
    history.pushState({ scroll: 0 }, "", answer.url + hash);
  }
  show(page);
  if (scroll === null && hash) document.getElementById(hash.slice(1))?.scrollIntoView();
  else scrollTo(0, scroll ?? 0);
}

function show(page) {
  document.title = page.title;
  document.head.querySelectorAll("link[rel=prev], link[rel=next]").forEach((element) => element.remove());
  document.head.append(...page.head.querySelectorAll("link[rel=prev], link[rel=next]"));
  Object.assign(document.body.dataset, page.body.dataset);
  for (const part of ["header", "main"]) document.querySelector(part).replaceWith(document.adoptNode(page.querySelector(part)));
  document.getElementById("main").focus({ preventScroll: true });
  followUpdates();
}

function navigate(href, inNewTab) {
  const address = new URL(href, location.href);
  if (inNewTab) window.open(address);
  else if (!served || address.origin !== location.origin || FILE.test(address.pathname)) location.href = address;
  else visit(address.href);
}

function followLink(event) {
  const anchor = event.target.closest?.("a[href]");
  if (!anchor || !served || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const address = new URL(anchor.getAttribute("href"), location.href);
  if (address.hash && address.href.split("#")[0] === location.href.split("#")[0]) return;
  event.preventDefault();
  navigate(address.href, false);
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

// ---- updates: the server says when a run has changed, and the page is fetched again

let stream = null, refreshing = false, refreshAgain = false;

async function refresh() {
  if (refreshing) { refreshAgain = true; return; }
  refreshing = true;
  const visitNumber = visits;
  try {
    const page = parse(await (await fetch(location.href)).text());
    const fresh = page.getElementById("main");
    if (fresh && visitNumber === visits && !busy()) {
      swap(document.getElementById("main"), fresh);
      document.body.dataset.fingerprint = page.body.dataset.fingerprint;
    }
  } catch { /* the server does not answer, which the event stream reports */ }
  refreshing = false;
  if (refreshAgain) { refreshAgain = false; refresh(); }
}

// A page is not replaced while a person types in it or has selected something.
function busy() {
  const focused = document.activeElement;
  return (focused && focused.matches("main input, main select, main textarea")) ||
    [...document.querySelectorAll("main textarea")].some((area) => area.value !== area.defaultValue) ||
    document.querySelector("main input[type=checkbox]:checked:not([data-submit])") !== null;
}

function swap(old, fresh) {
  const opened = [...old.querySelectorAll("details")].map((element) => element.open), chosen = current()?.dataset.href;
  const before = [...old.children], after = [...document.adoptNode(fresh).children];
  if (before.length === after.length) before.forEach((element, at) => { if (element.outerHTML !== after[at].outerHTML) element.replaceWith(after[at]); });
  else old.replaceChildren(...after);
  old.querySelectorAll("details").forEach((element, at) => { if (opened[at] !== undefined) element.open = opened[at]; });
  if (chosen && !current()) rows().find((row) => row.dataset.href === chosen)?.classList.add("chosen");
}

function followUpdates() {
  stream?.close();
  const { run, live, fingerprint } = document.body.dataset, pulse = document.getElementById("pulse");
  pulse.hidden = !live;
  if (!live || document.hidden) return; // a browser has six connections to a server, for all tabs together
  stream = new EventSource("/events?" + new URLSearchParams({ run, live, fingerprint }));
  stream.onopen = () => { pulse.className = "pulse on"; pulse.title = "this page updates while the run goes on"; };
  stream.onmessage = refresh;
  stream.onerror = () => { pulse.className = "pulse lost"; pulse.title = "the viewer does not answer: is `sojourn view` still running?"; };
}

addEventListener("pagehide", () => stream?.close());
document.addEventListener("visibilitychange", followUpdates);
addEventListener("pageshow", (event) => { if (event.persisted) followUpdates(); });

// ---- keys

const rows = () => [...document.querySelectorAll("[data-row]")];
const current = () => document.querySelector("[data-row].chosen");

function selectRow(offset) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(current());
  const next = all[Math.min(all.length - 1, Math.max(0, at < 0 ? (offset > 0 ? 0 : all.length - 1) : at + offset))];
  current()?.classList.remove("chosen");
  next.classList.add("chosen");
  next.scrollIntoView({ block: "nearest" });
}

function openLink(selector) {
  const link = document.querySelector(selector);
  if (link) navigate(link.href, false);
}

const click = (selector) => document.querySelector(selector)?.click();

async function copy(address) {
  const button = document.querySelector("[data-copy]");
  let label = "copied";
  try { await navigator.clipboard.writeText(await (await fetch(address)).text()); } catch { label = "the browser does not allow copying: open JSON instead"; }
  button.textContent = label;
  setTimeout(() => { button.textContent = "copy"; }, 1500);
}

const KEYS = {
  j: () => selectRow(1),
  k: () => selectRow(-1),
  Enter: () => {
    const row = current(), href = row?.dataset.href ?? row?.querySelector("a[href]")?.getAttribute("href");
    if (href) navigate(href, false);
  },
  h: () => openLink("header a[rel=up], main a[rel=up]"),
  "[": () => openLink("link[rel=prev]"),
  "]": () => openLink("link[rel=next], main a[rel=next]"),
  g: () => navigate("/", false),
  d: flipTheme,
  t: () => document.querySelector(".controls [data-none].on") ? click("[data-key=t]") : click(".controls [data-none]"),
  c: () => { const button = document.querySelector("[data-copy]"); if (button) copy(button.dataset.copy); },
  "/": () => { const field = document.querySelector("input[type=search]"); field?.focus(); field?.select(); },
  "?": () => document.getElementById("help").showModal(),
};

addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "Escape" && typing) { event.target.blur(); return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.getElementById("help").open) return;
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
    if (href) navigate(href, event.ctrlKey || event.metaKey);
  } else followLink(event);
});

addEventListener("change", (event) => { if (event.target.dataset.submit !== undefined) event.target.form.requestSubmit(); });

// ---- charts

const LEFT = 46, RIGHT = 10, WIDTH = 420, chartData = new WeakMap();

function format(value) {
  return value === null ? "-" : Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

function hint(event) {
  const svg = event.target.closest?.(".chart svg");
  document.querySelectorAll(".tip, .cross").forEach((element) => element.remove());
  if (!svg) return;
  if (!chartData.has(svg)) chartData.set(svg, { curves: JSON.parse(svg.dataset.curves), area: JSON.parse(svg.dataset.area) });
  const box = svg.getBoundingClientRect(), { curves, area } = chartData.get(svg);
  const inside = ((event.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
  if (inside < 0 || inside > 1) return;
  const x = area[0] + inside * (area[1] - area[0]);
  const lines = [];
  let near = null;
  for (const curve of curves) {
    let best = 0;
    curve.x.forEach((at, index) => { if (Math.abs(at - x) < Math.abs(curve.x[best] - x)) best = index; });
    near = near === null || Math.abs(curve.x[best] - x) < Math.abs(near - x) ? curve.x[best] : near;
    lines.push(curve.name + "  " + format(curve.y[best]));
  }
  const cross = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const place = LEFT + (WIDTH - LEFT - RIGHT) * (near - area[0]) / (area[1] - area[0]);
  for (const [name, value] of [["x1", place], ["x2", place], ["y1", 12], ["y2", 166], ["class", "cross"]]) cross.setAttribute(name, value);
  svg.append(cross);
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.textContent = svg.dataset.x + " " + near + "\n" + lines.join("\n");
  svg.parentElement.append(tip);
  tip.style.left = Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth) + "px";
  tip.style.top = Math.max(0, event.clientY - box.top) + "px";
}

addEventListener("mousemove", hint, { passive: true });

followUpdates();
