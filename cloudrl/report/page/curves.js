"use strict";
// What the cards draw: curves of metrics of runs and of groups of runs, use of the nodes, and stacked time per step.

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

// Of a run (`v`) or a group (`mean`, `sd`, `low`, `high`, `n`): the values of a key, and their x.
const curve = (source, key, byTime) => {
  if (!Object.hasOwn(source.series, key)) return null;
  const series = source.series[key], axis = byTime ? source.elapsed : source.steps;
  return { ...series, x: series.i ? series.i.map((place) => axis[place]) : axis };
};

const SPREADS = {
  sd: { label: "± standard deviation", edges: ({ mean, sd }) => [mean.map((value, at) => value + sd[at]), mean.map((value, at) => value - sd[at])] },
  range: { label: "from min to max", edges: ({ high, low }) => [high, low] },
};

// A mean with as many decimals as its spread has two digits: 0.985 ± 0.020.
const spreadText = (kind, { mean, sd, low, high }) => {
  const width = kind === "sd" ? sd : high - low;
  const decimals = width > 0 ? Math.min(8, Math.max(0, 1 - Math.floor(Math.log10(width)))) : null;
  const size = Math.max(Math.abs(mean), Math.abs(low), Math.abs(high));
  const text = (value) => (decimals === null || size < 1e-3 || size >= 1e7 ? number(value)
    : value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }));
  return kind === "sd" ? `${text(mean)} ± ${text(sd)}` : `${text(mean)} (${text(low)} to ${text(high)})`;
};
const grouped = (run) => report.groups.some((group) => group.runs.includes(run.place));

// Collects what uPlot draws: series with an x of their own, bands between two of them, and lines of the legend.
class Drawing {
  constructor(settings) {
    this.settings = settings;
    this.tables = [];
    this.series = [{}];
    this.bands = [];
    this.entries = [];
  }

  add(x, values, options) {
    this.tables.push([x, this.settings.log ? values.map((value) => (value > 0 ? value : null)) : values]);
    this.series.push({ spanGaps: true, points: { show: false }, ...options });
    return this.series.length - 1;
  }

  band(x, high, low, shade) {
    const edges = [high, low].map((values) => this.add(x, values, { stroke: "transparent", width: 0 }));
    this.bands.push({ series: edges, fill: faint(shade, 0.16) });
  }

  // Over the same share of a curve however long it is: a window of three steps does nothing for ten thousand.
  smooth(values) {
    return this.isSmooth(values) ? smoothed(values, this.settings.smoothing ** Math.min(1, 100 / values.length)) : values;
  }

  isSmooth(values) {
    return this.settings.smoothing > 0 && values.length >= 20;  // of few points each one counts
  }

  // Mean of a group, and the band of its spread around it; the legend tells them as they are, not smoothed.
  addGroup(group, key, name, dash) {
    const found = curve(group, key, this.settings.byTime), shade = color(group.shade), { spread } = this.settings;
    if (!found) return;
    const { x, mean, n } = found, [high, low] = SPREADS[spread].edges(found).map((edge) => this.smooth(edge));
    this.band(x, high, low, shade);
    const at = this.add(x, this.smooth(mean), { stroke: shade, width: 2.25, dash, points: { show: mean.length < 40, size: 5, fill: shade } });
    const places = new Map(x.map((value, place) => [value, place]));
    const format = (_, joined) => {
      const place = places.get(this.data[0][joined]);
      if (place === undefined) return "–";
      const [exact, sd, least, most] = ["mean", "sd", "low", "high"].map((field) => found[field][place]);
      const count = typeof n === "number" ? "" : `, n = ${n[place]}`;
      return spreadText(spread, { mean: exact, sd, low: least, high: most }) + count;
    };
    const count = typeof n === "number" ? n : `${Math.min(...n)} to ${Math.max(...n)}`;
    this.entries.push({ label: `${name}, ${count} runs: mean, band ${SPREADS[spread].label}`, color: shade, at, format });
  }

  // A run of a group: thin, and not in the legend.
  addMember(run, key) {
    const found = curve(run, key, this.settings.byTime);
    if (found) this.add(found.x, this.smooth(found.v), { stroke: faint(color(run.shade), 0.45), width: 1 });
  }

  addRun(run, key, { name, shade, dash, band }) {
    const found = curve(run, key, this.settings.byTime);
    if (!found || !found.v.length) return;
    const [low, high] = band.map((edge) => curve(run, edge, this.settings.byTime));
    if (low && high) {
      const edges = [high, low].map((edge) => this.add(edge.x, edge.v, { stroke: "transparent", width: 0 }));
      this.bands.push({ series: edges, fill: faint(shade, 0.12) });
    }
    const raw = this.isSmooth(found.v) ? this.add(found.x, found.v, { stroke: faint(shade, found.v.length > 1000 ? 0.2 : 0.35), width: 1 }) : null;
    const at = this.add(found.x, this.smooth(found.v), { stroke: shade, width: 1.75, dash, points: { show: found.v.length < 40, size: 4, fill: shade } });
    this.entries.push({ label: name, color: shade, at: raw ?? at });
  }
}

