"""A report as one HTML page. It needs no network: its script, its style and its numbers stand in it.

Texts of runs are data of anybody. They stand in a JSON element and reach the page by `textContent` only, and the page's
own policy lets no other script run than the ones that are written here, by their SHA-256.
"""

import base64
import hashlib
import json
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

from cloudrl.logs.causes import Cause
from cloudrl.logs.sent_files import by_own_names
from cloudrl.report.groups import Group, group_series
from cloudrl.report.model import Report, RunReport, Table
from cloudrl.report.samples import answers_text
from cloudrl.report.series import charts_of, finite, run_series
from cloudrl.report.usage import usage_series
from cloudrl.verl.charts import Chart

VENDOR = "vendor"
_STYLES = (f"{VENDOR}/uPlot.min.css", "page/style.css")
_SCRIPTS = (
    f"{VENDOR}/uPlot.iife.min.js",
    "page/charts.js",
    "page/curves.js",
    "page/tables.js",
    "page/samples.js",
    "page/overview.js",
    "page/main.js",
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>cloudrl report</title>
{styles}
</head>
<body{refresh}>
<noscript>This page draws its curves with JavaScript.</noscript>
<main id="page"></main>
<script type="application/json" id="data">{data}</script>
{scripts}
</body>
</html>
"""


def page(report: Report, *, refresh_s: int | None = None) -> str:
    """The page.

    Args:
        report: what it shows.
        refresh_s: ask its server for `data.json` so often; None for a file.
    """
    styles, scripts = [_asset(name) for name in _STYLES], [_asset(name) for name in _SCRIPTS]
    return _PAGE.format(
        policy=policy(is_served=refresh_s is not None),
        styles="\n".join(f"<style>{text}</style>" for text in styles),
        refresh="" if refresh_s is None else f' data-refresh-s="{refresh_s}"',
        data=as_element(data(report)),
        scripts="\n".join(f"<script>{text}</script>" for text in scripts),
    )


@cache
def policy(*, is_served: bool) -> str:
    """The Content-Security-Policy: these scripts and styles and nothing else; of a served page its own server."""
    scripts = " ".join(_digest(_asset(name)) for name in _SCRIPTS)
    styles = " ".join(_digest(_asset(name)) for name in _STYLES)
    connect = "connect-src 'self'; " if is_served else ""
    return f"default-src 'none'; script-src {scripts}; style-src {styles}; {connect}base-uri 'none'; form-action 'none'"


def as_element(value: Any) -> str:
    """JSON for a `<script>` element: nothing in it can end the element, or begin a comment in it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = text.encode("utf-8", "replace").decode()
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def data(report: Report) -> dict[str, Any]:
    """What the page draws."""
    shown = [without_flat_band(chart, report) for chart in charts_of(report.keys)]
    if report.groups:  # whose band is the spread of the runs
        shown = [chart._replace(band=()) for chart in shown]
    top = frozenset(key for chart in shown for key in (*chart.keys, *chart.band))
    shares = len(report.runs) + len(report.groups)
    return {
        "runs": [_run(run, run_series(run.steps, shares, top)) for run in report.runs],
        "groups": [_group(group, group_series(group, shares, top)) for group in report.groups],
        "panels": [{"title": chart.title, "keys": chart.keys, "band": chart.band} for chart in shown],
        "differences": _table(report.config_differences()) if len(report.runs) > 1 else None,
    }


def without_flat_band(chart: Chart, report: Report) -> Chart:
    """The chart without its band if the edges never move: those of a 0/1 reward fill the chart and say nothing."""
    steps = [step for run in report.runs for step in run.steps]
    edges = [{step.metrics[key] for step in steps if key in step.metrics} for key in chart.band]
    return chart._replace(band=()) if edges and all(len(values) < 2 for values in edges) else chart


def _group(group: Group, series: dict[str, Any]) -> dict[str, Any]:
    spreads = {key: None if spread is None else spread._asdict() for key, spread in group.summary.items()}
    return {"name": group.name, "runs": group.places, "summary": spreads, **series}


def _run(run: RunReport, series: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": run.name,
        "job": run.job,
        "status": run.status,
        "total": run.total_steps,
        "cause": None if run.cause is None else _cause(run.cause),
        "notes": list(run.notes),
        "about": dict(run.about),
        "log": "\n".join(run.log),
        "config": {key: by_own_names(value) for key, value in sorted(run.config.items())},
        "tables": [_table(table) for table in run.tables],
        "usage": usage_series(run.usage),
        "answers": answers_text(run.answers, run.answer_steps),
        "samples": [
            {
                "id": sample.prompt_id or sample.prompt, "step": sample.step, "score": finite(sample.score),
                "prompt": sample.prompt, "answer": sample.answer,
                "truth": sample.truth, "more": dict(sample.more),
            }
            for sample in run.samples
        ],
        **series,
    }  # fmt: skip


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "error": cause.error,
        "place": f"{_clock(cause.at)} {cause.where}".strip(),
        "meaning": f"{cause.meaning} [{cause.signature}]" if cause.signature else "",
        "remedy": cause.remedy,
        "lines": "\n".join(cause.lines),
        "elsewhere": [f"{_clock(other.at)} {other}".strip() for other in cause.elsewhere],
    }


def _clock(at: float | None) -> str:
    return "" if at is None else f"{datetime.fromtimestamp(at).astimezone():%H:%M:%S}"


def _table(table: Table) -> dict[str, Any]:
    """Without columns in which nothing stands."""
    places = [place for place in range(len(table.columns)) if any(row[place] for row in table.rows)]
    columns, *rows = ([row[place] for place in places] for row in (table.columns, *table.rows))
    return {"title": table.title, "columns": columns, "rows": rows}


@cache
def _asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
