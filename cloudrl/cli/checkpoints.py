"""`cloudrl checkpoints`: list, verify, merge, push, pull, reshard and prune."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import (
    ClusterOption,
    DryRunOption,
    JsonOption,
    YesOption,
    declared_options,
    option,
    with_options,
)
from cloudrl.cli._terminal import Terminal
from cloudrl.options.merge import MergeOptions

if TYPE_CHECKING:
    from cloudrl.checkpoints.handle import CheckpointHandle
    from cloudrl.shards.report import Report

app = typer.Typer(
    help="List, verify, merge, reshard and publish checkpoints.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

DirOption = Annotated[Path | None, option("DIR", "Use a local folder instead of a cluster.", "--dir")]
RunOption = Annotated[str | None, option("RUN", "Only this run; needed if several runs have that step.", "--name")]


def selection(
    step: Annotated[
        str, typer.Argument(metavar="STEP", help="Step number; latest is the newest complete step.")
    ] = "latest",
    cluster: ClusterOption = None,
    folder: DirOption = None,
    run: RunOption = None,
    role: Annotated[str, option("ROLE", "actor or critic.", "--role")] = "actor",
    timeout_min: Annotated[
        float, typer.Option("--timeout", metavar="MINUTES", help="How long to wait for an unresponsive node.", min=0)
    ] = 10.0,
) -> Any:
    """The block of options that chooses one checkpoint; makes what finds it."""

    def choose(terminal: Terminal) -> CheckpointHandle:
        from cloudrl.sdk.checkpoints import find_checkpoints

        checkpoints = find_checkpoints(cluster, folder, give_up_s=timeout_min * 60, on_progress=terminal)
        for note in checkpoints.notes:
            if step != "latest" or note not in checkpoints.inventory.silent:  # otherwise it is the error
                _output.note(f"note: {note}")
        return checkpoints.select(step, run=run, role=role)

    return choose


@app.command("list")
def list_(cluster: ClusterOption = None, folder: DirOption = None, as_json: JsonOption = False) -> None:
    """List the steps of all runs on all nodes: where each rank is, and what is missing."""
    from cloudrl.sdk.checkpoints import find_checkpoints

    with Terminal() as terminal:
        checkpoints = find_checkpoints(cluster, folder, on_progress=terminal)
    if as_json:
        notes = list(checkpoints.notes)
        _output.as_json({"checkpoints": [_fields(checkpoint) for checkpoint in checkpoints], "notes": notes})
        return
    for note in checkpoints.notes:
        _output.note(f"note: {note}")
    if checkpoints:
        columns = ("run", "step", "role", "ranks", "where", "size", "age", "state")
        _output.table(columns, [_row(checkpoint) for checkpoint in checkpoints])
    else:
        _output.note(f"There are no checkpoints in {checkpoints.source.name}.")


@app.command()
@with_options(choose=selection)
def verify(*, choose: Any, as_json: JsonOption = False) -> None:
    """Check that a step is intact. Exit code 6 if it is not.

    All ranks must be there, from the same step, with matching shapes; the CRC of every byte is checked.
    """
    from cloudrl.errors import CheckpointError
    from cloudrl.sdk.callbacks import transfer

    with Terminal() as terminal:
        checkpoint = choose(terminal)
        report = checkpoint.verify(on_progress=transfer("checking", terminal))
    if as_json:
        _output.as_json({"checkpoint": str(checkpoint), "ok": report.ok, **asdict(report)})
    else:
        _show(checkpoint, report)
    if not report.ok:
        raise CheckpointError(f"{checkpoint} is damaged", hint=checkpoint.hint("Other steps: cloudrl checkpoints list"))


@app.command()
@with_options(choose=selection, how=declared_options(MergeOptions))
def merge(
    to: Annotated[Path, option("DIR", "New folder for the model.", "--to")],
    *,
    choose: Any,
    how: dict[str, Any],
    on_head: Annotated[
        bool, typer.Option("--on-head", help="Merge on the head node; --to is then a path there.")
    ] = False,
    sync: Annotated[bool, typer.Option("--sync", help="Flush the model to disk, to survive a power failure.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Merge the shards of a step into a Hugging Face model. The shards stay; only what is needed is transferred."""
    from cloudrl.sdk.checkpoints import merge as merge_checkpoint
    from cloudrl.shards.merge import dtype_name
    from cloudrl.shards.signals import undone_once
    from cloudrl.units import size_text

    options = MergeOptions(**how, sync=sync)
    with undone_once(), Terminal() as terminal:
        checkpoint = choose(terminal)
        merged = merge_checkpoint(checkpoint, to, options, on_head=on_head, on_progress=terminal)
    done = merged.to_json()
    size, at = size_text(merged.size_bytes), " on the head" if on_head else ""
    of_run = "" if checkpoint.run == "." else f" of run {_output.visible(checkpoint.run, keep='')}"
    what = f"step {checkpoint.step}{of_run}"
    fields = {"step": checkpoint.step, "run": checkpoint.run, "role": checkpoint.role}
    fields |= {"dtype": dtype_name(options.dtype, options.lora), "lora": options.lora, **done}
    text = f"{done['path']}{at}: {merged.parameters:,} parameters, {size}, {what}"
    _output.result(text, fields, is_json=as_json)


