"use strict";
// Puts the page together. With `data-refresh-s` it asks its server for new data, and keeps what was chosen.

const GROUPS = ["critic", "actor", "response_length", "val-core", "val-aux", "training", "rollout_corr", "perf", "timing_s"];
const MAX_GROUPS = 100;
const settings = {
  smoothing: 0.6, byTime: false, log: false, spread: "sd", filter: "", hidden: new Set(),
  samples: { view: "list", list: { search: "", order: "step", step: "", page: 0 }, pairs: { search: "", order: "prompt", left: "", right: "", page: 0 } },
  configuration: [],
};
let latest = document.getElementById("data").textContent;
let report = JSON.parse(latest);
let cards = [], isFirstBuild = true;

const visible = () => ({
  runs: report.runs.filter((run) => !settings.hidden.has(run.place)),
  groups: report.groups.filter((group) => !settings.hidden.has(`group ${group.place}`)),
});
let frame = 0;
const redraw = () => {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => cards.forEach((card) => card.redraw()));
};
const made = (...words) => { const card = new Card(...words); cards.push(card); return card.root; };

const controls = () => {
  const smoothing = element("input", { id: "smoothing", type: "range", min: 0, max: 0.99, step: 0.01, value: settings.smoothing });
  const shown = element("output", { text: number(settings.smoothing) });
  smoothing.addEventListener("input", () => {
    settings.smoothing = Number(smoothing.value);
    shown.textContent = smoothing.value;
    redraw();
  });
  const axis = element("select", { id: "axis" }, element("option", { value: "step", text: "step" }), element("option", { value: "time", text: "time trained" }));
  axis.value = settings.byTime ? "time" : "step";
  axis.addEventListener("change", () => { settings.byTime = axis.value === "time"; Card.zooms.clear(); redraw(); });
  const log = element("input", { id: "log", type: "checkbox", checked: settings.log });
  log.addEventListener("change", () => { settings.log = log.checked; redraw(); });
  const spread = element("select", { id: "spread" }, Object.entries(SPREADS).map(([value, { label }]) => element("option", { value, text: label })));
  spread.value = settings.spread;
  spread.addEventListener("change", () => { settings.spread = spread.value; build(); });
  return element("div", { className: "controls sticky" },
    element("label", {}, "Smoothing ", smoothing, shown), element("label", {}, "X axis ", axis),
    report.groups.length ? element("label", {}, "Band ", spread) : [], element("label", {}, log, " Logarithmic"), element("span", { className: "muted hint", text: "Drag to zoom, double-click to reset" }));
};

const keyCharts = () => {
  const grid = element("div", { className: "grid" });
  for (const { title, keys, band } of report.panels) {
    const head = band.length === 2 ? `${title}, with least and greatest` : title;
    grid.append(made(head, () => curves(visible(), keys, band, settings)));
  }
  return grid.children.length ? [section("Key metrics", grid)] : [];
};

const timeCharts = () => {
  const grid = element("div", { className: "grid wide" });
  for (const run of report.runs.filter((each) => each.time.steps.length)) {
    const mean = run.time.per_bar > 1 ? `, mean of ${run.time.per_bar} steps a bar` : "";
    const head = `Seconds a step${report.runs.length > 1 ? `, ${run.name}` : ""}${mean}${warmUpText(run.time)}`;
    grid.append(made(head, () => (settings.hidden.has(run.place) ? null : stackedTime(run)), { tall: true }));
  }
  return grid.children.length ? [section("Time per step", grid, element("p", { className: "muted", text: "Other is what none of the timers of verl accounts for." }))] : [];
};

const usageCharts = () => {
  const runs = report.runs.filter((run) => run.usage.length), several = report.runs.length > 1;
  const grids = runs.map((run) => {
    const grid = element("div", { className: "grid" }, run.usage.map(({ title, curves: found }) => made(title, () => overTime(found, title.endsWith("(%)")))));
    return several ? element("details", { id: `usage-${run.place}` }, element("summary", { text: `During ${run.name}` }), grid) : grid;
  });
  const hasGpus = runs.some((run) => run.usage.some(({ title }) => title.startsWith("GPU")));
  return grids.length ? [section("Use of the nodes", grids, element("p", { className: "muted", text: `By time of day.${hasGpus ? " A GPU counts as busy while any kernel runs." : ""}` }))] : [];
};

const allMetrics = () => {
  const keys = [...new Set(report.runs.flatMap((run) => Object.keys(run.series)))].sort();
  const groups = Map.groupBy ? Map.groupBy(keys, (key) => key.split("/")[0])
    : keys.reduce((all, key) => { const name = key.split("/")[0]; if (all.has(name)) all.get(name).push(key); else all.set(name, [key]); return all; }, new Map());
  const rank = (name) => (GROUPS.indexOf(name) + 1 || GROUPS.length + 1);
  if (!keys.length) return [];
  const names = [...groups.keys()].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
  if (names.length > MAX_GROUPS) {
    groups.set("all others", names.splice(MAX_GROUPS).flatMap((name) => groups.get(name)));
    names.push("all others");
  }
  const box = element("input", { type: "search", placeholder: "Filter metrics", "aria-label": "Filter metrics", value: settings.filter });
  const folders = names.map((name) => {
    const grid = element("div", { className: "grid small" });
    const folder = element("details", { id: `group-${name}` }, element("summary", { text: `${name} (${groups.get(name).length})` }), grid);
    folder.addEventListener("toggle", () => {
      if (!folder.open || grid.children.length) return;
      for (const key of groups.get(name)) {
        grid.append(made(key, () => curves(visible(), [key], [], settings)));
        grid.lastChild.dataset.key = key;
      }
      filter();
    });
    return folder;
  });
  const filter = () => {
    settings.filter = box.value;
    const wanted = box.value.toLowerCase();
    folders.forEach((folder, place) => {
      const matches = groups.get(names[place]).filter((key) => key.toLowerCase().includes(wanted));
      folder.hidden = !matches.length;
      if (wanted && matches.length) folder.open = true;
      for (const card of folder.querySelectorAll("figure")) card.hidden = !card.dataset.key.toLowerCase().includes(wanted);
    });
  };
  box.addEventListener("input", filter);
  filter();
  return [section("All metrics", box, folders)];
};

