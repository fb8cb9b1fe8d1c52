"use strict";
// Samples: a list with search and order, and two steps or two runs side by side, matched by prompt.

const PAGE_ROWS = 12;

const choice = (label, options, value) => {
  const made = element("select", { "aria-label": label }, options.map(([each, text]) => element("option", { value: each, text })));
  made.value = options.some(([each]) => each === value) ? value : options[0]?.[0] ?? "";
  return made;
};
const searchBox = (value) => element("input", { type: "search", placeholder: "Search prompts and answers", "aria-label": "Search samples", value });
const contains = (wanted, ...texts) => texts.join("\n").toLowerCase().includes(wanted.toLowerCase());
const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
const scoreOf = (rows) => mean(rows.map((row) => row.score).filter((score) => score !== null));

// Rows in pages: `draw` makes the children of the page's rows; what is chosen is kept in `chosen`.
class Pages {
  constructor(chosen, controls, select, draw) {
    this.chosen = chosen;
    this.select = select;
    this.draw = draw;
    this.count = element("p", { className: "muted", role: "status" });
    this.list = element("div", { className: "samples" });
    this.back = element("button", { type: "button", text: "Back", onclick: () => this.turn(-1) });
    this.next = element("button", { type: "button", text: "Next", onclick: () => this.turn(1) });
    for (const each of controls) each.addEventListener("input", () => { chosen.page = 0; this.show(); });
    this.turns = element("div", { className: "controls" }, this.back, this.next);
    this.root = element("div", { className: "pages" }, element("div", { className: "controls" }, controls), this.count, this.list, this.turns);
  }

  turn(by) {
    this.chosen.page += by;
    this.show();
    this.root.scrollIntoView();
  }

  show() {
    const { rows, text } = this.select();
    const pages = Math.max(1, Math.ceil(rows.length / PAGE_ROWS)), page = Math.min(Math.max(0, this.chosen.page), pages - 1);
    this.chosen.page = page;
    this.count.textContent = `${text}, page ${page + 1} of ${pages}`;
    this.back.disabled = page === 0;
    this.next.disabled = page >= pages - 1;
    this.turns.hidden = pages === 1;
    this.list.replaceChildren(...rows.slice(page * PAGE_ROWS, (page + 1) * PAGE_ROWS).map(this.draw));
  }
}

const sampleFacts = (row) => [...(row.truth ? [`truth: ${row.truth}`] : []), ...Object.entries(row.more).map(([key, value]) => `${key}: ${value}`)];
const scoreText = (score) => element("span", { className: "score", text: `score ${number(score)}` });

const samplesList = (rows, withRun, chosen) => {
  const steps = [...new Set(rows.map((row) => row.step))].sort((a, b) => b - a);
  const search = searchBox(chosen.search);
  const order = choice("Order", [["step", "newest step first"], ["high", "best score first"], ["low", "worst score first"], ["prompt", "by prompt, over the steps"]], chosen.order);
  const step = choice("Step", [["", "all steps"], ...steps.map((each) => [String(each), `step ${each}`])], chosen.step);
  const compare = {
    step: (a, b) => b.step - a.step,
    high: (a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity),
    low: (a, b) => (a.score ?? Infinity) - (b.score ?? Infinity),
    prompt: (a, b) => (a.prompt < b.prompt ? -1 : a.prompt > b.prompt ? 1 : a.step - b.step),
  };
  const select = () => {
    Object.assign(chosen, { search: search.value, order: order.value, step: step.value });
    const found = rows.filter((row) => (!step.value || String(row.step) === step.value) && contains(search.value, row.prompt, row.answer, row.truth));
    return { rows: found.sort(compare[order.value]), text: `${found.length} of ${rows.length} answers` };
  };
  const card = (row) => element("article", { className: "sample" },
    element("p", { className: "facts" }, element("span", { text: `step ${row.step}` }), scoreText(row.score), [...(withRun ? [row.run] : []), ...sampleFacts(row)].map((text) => element("span", { text }))),
    element("pre", { className: "prompt", text: row.prompt }), element("pre", { text: row.answer }));
  const pages = new Pages(chosen, [search, order, step], select, card);
  pages.show();
  return pages.root;
};

// The answers of a step of a run by prompt, in the order in which they come.
const byPrompt = (rows) => {
  const found = new Map();
  for (const row of rows) found.set(row.id, [...(found.get(row.id) ?? []), row]);
  return found;
};