@app.command()
@with_options(choose=selection, how=declared_options(MergeOptions))
def push(
    to: Annotated[str, option("OWNER/NAME", "Hugging Face Hub repository.", "--to")],
    *,
    choose: Any,
    public: Annotated[bool, typer.Option("--public", help="Make the repository public, not private.")] = False,
    on_head: Annotated[
        bool, typer.Option("--on-head", help="Merge and upload on the head node, with this machine's token.")
    ] = False,
    how: dict[str, Any],
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Merge a step and publish it on the Hugging Face Hub. Run it again to resume after an interruption."""
    from cloudrl.sdk.checkpoints import plan_push, publish
    from cloudrl.shards.signals import undone_once

    with undone_once(), Terminal() as terminal:
        checkpoint = choose(terminal)
        plan = plan_push(checkpoint, to, private=not public, options=MergeOptions(**how))
        if dry_run:
            _output.data(plan.render())
            return
        url = publish(plan, on_head=on_head, on_progress=terminal)
    fields = {"step": checkpoint.step, "run": checkpoint.run, "url": url}
    _output.result(url, fields, is_json=as_json)


@app.command()
@with_options(choose=selection)
def pull(
    to: Annotated[Path, option("DIR", "Folder to put the step into.", "--to")],
    *,
    choose: Any,
    as_json: JsonOption = False,
) -> None:
    """Copy the raw shards of a step, so that a job can resume from it. Run it again to resume after an interruption.

    Copies all ranks and roles.
    """
    from cloudrl.sdk.checkpoints import pull as pull_checkpoint
    from cloudrl.shards.signals import undone_once
    from cloudrl.units import size_text

    with undone_once(), Terminal() as terminal:
        pulled = pull_checkpoint(choose(terminal), to, on_progress=terminal)
    for note in pulled.notes:
        _output.note(f"note: {note}")
    fields = {"path": pulled.path, "files": pulled.files, "size_bytes": pulled.size_bytes, "notes": list(pulled.notes)}
    text = f"{pulled.path}: {pulled.files} files, {size_text(pulled.size_bytes)}"
    _output.result(text, fields, is_json=as_json)


@app.command()
@with_options(choose=selection)
def reshard(
    to: Annotated[Path, option("DIR", "Folder that becomes a run of this step.", "--to")],
    world_size: Annotated[int, option("N", "Number of GPUs of all nodes that will resume.", "--world-size")],
    *,
    choose: Any,
    torch: Annotated[
        str | None, option("VERSION", "Version of torch that will resume; for FSDP1 shards of one GPU.", "--torch")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Cut the shards of a step, optimizer included, for another number of GPUs. The shards stay.

    Takes all roles.
    """
    from cloudrl.sdk.checkpoints import reshard as reshard_checkpoint
    from cloudrl.shards.signals import undone_once
    from cloudrl.units import size_text

    with undone_once(), Terminal() as terminal:
        checkpoint = choose(terminal)
        resharded = reshard_checkpoint(checkpoint, to, world_size, torch=torch, on_progress=terminal)
    fields = {"run": checkpoint.run, **resharded.to_json()}
    size, ranks = size_text(resharded.size_bytes), f"{resharded.was} to {resharded.world_size} ranks"
    _output.result(f"{resharded.path}: {resharded.files} files, {size}, from {ranks}", fields, is_json=as_json)


@app.command()
def prune(
    keep: Annotated[int, option("N", "Number of complete steps to keep per run.", "--keep-last")],
    every: Annotated[
        int | None,
        typer.Option(
            "--keep-every", metavar="N", help="Also keep steps that are multiples of N, and not what jobs keep.", min=0
        ),
    ] = None,
    best: Annotated[
        str | None,
        option("METRIC", "Also keep the best step by what jobs recorded, and not what jobs keep.", "--keep-best"),
    ] = None,
    cluster: ClusterOption = None,
    folder: DirOption = None,
    run: RunOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete old steps on all nodes, but never the newest complete one or one that a job would resume from.

    What durable jobs keep for good (--keep-every, --keep-best of `submit`) stays, unless one of these is passed here.
    """
    from cloudrl.sdk.checkpoints import find_checkpoints
    from cloudrl.sdk.checkpoints import prune as prune_checkpoints
    from cloudrl.sdk.choose import Purpose
    from cloudrl.units import size_text

    with Terminal(yes=yes) as terminal:
        checkpoints = find_checkpoints(cluster, folder, purpose=Purpose.END, on_progress=terminal)
        plan = prune_checkpoints(
            checkpoints, keep, every=every, best=best, run=run, confirm=terminal.confirm, on_progress=terminal
        )
    removed = [
        {"run": removal.run, "step": removal.step, "size_bytes": removal.size_bytes} for removal in plan.removals
    ]
    fields = {"removed": removed, "size_bytes": plan.size_bytes, "notes": list(plan.notes)}
    _output.result(f"removed {plan.steps_text}, {size_text(plan.size_bytes)}", fields, is_json=as_json)


def _row(checkpoint: CheckpointHandle) -> tuple[str, ...]:
    from cloudrl.saves.places import places_text
    from cloudrl.units import duration_text, size_text

    info, size = checkpoint.info, checkpoint.info.world_size
    ranks = f"{len(info.ranks)} of {size}" if size is not None else checkpoint.format.label
    missing = [f"missing: {', '.join(info.missing)}"] if info.missing else []
    flaws = (*missing, *info.damage_phrases) or ("complete",)
    safe = ["safe"] if info.complete and checkpoint.copies > 1 else []
    kept = [f"kept: {info.kept}"] if info.kept else []
    state = "; ".join((*flaws, *safe, *(["resume point"] if info.resumes else []), *kept))
    age = duration_text(max(0.0, time.time() - info.modified_at))
    return (
        info.run, str(info.step), info.role, ranks, places_text(info.locations), size_text(info.size_bytes), age, state,
    )  # fmt: skip


def _fields(checkpoint: CheckpointHandle) -> dict[str, Any]:
    info = checkpoint.info
    places = {
        place.label: {"folder": place.folder, "nodes": list(place.ranks), "ranks": list(ranks)}
        for place, ranks in info.locations.items()
    }
    return {
        "run": info.run,
        "step": info.step,
        "role": info.role,
        "format": checkpoint.format.label.lower(),
        "world_size": info.world_size,
        "ranks": list(info.ranks),
        "places": places,
        "size_bytes": info.size_bytes,
        "modified_at": info.modified_at,
        "complete": info.complete,
        "copies": checkpoint.copies,
        "missing": list(info.missing),
        "damaged": dict(info.damaged),
        "resumes": info.resumes,
        "kept": info.kept,
        "recorded_ranks": sorted(info.records),
    }


def _show(checkpoint: CheckpointHandle, report: Report) -> None:
    from cloudrl.protocol.ranks import spans
    from cloudrl.units import size_text

    of = f" of {report.world_size}" if report.world_size is not None else ""
    parts = f", {report.shards} part{'s' * (report.shards != 1)}" if report.shards is not None else ""
    rows = [
        ("checkpoint", str(checkpoint)),
        ("ranks", f"{spans(report.ranks)}{of}{parts}"),
        ("step", f"{report.step} (by {report.step_source})" if report.step is not None else "unknown"),
        ("tensors", str(report.tensors) if report.tensors else "not checked"),
        ("size", size_text(report.size_bytes)),
        ("intact", "yes" if report.ok else "no"),
    ]
    for finding in report.findings:
        file = f"{finding.file}: " if finding.file and finding.file not in finding.message else ""
        rows.append(("error" if finding.fatal else "note", f"{file}{finding.message}"))
    _output.table(("", ""), rows)