// How many characters all keys begin with, up to a slash: `actor/` of `actor/ppo_kl` and `actor/kl_loss`.
const sharedStart = ([first, ...others]) => {
  let end = 0;
  for (let at = first.indexOf("/"); at >= 0 && others.every((key) => key.startsWith(first.slice(0, at + 1))); at = first.indexOf("/", end)) end = at + 1;
  return end;
};

// Curves of `keys` of what is visible: groups with their spread, runs raw and smoothed, with the area between the keys
// of `band`.
const curves = ({ runs, groups }, keys, band, settings) => {
  const drawing = new Drawing(settings), several = report.runs.length > 1;
  for (const run of runs.filter(grouped)) keys.forEach((key) => drawing.addMember(run, key));
  const dashed = (place) => (several && place > 0 ? [7 - 2 * Math.min(place, 2), 4] : []);
  const shared = several && keys.length > 1 ? sharedStart(keys) : 0;
  const named = (name, key, place) => [several ? name : "", keys.length > 1 || !several ? key.slice(shared) : "", dashed(place).length ? "(dashed)" : ""].filter(Boolean).join(" ");
  for (const group of groups) keys.forEach((key, place) => drawing.addGroup(group, key, named(group.name, key, place), dashed(place)));
  for (const run of runs.filter((each) => !grouped(each))) {
    keys.forEach((key, place) => drawing.addRun(run, key, {
      name: named(run.name, key, place), shade: color(several ? run.shade : place), dash: dashed(place), band,
    }));
  }
  if (drawing.series.length === 1) return null;
  const data = drawing.data = uPlot.join(drawing.tables), { log } = settings;
  if (log && !data.slice(1).some((values) => values.some((value) => value > 0))) {
    return curves({ runs, groups }, keys, band, { ...settings, log: false });
  }
  drawing.entries.forEach((entry) => { entry.values = data[entry.at]; });
  return {
    data, entries: drawing.entries,
    options: {
      series: drawing.series, bands: drawing.bands, axes: [xAxis(settings.byTime), yAxis(log)],
      scales: { x: { time: false }, y: log ? { distr: 3 } : { range: yRange } },
    },
  };
};

const MINUTE = 60, HOUR = 3600, DAY = 86400;
const CLOCK_STEPS = [1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map((each) => each * MINUTE), ...[1, 2, 3, 6, 12].map((each) => each * HOUR), ...[1, 2, 5, 10].map((each) => each * DAY)];
const clock = (time, ticks, all) => {
  const more = all.at(-1) - all[0] > DAY ? { month: "short", day: "numeric" } : ticks.some((tick) => tick % MINUTE) ? { second: "2-digit" } : {};
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
      axes: [axisStyle({ size: 28, space: 72, incrs: CLOCK_STEPS, values: (_, ticks) => ticks.map((tick) => clock(tick, ticks, data[0])) }), yAxis(false)],
      scales: { x: { time: true }, y: { range: (_, __, high) => [0, isShare ? 100 : (high || 1) * 1.05] } },
    },
  };
};

// Bars that would hide all others, and the highest of those: a first step, also that of an attempt, loads and compiles,
// which none of verl's timers accounts for. Null where there is no such bar.
const warmUp = ({ steps, parts }) => {
  const bars = steps.map((step, place) => ({ step, seconds: Object.values(parts).reduce((sum, values) => sum + values[place], 0), other: parts.other?.[place] ?? 0 }));
  const median = bars.map((bar) => bar.seconds).sort((one, next) => one - next)[Math.floor(bars.length / 2)];
  const cut = bars.filter((bar) => median > 0 && bar.seconds > 3 * median && 2 * bar.other > bar.seconds);
  if (!cut.length || cut.length > 1 + bars.length / 10) return null;
  return { cut, most: Math.max(...bars.filter((bar) => !cut.includes(bar)).map((bar) => bar.seconds)) };
};
const warmUpText = (time) => (warmUp(time)?.cut ?? []).map((bar) => `; cut off: step ${bar.step}, ${number(bar.seconds)} s`).join("");

// Mean seconds of each part of a step, one above the other.
const stackedTime = (run) => {
  const { steps, parts } = run.time, names = Object.keys(parts);
  const all = [...new Set(report.runs.flatMap((each) => Object.keys(each.time.parts)))];  // one colour in all charts
  if (!names.length) return null;
  const cut = warmUp(run.time);
  const sums = steps.map(() => 0);
  const tops = names.map((name) => parts[name].map((seconds, place) => (sums[place] += seconds)));
  const shades = names.map((name) => (name === "other" ? css("--muted") : color(all.indexOf(name))));
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
        y: { range: (_, __, high) => [0, (cut ? Math.min(high, 1.2 * cut.most) : high || 1) * 1.05] },
      },
    },
  };
};
