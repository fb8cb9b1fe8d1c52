"use strict";
// Charts over uPlot: curves of one or more metrics of one or more runs, and stacked time per step.

const COLORS = {
  light: ["#1f6feb", "#c2410c", "#15803d", "#9333ea", "#b45309", "#0e7490", "#be185d", "#4d7c0f", "#475569", "#7f1d1d"],
  dark: ["#6cb6ff", "#fb923c", "#4ade80", "#c084fc", "#facc15", "#22d3ee", "#f472b6", "#a3e635", "#cbd5e1", "#fca5a5"],
};
const isDark = matchMedia("(prefers-color-scheme: dark)");
const color = (place) => COLORS[isDark.matches ? "dark" : "light"][place % 10];
const faint = (text, alpha) => text + Math.round(alpha * 255).toString(16).padStart(2, "0");
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Children may be lists: tens of thousands of them, spread into arguments, overflow the stack.
const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  for (const child of children.flat(2)) made.append(child);
  return made;
};

const number = (value) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  return value.toLocaleString("en", { maximumSignificantDigits: size >= 1000 ? 6 : 4 });
};

const duration = (seconds) => {
  const total = Math.round(seconds), pad = (part) => String(part).padStart(2, "0");
  if (total < 60) return `${total} s`;
  if (total < 3600) return `${Math.floor(total / 60)}:${pad(total % 60)} min`;
  return `${Math.floor(total / 3600)}:${pad(Math.floor((total % 3600) / 60))} h`;
};

// The exponential moving average, corrected for its start; a gap stays a gap.
const smoothed = (values, weight) => {
  let mean = 0, sum = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = weight * mean + (1 - weight) * value;
    sum = weight * sum + (1 - weight);
    return mean / sum;
  });
};

const curve = (run, key, byTime) => {
  if (!Object.hasOwn(run.series, key)) return null;
  const series = run.series[key];
  const axis = byTime ? run.elapsed : run.steps;
  return { x: series.i ? series.i.map((place) => axis[place]) : axis, y: series.v };
};

const axisStyle = (more) => ({
  stroke: css("--muted"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1, size: 4 },
  font: `11px ${css("--font")}`, ...more,
});

const xAxis = (byTime) => axisStyle({
  size: 28, space: 64, values: (_, ticks) => ticks.map((tick) => (byTime ? duration(tick) : tick.toLocaleString("en"))),
  ...(byTime ? {} : { incrs: [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1e3, 2e3, 2.5e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6] }),
});

const yAxis = (log) => axisStyle({
  size: 58, space: 28, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))),
  ...(log ? { filter: (_, ticks) => ticks.map((tick) => (Number.isInteger(Math.log10(tick)) || ticks.length < 12 ? tick : null)) } : {}),
});

// Of a metric that never changes: uPlot would give 0 to 100 for 0.
const yRange = (_, low, high) => {
  const edge = low === high ? Math.abs(low) / 10 : 0;
  return uPlot.rangeNum(low - edge, low === 0 && high === 0 ? 1 : high + edge, 0.1, true);
};

// A card with a heading, a plot and a legend that follows the cursor. `build` gives uPlot's options, data and legend,
// or null where there is nothing to draw.
class Card {
  constructor(title, build, { tall = false } = {}) {
    this.build = build;
    this.legend = element("div", { className: "legend" });
    this.plot = element("div", { className: tall ? "plot tall" : "plot" });
    this.root = element("figure", { className: "card" }, element("figcaption", { text: title }), this.plot, this.legend);
    this.title = title;
    this.dirty = true;
    this.seen = false;
    this.chart = null;
    Card.visible.observe(this.root);
    Card.sizes.observe(this.plot);
    this.root.card = this;
  }

  redraw() {
    this.dirty = true;
    if (this.seen) this.draw();
  }