const configuration = () => {
  const different = report.differences;
  const children = [];
  if (different) {
    children.push(different.rows.length ? table(different.columns, different.rows, { caption: "What differs between the runs", className: "keys" })
      : element("p", { text: "The configurations that are known do not differ." }));
  }
  for (const run of report.runs) {
    const rows = Object.entries(run.config);
    if (!rows.length) continue;
    const chosen = settings.configuration[run.place] ??= { search: "" };
    children.push(element("details", { id: `configuration-${run.place}` }, element("summary", { text: `Configuration of ${run.name} (${rows.length} keys)` }),
      searchable(rows, (found) => table(["key", "value"], found, { className: "keys" }), "Filter keys and values", chosen)));
  }
  return children.length ? [section("Configuration", children)] : [];
};

// Tables by title; equal ones of several runs, such as the nodes of one cluster, once. What a node needs "now" was asked
// a moment later for each run, and does not count.
const facts = () => {
  const titles = [...new Set(report.runs.flatMap((run) => run.tables.map((each) => each.title)))];
  return titles.map((title) => {
    const owners = new Map();
    for (const run of report.runs) {
      for (const each of run.tables.filter((other) => other.title === title)) {
        const lasting = each.columns.map((column) => !column.endsWith(" now"));
        const key = JSON.stringify([each.columns, each.rows.map((row) => row.filter((_, place) => lasting[place]))]);
        if (!owners.has(key)) owners.set(key, { names: [], ...each });
        owners.get(key).names.push(run.name);
      }
    }
    return section(title, [...owners.values()].map(({ names, columns, rows }) => (
      table(columns, rows, { caption: report.runs.length > 1 ? names.join(", ") : "", label: title }))));
  });
};

const samples = () => (report.runs.some((run) => run.samples.length) ? [section("Samples", samplesOf(report.runs, settings.samples))] : []);

const build = () => {
  const at = scrollY, focused = document.activeElement?.id;
  const open = [...document.querySelectorAll("details[id]")].filter((each) => each.open).map((each) => each.id);
  cards.forEach((card) => card.end());
  cards = [];
  report.runs.forEach((run, place) => { run.place = place; });
  report.groups.forEach((group, place) => {
    group.place = group.shade = place;
    for (const member of group.runs) report.runs[member].shade = place;
  });
  report.runs.filter((run) => !grouped(run)).forEach((run, place) => { run.shade = report.groups.length + place; });
  const title = report.runs.length === 1 ? report.runs[0].name : `${report.runs.length} runs`;
  document.title = `${title} · cloudrl report`;
  const contents = element("nav", { className: "contents", "aria-label": "Contents" });
  const page = element("main", { id: "page" }, element("header", {}, element("h1", { text: title })),
    contents, about(), causes(), overview(), notes(), report.runs.some((run) => run.steps.length) ? controls() : [],
    keyCharts(), timeCharts(), usageCharts(), configuration(), facts(), allMetrics(), samples(), logs());
  for (const heading of page.querySelectorAll("section[id] > h2")) {
    contents.append(element("a", { href: `#${heading.parentElement.id}`, text: heading.textContent }));
  }
  document.getElementById("page").replaceWith(page);
  for (const id of open) {
    const folder = document.getElementById(id);
    if (folder) folder.open = true;
    folder?.dispatchEvent(new Event("toggle"));  // its charts are made now, so that the page is as long as it was
  }
  isFirstBuild = false;
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  if (at) scrollTo(0, at);
};

// Whether somebody types, drags a slider or has a list open: what is rebuilt then is lost.
const OPEN_LIST = CSS.supports("selector(select:open)") ? "select:open" : "select";
const busy = () => document.activeElement?.matches(`input[type=search], ${OPEN_LIST}`) || document.querySelector("input:active");

const refresh = async (every) => {
  if (!busy() && !document.hidden) {
    try {
      const answer = await fetch("data.json", { cache: "no-store" });
      if (answer.ok) {
        const text = await answer.text();
        if (text !== latest && !busy()) {
          latest = text;
          report = JSON.parse(text);
          build();
        }
      }
      document.body.classList.toggle("stale", !answer.ok);
    } catch {
      document.body.classList.add("stale");
    }
  }
  setTimeout(refresh, every, every);
};

document.addEventListener("change", ({ target }) => { if (target.matches("select")) target.blur(); });
isDark.addEventListener("change", build);
build();
document.body.dataset.drawn = String(Math.round(performance.now()));
if (document.body.dataset.refreshS) setTimeout(refresh, 1000 * Number(document.body.dataset.refreshS), 1000 * Number(document.body.dataset.refreshS));
