"use strict";
// Cards with a chart of uPlot in each: axes, legend, zoom. What they draw is made in curves.js.

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

// As everywhere else: cloudrl.units.duration_text.
const duration = (seconds) => {
  const total = Math.round(seconds), pad = (part) => String(part).padStart(2, "0");
  const [days, hours, minutes] = [86400, 3600, 60].map((unit) => Math.floor(total / unit));
  if (days) return `${days} d ${pad(hours % 24)} h`;
  if (hours) return `${hours} h ${pad(minutes % 60)} min`;
  return minutes ? `${minutes} min ${pad(total % 60)} s` : `${total} s`;
};

// A tick of an axis has less room.
const tickDuration = (seconds) => {
  const total = Math.round(seconds), pad = (part) => String(part).padStart(2, "0");
  if (total < 60) return `${total} s`;
  if (total < 3600) return `${Math.floor(total / 60)}:${pad(total % 60)} min`;
  return `${Math.floor(total / 3600)}:${pad(Math.floor((total % 3600) / 60))} h`;
};

const axisStyle = (more) => ({
  stroke: css("--muted"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1, size: 4 },
  font: `11px ${css("--font")}`, ...more,
});

const xAxis = (byTime) => axisStyle({
  size: 28, space: 64, values: (_, ticks) => ticks.map((tick) => (byTime ? tickDuration(tick) : tick.toLocaleString("en"))),
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
      entry.value.textContent = (entry.format ?? number)(entry.values[at], at);
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