  draw() {
    if (!this.dirty || !this.plot.clientWidth) return;
    this.dirty = false;
    this.chart?.destroy();
    this.chart = null;
    this.plot.replaceChildren();
    const built = this.build();
    if (built === null) {
      this.plot.append(element("p", { className: "muted", text: "Nothing to draw." }));
      this.legend.replaceChildren();
      return;
    }
    const { options, data, entries } = built, zoom = Card.zooms.get(this.title);
    this.entries = entries;
    this.chart = new uPlot({
      width: this.plot.clientWidth, height: this.plot.clientHeight, legend: { show: false }, padding: [8, 26, 0, 0],
      cursor: { sync: { key: "x", scales: ["x", null] }, points: { size: 6 }, drag: { x: true, y: false } },
      hooks: {
        setCursor: [(chart) => this.showAt(chart.cursor.idx)],
        setScale: [(chart, scale) => { if (scale === "x") this.keepZoom(chart); }],
      }, ...options,
    }, data, this.plot);
    if (zoom) this.chart.setScale("x", zoom);
    this.legend.replaceChildren(...entries.map((entry) => {
      entry.value = element("b");
      const swatch = element("i", { className: "swatch" });
      swatch.style.background = entry.color;
      return element("span", {}, swatch, element("span", { text: entry.label }), entry.value);
    }));
    this.showAt(null);
    this.plot.setAttribute("role", "img");
    const last = entries.map((entry) => `${entry.label} ${entry.value.textContent}`).join(", ");
    this.plot.setAttribute("aria-label", `${this.title}: last values ${last}`);
  }

  keepZoom({ scales: { x: { min, max } }, data: [x] }) {
    if (min > x[0] || max < x.at(-1)) Card.zooms.set(this.title, { min, max });
    else Card.zooms.delete(this.title);
  }

  showAt(place) {
    for (const entry of this.entries) {
      let at = place ?? entry.values.length - 1;
      while (at > 0 && (entry.values[at] === null || entry.values[at] === undefined)) at -= 1;
      entry.value.textContent = (entry.format ?? number)(entry.values[at]);
    }
  }

  end() {
    Card.visible.unobserve(this.root);
    Card.sizes.unobserve(this.plot);
    this.chart?.destroy();
  }
}
Card.zooms = new Map();  // of cards by title, which the next cards take over
Card.visible = new IntersectionObserver((changes) => {
  for (const { target, isIntersecting } of changes) {
    target.card.seen = isIntersecting;
    if (isIntersecting) target.card.draw();
  }
}, { rootMargin: "300px" });
Card.sizes = new ResizeObserver((changes) => {
  for (const { target } of changes) {
    const card = target.parentElement?.card;
    if (card?.chart && target.clientWidth) card.chart.setSize({ width: target.clientWidth, height: target.clientHeight });
    else if (card?.seen) card.draw();
  }
});

// Curves of `keys` of all visible runs, raw and smoothed, with the area between the keys of `band`.
const curves = (runs, keys, band, settings) => {
  const log = settings.log, tables = [], series = [{}], bands = [], entries = [];
  const positive = (values) => (log ? values.map((value) => (value > 0 ? value : null)) : values);
  const add = (x, values, options) => {
    tables.push([x, positive(values)]);
    series.push({ spanGaps: true, points: { show: false }, ...options });
    return series.length - 1;
  };
  runs.forEach((run) => keys.forEach((key, place) => {
    const found = curve(run, key, settings.byTime);
    if (!found || !found.y.length) return;
    const shade = color(runs.length > 1 ? run.place : place);
    const dash = runs.length > 1 && place > 0 ? [7 - 2 * Math.min(place, 2), 4] : [];
    const [low, high] = band.map((each) => curve(run, each, settings.byTime));
    if (low && high) {
      const edges = [high, low].map((edge) => add(edge.x, edge.y, { stroke: "transparent", width: 0 }));
      bands.push({ series: edges, fill: faint(shade, 0.12) });
    }
    const isSmooth = settings.smoothing > 0 && found.y.length >= 20;  // of few points each one counts
    const raw = isSmooth ? add(found.x, found.y, { stroke: faint(shade, 0.35), width: 1 }) : null;
    const shown = isSmooth ? smoothed(found.y, settings.smoothing) : found.y;
    const at = add(found.x, shown, { stroke: shade, width: 1.75, dash, points: { show: found.y.length < 40, size: 4, fill: shade } });
    const named = [runs.length > 1 ? run.name : "", keys.length > 1 || runs.length === 1 ? key : ""];
    const label = `${named.filter(Boolean).join(" ")}${dash.length ? " (dashed)" : ""}`;
    entries.push({ label, color: shade, at: raw ?? at });
  }));
  if (!entries.length) return null;
  const data = uPlot.join(tables);
  if (log && !data.slice(1).some((values) => values.some((value) => value > 0))) {
    return curves(runs, keys, band, { ...settings, log: false });
  }
  entries.forEach((entry) => { entry.values = data[entry.at]; });
  return {
    data, entries,
    options: {
      series, bands, axes: [xAxis(settings.byTime), yAxis(log)],
      scales: { x: { time: false }, y: log ? { distr: 3 } : { range: yRange } },
    },
  };
};

