"use strict";
// Tables, and the samples with search and order. Text of runs is set as text, never as markup.

const table = (columns, rows, { caption = "", className = "" } = {}) => {
  const head = element("tr", {}, columns.map((column) => element("th", { scope: "col", text: column })));
  const body = rows.map((row) => element("tr", {}, row.map((cell, place) => (place === 0
    ? element("th", { scope: "row", text: cell }) : element("td", { text: cell })))));
  return element("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": caption || columns.join(", ") },
    element("table", { className }, ...(caption ? [element("caption", { text: caption })] : []),
      element("thead", {}, head), element("tbody", {}, body)));
};

// What was searched for is kept in `chosen`.
const searchable = (rows, draw, label, chosen) => {
  const box = element("input", { type: "search", placeholder: label, "aria-label": label, value: chosen.search });
  const place = element("div");
  const show = () => {
    chosen.search = box.value;
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    place.replaceChildren(draw(rows.filter((row) => {
      const text = row.join("\n").toLowerCase();
      return words.every((word) => text.includes(word));
    })));
  };
  box.addEventListener("input", show);
  show();
  return element("div", {}, box, place);
};

const PAGE_ROWS = 25;

// What was searched for, order, step and page are kept in `chosen`.
class Samples {
  constructor(runs, chosen) {
    this.chosen = chosen;
    this.rows = runs.flatMap((run) => run.samples.map((sample) => ({ ...sample, run: run.name })));
    this.withRun = runs.length > 1;
    this.page = chosen.page;
    this.search = element("input", { type: "search", placeholder: "Search prompts and answers", "aria-label": "Search samples", value: chosen.search });
    this.order = this.choice("Order", [["step", "newest step first"], ["high", "best score first"], ["low", "worst score first"], ["prompt", "by prompt, over the steps"]]);
    const steps = [...new Set(this.rows.map((row) => row.step))].sort((a, b) => b - a);
    this.step = this.choice("Step", [["", "all steps"], ...steps.map((step) => [String(step), `step ${step}`])]);
    this.order.value = chosen.order;
    this.step.value = steps.some((step) => String(step) === chosen.step) ? chosen.step : "";
    this.count = element("p", { className: "muted", role: "status" });
    this.list = element("div", { className: "samples" });
    this.back = element("button", { type: "button", text: "Back", onclick: () => this.turn(-1) });
    this.next = element("button", { type: "button", text: "Next", onclick: () => this.turn(1) });
    for (const each of [this.search, this.order, this.step]) each.addEventListener("input", () => { this.page = 0; this.show(); });
    const controls = element("div", { className: "controls" }, this.search, this.order, this.step);
    this.root = element("div", {}, controls, this.count, this.list, element("div", { className: "controls" }, this.back, this.next));
    this.show();
  }

  choice(label, options) {
    return element("select", { "aria-label": label }, options.map(([value, text]) => element("option", { value, text })));
  }

  turn(by) {
    this.page += by;
    this.show();
    this.root.scrollIntoView();
  }

  show() {
    const wanted = this.search.value.toLowerCase();
    const rows = this.rows.filter((row) => (!this.step.value || String(row.step) === this.step.value)
      && `${row.prompt}\n${row.answer}\n${row.truth}`.toLowerCase().includes(wanted));
    const score = (row, none) => row.score ?? none;
    rows.sort({
      step: (a, b) => b.step - a.step,
      high: (a, b) => score(b, -Infinity) - score(a, -Infinity),
      low: (a, b) => score(a, Infinity) - score(b, Infinity),
      prompt: (a, b) => (a.prompt < b.prompt ? -1 : a.prompt > b.prompt ? 1 : a.step - b.step),
    }[this.order.value]);
    const pages = Math.max(1, Math.ceil(rows.length / PAGE_ROWS));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    Object.assign(this.chosen, { search: this.search.value, order: this.order.value, step: this.step.value, page: this.page });
    this.count.textContent = `${rows.length} of ${this.rows.length} answers, page ${this.page + 1} of ${pages}`;
    this.back.disabled = this.page === 0;
    this.next.disabled = this.page >= pages - 1;
    this.list.replaceChildren(...rows.slice(this.page * PAGE_ROWS, (this.page + 1) * PAGE_ROWS).map((row) => this.card(row)));
  }

  card(row) {
    const facts = [`step ${row.step}`, `score ${number(row.score)}`, ...(this.withRun ? [row.run] : []),
      ...(row.truth ? [`truth: ${row.truth}`] : []), ...Object.entries(row.more).map(([key, value]) => `${key}: ${value}`)];
    return element("article", { className: "sample" },
      element("p", { className: "facts" }, facts.map((text) => element("span", { text }))),
      element("pre", { className: "prompt", text: row.prompt }), element("pre", { text: row.answer }));
  }
}
