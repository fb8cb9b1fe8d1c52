"""What `cloudrl watch` draws: a look at a job as lines that fit a terminal. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from statistics import fmean
from textwrap import wrap
from typing import TYPE_CHECKING

from cloudrl.cli._curves import panel
from cloudrl.cli._output import visible

if TYPE_CHECKING:
    from rich.text import Text

    from cloudrl.jobs.evidence import RunWarning
    from cloudrl.jobs.look import Look
    from cloudrl.protocol.report import NodeReport, Usage
    from cloudrl.verl.metrics import Step

_PANEL_WIDTH = 38
_PANEL_HEIGHTS = (5, 12)
_LOG_LINES = 3
_MEAN_STEPS = 5
_BAR, _SHOWN_SHARE, _SHOWN_S = 24, 0.01, 0.05
_WIDE = 119  # of a terminal of 120 columns the last one stays empty
_SILENT_S = 15.0
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red", "bright_black")
_STATUS_STYLES = {"RUNNING": "cyan", "SUCCEEDED": "green", "FAILED": "bold red", "STOPPED": "yellow"}
_NODE_HEADS = (
    "rank",
    "address",
    "phase",
    "pool",
    "GPU",
    "GPU mem",
    "CPU",
    "mem",
    "disk",
    "net in / out per s",
    "busy, last hour",
)
_BARS, _BAR_CELLS, _LEAST_S = "▁▂▃▄▅▆▇█", 12, 60.0


def draw(look: Look, width: int, height: int, curves: Sequence[str] = ()) -> list[Text]:
    """The look in at most `height` lines of `width` columns; what has no room is left out from the bottom.

    Args:
        look: at the job.
        width: of the terminal.
        height: likewise.
        curves: keys of metrics to be drawn, beside reward and validation.
    """
    head, time = _head(look, width), _time(look.steps[-_MEAN_STEPS:], width)
    warnings = [line for warning in look.warnings for line in _warning(warning, width)]
    time += _balance(look, width)
    table = partial(_nodes, look, is_wide=width >= _WIDE)
    few = max(2, height // 6)
    nodes = table(few)
    room = height - sum(map(len, (head, time, warnings, nodes))) - _LOG_LINES - 1
    drawn = _curves(look.steps, curves, width, room)
    used = sum(map(len, (head, drawn, time, warnings)))
    nodes = table(max(few, height - used - _LOG_LINES - 2))  # with what the curves have left
    used += len(nodes)
    lines = [*head, *drawn, *time, *nodes, *warnings, *_log(look.lines, height - used)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


def _head(look: Look, width: int) -> list[Text]:
    from rich.text import Text

    from cloudrl.units import dollars_text, duration_text

    since = f"  {duration_text(look.seconds)}" if look.seconds is not None else ""
    title = Text(visible(look.url, keep=""), "bold").append(
        f"  {look.status}", _STATUS_STYLES.get(look.status.value, "")
    )
    title.append(since, "not bold")
    waiting = "waiting for the first step"
    if look.starting is not None:
        waiting = f"before the first step: {look.starting} for {duration_text(look.starting_s)}"
    progress = [f"{look.progress}" if look.progress is not None else waiting]
    if look.phase and look.starting is None:
        progress.append(visible(look.phase, keep=""))
    if look.cost is not None:
        at_end = f", {dollars_text(look.cost_at_end)} at the end" if look.cost_at_end is not None else ""
        progress.append(f"{dollars_text(look.cost)} so far{at_end}")
    lines = [title, *map(Text, _side_by_side(progress, width))]
    return [*lines, Text(visible(look.notice, keep=""), "yellow")] if look.notice else lines


def _side_by_side(parts: Sequence[str], width: int) -> list[str]:
    """One line of them, or where that is too long a line each."""
    line = "  ".join(parts)
    return [line] if len(line) <= width else [*parts]


def _curves(steps: Sequence[Step], wanted: Sequence[str], width: int, room: int) -> list[Text]:
    """Panels side by side: what was asked for as far as there is room, and of the rest a row, or two where they fit."""
    from rich.text import Text

    low, high = _PANEL_HEIGHTS
    in_a_row = max(1, (width + 2) // (_PANEL_WIDTH + 2))
    rows = max(0, room) // low
    if not wanted:
        rows = min(rows, 2 if room >= 4 * low else 1)
    shown = list(_series(steps, wanted))[: rows * in_a_row]
    if not steps or not shown:
        return []
    rows = -(-len(shown) // in_a_row)
    columns = -(-len(shown) // rows)
    each_width, height = (width - 2 * (columns - 1)) // columns, min(high, room // rows)
    lines: list[Text] = []
    for start in range(0, len(shown), columns):
        panels = [panel(title, points, each_width, height) for title, points in shown[start : start + columns]]
        for number, cells in enumerate(zip(*panels, strict=True)):
            style = "cyan" if number else "bold"
            lines.append(Text("  ").join(Text(cell.ljust(each_width), style) for cell in cells))
    return lines


def _series(steps: Sequence[Step], wanted: Sequence[str]) -> Iterable[tuple[str, list[tuple[int, float]]]]:
    from cloudrl.verl.charts import CHARTS, LOSS, VALIDATION
    from cloudrl.verl.metrics import known_keys

    keys = known_keys(steps)
    if LOSS.matching(keys):
        wanted = (*LOSS.keys, *wanted)
    else:
        yield "reward", [(step.step, step.reward) for step in steps if step.reward is not None]
    first, more = VALIDATION.matching(keys)[:1], VALIDATION.matching(keys)[1:]
    room_for = [key for chart in CHARTS if chart.in_watch for key in chart.matching(keys)]
    for key in dict.fromkeys([*first, *wanted, *more, *room_for]):
        title = visible(key.replace(VALIDATION.keys[0], "val "), keep="")
        if key not in keys:
            near = get_close_matches(key, keys, 1, 0.3)
            title += f" (unknown; {visible(near[0], keep='')}?)" if near else " (unknown)"
        yield title, [(step.step, step.metrics[key]) for step in steps if key in step.metrics]


def _time(steps: Sequence[Step], width: int) -> list[Text]:
    """Where the time of a step goes: seconds by part, and a bar where there is room."""
    from rich.text import Text

    from cloudrl.verl.timing import OTHER, mean_parts

    parts = mean_parts(steps)
    whole = sum(parts.values())
    names, bar = Text("a step:"), Text()
    for number, (part, seconds) in enumerate(parts.items()):
        if seconds >= max(_SHOWN_S, _SHOWN_SHARE * whole):
            style = _COLOURS[number % len(_COLOURS)] if part != OTHER else "dim"
            name = f"  {visible(part, keep='')} {seconds:.1f} s"
            if len(names) + len(name) <= width:
                names.append(name, style)
            bar.append("█" * round(_BAR * seconds / whole), style)
    if not parts:
        return []
    return [names.append("  ").append(bar)] if len(names) + 2 + len(bar) <= width else [names]


def _balance(look: Look, width: int) -> list[Text]:
    """How rollout and training of an asynchronous job keep pace."""
    from rich.text import Text

    lines: list[str] = []
    for what, text in look.balance.rows if look.balance is not None else ():
        joined = f"{lines[-1]}  {what}: {text}" if lines else ""
        lines[-1:] = [joined] if joined and len(joined) <= width else [*lines[-1:], f"{what}: {text}"]
    return [Text(line) for line in lines]


def _nodes(look: Look, max_rows: int, *, is_wide: bool) -> list[Text]:
    """A table of nodes, those in trouble first."""
    from rich.text import Text

    nodes, usage = look.nodes, look.usage if is_wide else {}
    if not nodes:
        return []
    shown = sorted(nodes, key=lambda node: not _trouble(node))[:max_rows]
    rows = [
        [*_node_cells(node, look.pools.get(node.rank, ""), is_wide=is_wide), _busy_bars(usage.get(node.rank, ()))]
        for node in shown
    ]
    head, *lines = _aligned([_NODE_HEADS, *rows])
    head.stylize("bold")
    for line, node in zip(lines, shown, strict=True):
        line.rstrip()
        if trouble := _trouble(node):
            line.append(f"  {visible(trouble, keep='')}", "bold red" if node.failure else "yellow")
    return [head, *lines, *([Text(f"and {len(nodes) - max_rows} more nodes")] if len(nodes) > max_rows else [])]


def _aligned(rows: Sequence[Sequence[str]]) -> list[Text]:
    """Rows as lines; columns that are empty but for their head are left out."""
    from rich.text import Text

    columns = [cells for cells in zip(*rows, strict=True) if any(cells[1:])]
    padded = [[cell.ljust(max(map(len, cells))) for cell in cells] for cells in columns]
    return [Text("  ".join(cells)) for cells in zip(*padded, strict=True)]


def _trouble(node: NodeReport) -> str:
    """Why it does not work, or "" while it does."""
    from cloudrl.units import duration_text

    if node.failure:
        return node.failure.reason
    return f"no heartbeat for {duration_text(node.seen_s_ago)}" if node.seen_s_ago > _SILENT_S else ""


def _node_cells(node: NodeReport, pool: str, *, is_wide: bool) -> list[str]:
    usage = None if _trouble(node) else node.usage  # of a node that is silent it is old
    cells = _usage_cells(usage, is_wide=is_wide) if usage is not None else [""] * 6
    return [str(node.rank), visible(node.ip, keep=""), node.phase.value, pool, *cells]


def _usage_cells(usage: Usage, *, is_wide: bool) -> list[str]:
    """In the order of the heads."""
    from cloudrl.units import size_text

    rates = [usage.received_bytes_per_s, usage.sent_bytes_per_s] if is_wide else []
    gpu_used = sum(gpu.memory_used_mib or 0 for gpu in usage.gpus)
    gpu_total = sum(gpu.memory_total_mib or 0 for gpu in usage.gpus)
    return [
        _gpu_cell([gpu.utilization_percent for gpu in usage.gpus if gpu.utilization_percent is not None]),
        _share(gpu_used << 20, gpu_total << 20, is_wide=is_wide),
        f"{usage.cpu_percent:.0f}%" if usage.cpu_percent is not None else "",
        _share(usage.memory_used_bytes, usage.memory_total_bytes, is_wide=is_wide),
        _share(usage.disk_used_bytes, usage.disk_total_bytes, is_wide=is_wide),
        " / ".join(size_text(round(rate)) for rate in rates if rate is not None),
    ]


def _busy_bars(samples: Sequence[Usage]) -> str:
    """A bar for each part of the time, from nothing to 100%: of the GPUs, or of the CPUs without GPUs."""
    busy = [(sample.sampled_at, share) for sample in samples if (share := _busy(sample)) is not None]
    if not busy or busy[-1][0] - busy[0][0] < _LEAST_S:
        return ""
    first, span = busy[0][0], busy[-1][0] - busy[0][0]
    parts: list[list[float]] = [[] for _ in range(_BAR_CELLS)]
    for at, share in busy:
        parts[min(_BAR_CELLS - 1, int((at - first) / span * _BAR_CELLS))].append(share)
    return "".join(_BARS[min(7, int(fmean(part) / 12.5))] if part else " " for part in parts)


def _busy(usage: Usage) -> float | None:
    percents = [gpu.utilization_percent for gpu in usage.gpus if gpu.utilization_percent is not None]
    return fmean(percents) if percents else usage.cpu_percent


def _gpu_cell(percents: Sequence[float]) -> str:
    """For example `8x 94%`, and the bounds where they are far apart: `8x 80% (3-99)`."""
    if not percents:
        return ""
    low, high = min(percents), max(percents)
    bounds = f" ({low:.0f}-{high:.0f})" if high - low > 20 else ""
    return f"{len(percents)}x {fmean(percents):.0f}%{bounds}"


def _share(used: int | None, total: int | None, *, is_wide: bool) -> str:
    """For example `61%`, or `61% of 128 GB`."""
    from cloudrl.units import size_text

    if used is None or not total:
        return ""
    return f"{used / total:.0%} of {size_text(total)}" if is_wide else f"{used / total:.0%}"


def _warning(warning: RunWarning, width: int) -> list[Text]:
    from rich.text import Text

    seen = visible(warning.seen, keep="")
    lines = [Text(line, "bold yellow") for line in wrap(f"! {seen}", width, subsequent_indent="  ")]
    for remedy in warning.remedy.splitlines():
        lines += map(Text, wrap(visible(remedy, keep=""), width, initial_indent="  → ", subsequent_indent="    "))
    return lines


def _log(lines: Sequence[str], count: int) -> list[Text]:
    """The last ones; a step is drawn above, and would fill the screen."""
    from rich.text import Text

    from cloudrl.verl.metrics import parse_step

    shown = [line for line in lines if parse_step(line) is None]
    return [Text(visible(line, keep=""), "dim") for line in shown[-count:]] if count > 0 else []
