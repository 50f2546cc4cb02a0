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

// ---- following

let asked = false, again = false;

async function refresh() {
  if (asked) { again = true; return; }
  asked = true;
  try {
    const answer = await fetch(location.href, { headers: { "X-Live": "1" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("main"), old = document.getElementById("main");
    if (fresh && old && fresh.innerHTML !== old.innerHTML && !busy()) swap(old, fresh);
  } catch { /* the server is gone; the stream says so */ }
  asked = false;
  if (again) { again = false; refresh(); }
}

// A page is not swapped under somebody who chooses or types.
function busy() {
  const at = document.activeElement;
  return (at && at.matches("main input, main select")) || document.querySelector("main input[type=checkbox]:checked") !== null;
}

function swap(old, fresh) {
  const opened = [...old.querySelectorAll("details")].map((one) => one.open);
  const chosen = rows().indexOf(current());
  old.replaceChildren(...document.adoptNode(fresh).childNodes);
  old.querySelectorAll("details").forEach((one, at) => { if (opened[at] !== undefined) one.open = opened[at]; });
  if (chosen >= 0) rows()[chosen]?.classList.add("chosen");
}

function follow() {
  const run = document.body.dataset.run, pulse = document.getElementById("pulse");
  if (document.body.dataset.live !== "1") { pulse.hidden = true; return; }
  const stream = new EventSource("/events" + (run ? "?run=" + encodeURIComponent(run) : ""));
  stream.onopen = () => { pulse.className = "pulse on"; refresh(); };
  stream.onmessage = refresh;
  stream.onerror = () => { pulse.className = "pulse lost"; pulse.title = "the viewer does not answer"; };
  addEventListener("pagehide", () => stream.close());
}

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
  if (found) location.href = found.href;
}

async function copy(address) {
  await navigator.clipboard.writeText(await (await fetch(address)).text());
  const button = document.querySelector("[data-copy]");
  if (button) { button.textContent = "copied"; setTimeout(() => { button.textContent = "copy"; }, 1500); }
}

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  Enter: () => { const href = current()?.dataset.href; if (href) location.href = href; },
  h: () => go("header a[rel=up], main a[rel=up]"),
  "[": () => go("link[rel=prev]"),
  "]": () => go("link[rel=next], main a[rel=next]"),
  g: () => { location.href = "/"; },
  d: flipTheme,
  t: () => { const on = document.querySelector(".controls a.on[data-key]"); (on ? document.querySelector(".controls a:not([data-key])") : document.querySelector("[data-key=t]"))?.click(); },
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
    if (href) location.href = href;
  }
});

addEventListener("change", (event) => { if (event.target.dataset.submit !== undefined) event.target.form.submit(); });

// ---- charts

const LEFT = 46, RIGHT = 10, WIDTH = 420;

function short(value) {
  return value === null ? "-" : Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

function hint(event) {
  const svg = event.target.closest?.(".chart svg");
  document.querySelectorAll(".tip, .cross").forEach((one) => one.remove());
  if (!svg) return;
  const box = svg.getBoundingClientRect(), area = JSON.parse(svg.dataset.area);
  const inside = ((event.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
  if (inside < 0 || inside > 1) return;
  const x = area[0] + inside * (area[1] - area[0]);
  const lines = [];
  let near = null;
  for (const curve of JSON.parse(svg.dataset.curves)) {
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
