"use strict";
// Tables. Text of runs is set as text, never as markup.

const table = (columns, rows, { caption = "", label = caption, className = "" } = {}) => {
  const head = element("tr", {}, columns.map((column) => element("th", { scope: "col", text: column })));
  const body = rows.map((row) => element("tr", {}, row.map((cell, place) => (place === 0
    ? element("th", { scope: "row", text: cell }) : element("td", { text: cell })))));
  return element("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": label || columns.join(", ") },
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
