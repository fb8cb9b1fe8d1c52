"""`cloudrl demo`: the whole of it on this machine, in a minute or two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import JsonOption, option
from cloudrl.cli._terminal import Terminal

if TYPE_CHECKING:
    from cloudrl.sdk.demo import Demo

_SHOWN = 3
_NEXT = """\
See the run:      cloudrl report --cluster demo
Start a cluster:  cloudrl up mine --nodes 2
Train on it:      cloudrl submit grpo-tiny --cluster mine --steps 20"""
"""A cluster of the user's own is called otherwise: one that is kept with --keep has the demo's name."""


def demo(
    nodes: Annotated[int, option("N", "Number of nodes.")] = 2,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the cluster running.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a tiny model on this machine with real verl and Ray, in about a minute.

    Starts a Ray cluster of two nodes, shows that the model has learned, and cleans up.
    """
    from cloudrl.sdk.demo import demo as run_demo

    with Terminal() as terminal:
        done = run_demo(nodes, keep=keep, on_progress=terminal)
    _output.result("\n".join(_lines(done)), _fields(done), is_json=as_json)
    done.raise_for_accuracy()
    _output.hint(_NEXT)


def _fields(done: Demo) -> dict[str, Any]:
    """The same as `_lines`, for a program."""
    first, last = done.reward_before_and_after
    return {
        "steps": len(done.rewards),
        "reward": {"first": first, "last": last},
        "shards": [str(path) for path in done.shards],
        "model": str(done.merged.path),
        "parameters": done.merged.parameters,
        "size_bytes": done.merged.size_bytes,
        "accuracy": {"before": done.before.accuracy, "after": done.after.accuracy},
    }


def _lines(done: Demo) -> list[str]:
    """Reward and accuracy before and after, where checkpoint and model are, and some answers."""
    from cloudrl.sdk.demo import WINDOW_STEPS
    from cloudrl.units import size_text

    first, last = done.reward_before_and_after
    before, after, merged = done.before, done.after, done.merged
    rows = list(zip(after.questions, before.answers, after.answers, strict=True))
    return [
        f"steps      {len(done.rewards)}",
        f"reward     {first:.2f} -> {last:.2f}   (mean of the first and of the last {WINDOW_STEPS} steps)",
        *(f"checkpoint {path.parent.parent}" for path in done.shards[:1]),
        *(f"           {path.name}  {path.stat().st_size:,} bytes" for path in done.shards),
        f"model      {merged.path}",
        f"           {merged.parameters:,} parameters, {size_text(merged.size_bytes)} in bf16",
        f"accuracy   {before.accuracy:.2f} -> {after.accuracy:.2f}   ({len(after.truths)} questions never trained on)",
        *(
            f"           {question}{was} -> {question}{answer}"
            for question, was, answer in rows[:: len(rows) // _SHOWN][:_SHOWN]
        ),
    ]