const samplesPairs = (sides, chosen) => {
  const options = [...sides].map(([key, { label }]) => [key, label]);
  const search = searchBox(chosen.search);
  const left = choice("Left side", options, chosen.left || firstPair(sides)[0]), right = choice("Right side", options, chosen.right || firstPair(sides)[1]);
  const order = choice("Order", [["prompt", "by prompt"], ["gain", "right side better first"], ["loss", "left side better first"]], chosen.order);
  const gain = (pair) => (scoreOf(pair.right) ?? 0) - (scoreOf(pair.left) ?? 0);
  const compare = { prompt: (a, b) => (a.prompt < b.prompt ? -1 : a.prompt > b.prompt ? 1 : 0), gain: (a, b) => gain(b) - gain(a), loss: (a, b) => gain(a) - gain(b) };
  const select = () => {
    Object.assign(chosen, { search: search.value, order: order.value, left: left.value, right: right.value });
    const [one, other] = [left, right].map((each) => byPrompt(sides.get(each.value).rows));
    const both = [...one.keys()].filter((id) => other.has(id));
    const pairs = both.map((id) => ({ left: one.get(id), right: other.get(id), prompt: one.get(id)[0].prompt, truth: one.get(id)[0].truth }))
      .filter((pair) => contains(search.value, pair.prompt, pair.truth, ...[...pair.left, ...pair.right].map((row) => row.answer)))
      .sort(compare[order.value]);
    const alone = [[one, "left"], [other, "right"]].filter(([side]) => side.size > both.length).map(([side, name]) => `, ${side.size - both.length} only on the ${name}`);
    return { rows: pairs, text: `${pairs.length} of ${both.length} prompts on both sides${alone.join("")}` };
  };
  const column = (rows, side) => element("div", { className: "side" },
    element("p", { className: "facts" }, element("span", { text: side.label }), rows.length > 1 ? element("span", { text: `${rows.length} answers, mean score ${number(scoreOf(rows))}` }) : []),
    rows.map((row) => [element("p", { className: "facts" }, scoreText(row.score), Object.entries(row.more).map(([key, value]) => element("span", { text: `${key}: ${value}` }))), element("pre", { text: row.answer })]));
  const card = (pair) => {
    const [before, after] = [scoreOf(pair.left), scoreOf(pair.right)], change = (after ?? 0) - (before ?? 0);
    return element("article", { className: "sample pair", tabIndex: 0 },
      element("p", { className: "facts" }, element("span", { className: `score ${change > 0 ? "better" : change < 0 ? "worse" : ""}`, text: `score ${number(before)} → ${number(after)}` }), pair.truth ? element("span", { text: `truth: ${pair.truth}` }) : []),
      element("pre", { className: "prompt", text: pair.prompt }),
      element("div", { className: "sides" }, column(pair.left, sides.get(left.value)), column(pair.right, sides.get(right.value))));
  };
  const pages = new Pages(chosen, [left, right, order, search], select, card);
  pages.list.addEventListener("keydown", (event) => moveFocus(event, pages));
  pages.count.after(element("p", { className: "muted hint-line", text: "Arrow keys go from prompt to prompt and from page to page." }));
  pages.show();
  return pages.root;
};

// Up and down go from prompt to prompt, left and right from page to page, while a prompt has the focus.
const moveFocus = (event, pages) => {
  if (!event.target.matches(".pair") || event.altKey || event.ctrlKey || event.metaKey) return;
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key], turn = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (by) (by > 0 ? event.target.nextElementSibling : event.target.previousElementSibling)?.focus();
  else if (turn && !(turn > 0 ? pages.next : pages.back).disabled) {
    pages.turn(turn);
    pages.list.firstElementChild?.focus();
  } else return;
  event.preventDefault();
};

// Of two runs their newest common step, else the first and the last step of one run.
const firstPair = (sides) => {
  const all = [...sides.entries()], [first, last] = [all[0], all.at(-1)];
  const common = all.filter(([, side]) => side.run === first[1].run).reverse()
    .map(([key, side]) => [key, all.find(([, other]) => other.run !== side.run && other.step === side.step)?.[0]]).find(([, other]) => other);
  return common ?? [first[0], last[0]];
};

const samplesOf = (runs, chosen) => {
  const several = runs.length > 1, rows = runs.flatMap((run) => run.samples.map((sample) => ({ ...sample, run: run.name, place: run.place })));
  const sides = new Map();
  for (const row of rows) {
    const key = `${row.place} ${row.step}`;
    if (!sides.has(key)) sides.set(key, { label: `${several ? `${row.run}, ` : ""}step ${row.step}`, run: row.place, step: row.step, rows: [] });
    sides.get(key).rows.push(row);
  }
  const owners = new Map();  // of a sentence about the number of answers
  for (const run of runs) for (const text of run.answers) owners.set(text, [...(owners.get(text) ?? []), run.name]);
  const counts = [...owners].map(([text, names]) => element("p", { className: "muted", text: several ? `${names.join(", ")}: ${text}` : text }));
  const place = element("div");
  const view = choice("View", [["list", "list"], ["pairs", "side by side"]], chosen.view);
  const show = () => {
    chosen.view = view.value;
    place.replaceChildren(view.value === "pairs" ? samplesPairs(sides, chosen.pairs) : samplesList(rows, several, chosen.list));
  };
  view.id = "samples-view";
  view.addEventListener("input", show);
  show();
  return element("div", {}, counts, sides.size > 1 ? element("div", { className: "controls" }, element("label", {}, "View ", view)) : [], place);
};
