"""`cloudrl demo`: the whole of it on this machine, in two or three minutes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloudrl.cli import _output
from cloudrl.errors import CloudrlError, Interrupted, JobFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudrl.jobs import JobHandle
    from cloudrl.sdk.callbacks import Update

NAME = "demo"
RECIPE = "grpo-tiny"
MODEL = "tiny-adder"
DATA = "addition"
WINDOW_STEPS = 5
SHOWN = 3
MIN_ACCURACY = 0.6
"""So many of the sums that were held out are right after the training, or the demo has failed."""


def demo(
    nodes: Annotated[int, typer.Option(help="How many nodes.")] = 2,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster up.")] = False,
) -> None:
    """Start two Ray nodes here, train a tiny model with real verl, show that it learned, and clean up."""
    from cloudrl.cli._terminal import Terminal
    from cloudrl.sdk import Cluster

    with Terminal() as terminal:
        cluster = Cluster(name=NAME, nodes=nodes).up(on="local", on_progress=terminal, detach=keep)
    folder = Path(cluster.status().state_dir)
    try:
        shape = cluster.shape()
        job = cluster.submit(RECIPE)
        _report(job, _train(job))
        target = folder / "models" / job.name
        _bring_home(job, target)
        accuracy = _compare(Path(shape.models[MODEL]), target, Path(shape.data[DATA]["test"]))
    except CloudrlError as error:
        if keep:
            raise
        raise _ended_with_cluster(error, folder) from error
    finally:
        if not keep:
            cluster.down()
            _output.note(f"{NAME} is down; logs stay in {folder}")
    _judge(accuracy)


def _ended_with_cluster(error: CloudrlError, folder: Path) -> CloudrlError:
    """The error of a job whose cluster goes down with it: there is nothing to come back to but its log."""
    message = "interrupted; the job ends with the demo" if isinstance(error, Interrupted) else error.message
    return type(error)(message, hint=f"Its log: ls {folder / 'node-0' / 'jobs'}")


def _train(job: JobHandle) -> list[float]:
    """Follow the job to its end; returns the reward of each step."""
    from cloudrl.cli._terminal import Terminal
    from cloudrl.jobs import Progress
    from cloudrl.sdk.submission import follow

    rewards: list[float] = []
    with Terminal() as terminal:

        def show(update: Update) -> None:
            if isinstance(update, Progress) and update.reward is not None:
                rewards.append(update.reward)
            terminal(update)

        follow(job, on_progress=show)
    return rewards


def _report(job: JobHandle, rewards: Sequence[float]) -> None:
    """Reward before and after, and where the checkpoint lies."""
    first, last = _ends(rewards)
    files = sorted(Path(job.checkpoint_dir or "").glob("global_step_*/actor/model_world_size_*_rank_*.pt"))
    newest = max((path.parent.parent for path in files), key=_step, default=None)
    if newest is None:
        raise JobFailed(f"the job has left no checkpoint in {job.checkpoint_dir}")
    _output.data(f"steps      {len(rewards)}")
    _output.data(
        f"reward     {first:.2f} -> {last:.2f}   (mean of the first and of the last {WINDOW_STEPS} steps)"
    )
    _output.data(f"checkpoint {newest}")
    for path in files:
        if newest in path.parents:
            _output.data(f"           {path.name}  {path.stat().st_size:,} bytes")


def _bring_home(job: JobHandle, target: Path) -> None:
    """Merge the shards of the nodes."""
    from cloudrl.cli._terminal import Terminal
    from cloudrl.sdk.amounts import gigabytes
    from cloudrl.sdk.merge_result import merge_result

    with Terminal() as terminal:
        _, merged = merge_result(job, target, on_progress=terminal)
    _output.data(f"model      {target}")
    _output.data(f"           {merged.parameters:,} parameters, {gigabytes(merged.size_bytes)} in bf16")


def _compare(before: Path, after: Path, test: Path) -> float:
    """Let transformers load both models, ask both for the sums that were held out; returns the second's accuracy."""
    from cloudrl.cli._demo_generate import ask

    first, second = ask((before, after), test)
    _output.data(
        f"accuracy   {first.accuracy:.2f} -> {second.accuracy:.2f}   ({len(first.truths)} sums never trained on)"
    )
    rows = list(zip(first.questions, first.answers, second.answers, strict=True))
    for question, was, answer in rows[:: len(rows) // SHOWN][:SHOWN]:
        _output.data(f"           {question}{was} -> {question}{answer}")
    return second.accuracy


def _judge(accuracy: float) -> None:
    if accuracy < MIN_ACCURACY:
        raise JobFailed(
            f"{accuracy:.0%} of the sums that were held out are right; it should be {MIN_ACCURACY:.0%} at least"
        )


def _ends(rewards: Sequence[float]) -> tuple[float, float]:
    if len(rewards) < 2 * WINDOW_STEPS:
        raise JobFailed(f"only {len(rewards)} steps reported a reward; the demo needs {2 * WINDOW_STEPS}")
    return sum(rewards[:WINDOW_STEPS]) / WINDOW_STEPS, sum(rewards[-WINDOW_STEPS:]) / WINDOW_STEPS


def _step(folder: Path) -> int:
    return int(folder.name.rpartition("_")[2])