const clock = (time, all) => {
  const span = all.at(-1) - all[0];
  const more = span > 86400 ? { month: "short", day: "numeric" } : span < 900 ? { second: "2-digit" } : {};
  return new Date(1000 * time).toLocaleString("en-GB", { hour: "2-digit", minute: "2-digit", ...more });
};

// Curves of nodes by the time of day; a gap of minutes, as when a cluster was down, stays one.
const overTime = (found, isShare) => {
  const gap = 600, split = ({ x, y }) => {
    const at = [], values = [];
    x.forEach((time, place) => {
      if (place && time - x[place - 1] > gap) { at.push(time - 1); values.push(null); }
      at.push(time);
      values.push(y[place]);
    });
    return [at, values];
  };
  const data = uPlot.join(found.map(split));
  return {
    data,
    entries: found.map(({ label }, place) => ({ label, color: color(place), values: data[place + 1] })),
    options: {
      cursor: { sync: { key: "clock", scales: ["x", null] }, points: { size: 6 }, drag: { x: true, y: false } },
      series: [{}, ...found.map(({ y }, place) => ({ stroke: color(place), width: 1.5, points: { show: y.length < 40, size: 4, fill: color(place) } }))],
      axes: [axisStyle({ size: 28, space: 72, values: (_, ticks) => ticks.map((tick) => clock(tick, data[0])) }), yAxis(false)],
      scales: { x: { time: true }, y: { range: (_, __, high) => [0, isShare ? 100 : (high || 1) * 1.05] } },
    },
  };
};

// Mean seconds of each part of a step, one above the other.
const stackedTime = (run) => {
  const { steps, parts } = run.time, names = Object.keys(parts);
  if (!names.length) return null;
  const sums = steps.map(() => 0);
  const tops = names.map((name) => parts[name].map((seconds, place) => (sums[place] += seconds)));
  const shades = names.map((name, place) => (name === "other" ? css("--muted") : color(place)));
  const paths = steps.length > 60 ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.bars({ size: [0.9, 40], gap: 1 });
  const drawn = names.map((_, place) => place).reverse();  // the tallest first, so that each lower one covers it
  return {
    data: [steps, ...drawn.map((place) => tops[place])],
    entries: names.map((name, place) => ({
      label: name, color: shades[place], values: parts[name], format: (value) => `${number(value)} s`,
    })),
    options: {
      series: [{}, ...drawn.map((place) => ({
        stroke: shades[place], fill: shades[place], width: 0, paths, points: { show: false },
      }))],
      axes: [xAxis(false), yAxis(false)],
      scales: {
        x: { time: false, range: (_, low, high) => {
          const edge = low === steps[0] && high === steps.at(-1) ? Math.max(0.5, run.time.per_bar / 2) : 0;
          return [low - edge, high + edge];
        } },
        y: { range: (_, __, high) => [0, (high || 1) * 1.05] },
      },
    },
  };
};
