"use strict";
// The head of the page: what the runs are, why they failed, and a table of runs and of groups of runs.

const section = (title, ...children) => element("section", { id: `section-${title.toLowerCase().replaceAll(" ", "-")}` }, element("h2", { text: title }), children);

const RUN_COLUMNS = ["status", "step", "reward", "validation", "median step", "trained for"];

// A row that shows or hides the curves of what it is about.
const overviewRow = ({ id, name, about, shade, hidden, isMember = false }, cells) => {
  const toggle = element("input", { id: `show-${id}`, type: "checkbox", checked: !settings.hidden.has(hidden), "aria-label": `Show ${name}` });
  toggle.addEventListener("change", () => {
    if (toggle.checked) settings.hidden.delete(hidden); else settings.hidden.add(hidden);
    redraw();
  });
  const swatch = element("i", { className: "swatch" });
  swatch.style.background = isMember ? faint(color(shade), 0.45) : color(shade);
  const head = element("th", { scope: "row" }, element("label", {}, toggle, swatch, element("span", { text: name })), element("p", { className: about.isText ? "muted" : "muted job", text: about.text }));
  return element("tr", { className: isMember ? "member" : "" }, head, cells.map((cell, place) => element("td", { "data-label": RUN_COLUMNS[place] }, cell)));
};

const statusCell = (status) => element("span", { className: `status ${status.toLowerCase()}`, text: status || "–" });
const secondsText = (seconds) => (seconds === null ? "–" : `${number(seconds)} s`);

const runRow = (run) => {
  const { reward, best, validation, step_s: step } = run.summary;
  return overviewRow({ id: run.place, name: run.name, about: { text: run.job }, shade: run.shade, hidden: run.place, isMember: grouped(run) }, [
    statusCell(run.status),
    `${run.steps.at(-1) ?? "–"}${run.total ? ` of ${run.total}` : ""}`,
    reward === null ? "–" : `${number(reward)} (best ${number(best)})`,
    number(validation),
    secondsText(step),
    run.elapsed.length ? duration(run.elapsed.at(-1)) : "–",
  ]);
};

// Mean and spread over the runs of a group.
const groupRow = (group) => {
  const members = group.runs.map((place) => report.runs[place]);
  const statuses = [...new Set(members.map((run) => run.status))];
  const spread = (key, unit = "") => (group.summary[key] ? spreadText(settings.spread, group.summary[key]) + unit : "–");
  const last = members.map((run) => run.steps.at(-1) ?? 0), [least, most] = [Math.min(...last), Math.max(...last)];
  return overviewRow({ id: `group-${group.place}`, name: group.name, about: { text: `mean of ${members.length} runs`, isText: true }, shade: group.shade, hidden: `group ${group.place}` }, [
    statuses.length === 1 ? statusCell(statuses[0]) : `${members.filter((run) => run.status === "SUCCEEDED").length} of ${members.length} succeeded`,
    least === most ? number(most) : `${number(least)} to ${number(most)}`,
    group.summary.reward ? `${spread("reward")} (best ${spread("best")})` : "–",
    spread("validation"),
    spread("step_s", " s"),
    group.summary.trained_s ? duration(group.summary.trained_s.mean) : "–",
  ]);
};

const overview = () => {
  const head = element("tr", {}, ...["run", ...RUN_COLUMNS].map((text) => element("th", { scope: "col", text })));
  const rows = [
    ...report.groups.flatMap((group) => [groupRow(group), ...group.runs.map((place) => runRow(report.runs[place]))]),
    ...report.runs.filter((run) => !grouped(run)).map(runRow),
  ];
  return [
    element("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Runs" },
      element("table", { className: "runs" }, element("thead", {}, head), element("tbody", {}, rows))),
    ...(report.groups.length ? [element("p", { className: "muted", text: groupsText() })] : []),
  ];
};

const groupsText = () => {
  const spread = settings.spread === "sd" ? "one standard deviation of its runs (n − 1)" : "its lowest to its highest run";
  return `A thick line is the mean of a group, its band ${spread}; thin lines are single runs. A group has the same label (submit --group), or the same configuration but for seeds.`;
};

// What a run is at a glance; several runs in columns.
const about = () => {
  const runs = report.runs.filter((run) => Object.keys(run.about).length);
  if (report.runs.length > 1) {
    const headings = [...new Set(runs.flatMap((run) => Object.keys(run.about)))];
    const rows = headings.map((heading) => [heading, ...runs.map((run) => run.about[heading] ?? "")]);
    return rows.length ? [table(["", ...runs.map((run) => run.name)], rows, { label: "Runs at a glance", className: "glance" })] : [];
  }
  return runs.map((run) => element("dl", { className: "about" },
    Object.entries(run.about).map(([heading, text]) => [element("dt", { text: heading }), element("dd", { text })])));
};

const causes = () => report.runs.filter((run) => run.cause).map(({ name, cause }) => element("section", { className: "cause" },
  element("h2", { text: report.runs.length > 1 ? `First cause, ${name}` : "First cause" }),
  ...[cause.error, cause.place, cause.meaning].filter(Boolean).map((text) => element("p", { text })),
  ...(cause.lines ? [element("pre", { text: cause.lines })] : []),
  ...(cause.remedy ? [element("p", { text: `What to do: ${cause.remedy}` })] : []),
  ...(cause.elsewhere.length ? [element("p", { text: "In the same second:" }), element("pre", { text: cause.elsewhere.join("\n") })] : [])));

const notes = () => report.runs.flatMap((run) => run.notes.map((text) => element("p", {
  className: "muted", text: report.runs.length > 1 ? `${run.name}: ${text}` : text,
})));

// The end of each log, at its last line, which says most.
const logs = () => {
  const folders = report.runs.filter((run) => run.log).map((run) => {
    const text = element("pre", { className: "log", tabIndex: 0, text: run.log });
    const isOpen = isFirstBuild && run.status === "FAILED" && report.runs.length === 1;
    const folder = element("details", { id: `log-${run.place}`, open: isOpen }, element("summary", { text: `Last lines of ${run.name}` }), text);
    folder.addEventListener("toggle", () => { text.scrollTop = text.scrollHeight; });
    return folder;
  });
  return folders.length ? [section("Log", folders)] : [];
};
