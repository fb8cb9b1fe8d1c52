"""`cloudrl checkpoints`: list, verify, merge, push, pull and prune."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._source_arg import (
    DtypeOption,
    RoleOption,
    RunOption,
    StepArgument,
    WaitOption,
    WhereArgument,
    origin,
    step_and_where,
)

if TYPE_CHECKING:
    from cloudrl.checkpoints.handle import CheckpointHandle, Checkpoints
    from cloudrl.saves.inventory import Checkpoint
    from cloudrl.saves.prune import PrunePlan
    from cloudrl.shards.report import Report

app = typer.Typer(
    help="Bring the trained model home: what the nodes have, checked, merged, published.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable.")]


@app.command("list")
def list_(where: WhereArgument = None, as_json: JsonOption = False) -> None:
    """Every step of every run, on all nodes: which ranks are where, and what is missing."""
    found = _all(where)
    if as_json:
        notes = list(found.notes)
        _output.as_json({"checkpoints": [_fields(each.info) for each in found], "notes": notes})
        return
    for note in found.notes:
        _output.note(f"note: {note}")
    if not found:
        _output.note(f"There is no checkpoint in {found.source.name}.")
        return
    columns = ("run", "step", "role", "ranks", "where", "size", "age", "state")
    _output.table(columns, [_row(each.info) for each in found])


@app.command()
def verify(
    step: StepArgument = None,
    where: WhereArgument = None,
    run: RunOption = None,
    role: RoleOption = "actor",
    wait_min: WaitOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Check a step: ranks, cut, one and the same step, and the CRC of every byte. Exit code 6 when it is not sound."""
    from cloudrl.cli._progress import bytes_shown
    from cloudrl.errors import CheckpointError

    checkpoint = _one(step, where, run, role, wait_min)
    with bytes_shown("checking") as on_progress:
        report = checkpoint.verify(on_progress=on_progress)
    if as_json:
        _output.as_json(_report_fields(checkpoint, report))
    else:
        _show(checkpoint, report)
    if not report.ok:
        there = shlex.quote(checkpoint.source.name)
        raise CheckpointError(
            f"{checkpoint} is not sound", hint=f"Other steps: cloudrl checkpoints list {there}"
        )


@app.command()
def merge(
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A folder that does not exist yet.")],
    step: StepArgument = None,
    where: WhereArgument = None,
    dtype: DtypeOption = "bf16",
    on: Annotated[
        str, typer.Option("--on", help="here, or head: on the head's disk, DIR being a path there.")
    ] = "here",
    run: RunOption = None,
    role: RoleOption = "actor",
    sync: Annotated[
        bool, typer.Option("--sync", help="Wait until the disk has it, in case the power fails.")
    ] = False,
    wait_min: WaitOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Make a Hugging Face model of the shards; they stay where they are, and only what is needed travels."""
    from cloudrl.cli._progress import bytes_shown, gigabytes
    from cloudrl.errors import InputError

    if on not in ("here", "head"):
        raise InputError(f"--on {on} is neither here nor head")
    checkpoint = _one(step, where, run, role, wait_min)
    with bytes_shown(f"merging step {checkpoint.step}") as on_progress:
        if on == "head":
            from cloudrl.checkpoints.remote_merge import merge_on_head

            done = merge_on_head(checkpoint, str(to), dtype=dtype, sync=sync, on_progress=on_progress)
        else:
            merged = checkpoint.merge(to, dtype=dtype, sync=sync, on_progress=on_progress)
            done = {
                "path": str(merged.path.absolute()), "tensors": merged.tensors, "parameters": merged.parameters,
                "size_bytes": merged.size_bytes, "warnings": list(merged.warnings),
            }  # fmt: skip
    for warning in done["warnings"]:
        _output.note(f"warning: {warning}")
    if as_json:
        _output.as_json(
            {"step": checkpoint.step, "run": checkpoint.run, "role": role, "dtype": dtype, **done}
        )
    else:
        size, at = gigabytes(int(done["size_bytes"])), " on the head" if on == "head" else ""
        what = f"step {checkpoint.step} of run {checkpoint.run}"
        _output.data(f"{done['path']}{at}: {done['parameters']:,} parameters, {size}, {what}")


@app.command()
def push(
    step: Annotated[str, typer.Argument(metavar="STEP", help="A step, or latest.")],
    repo: Annotated[str, typer.Argument(metavar="REPO", help="OWNER/NAME on the Hugging Face Hub.")],
    where: WhereArgument = None,
    public: Annotated[bool, typer.Option("--public", help="Let everybody see it.")] = False,
    dtype: DtypeOption = "bf16",
    run: RunOption = None,
    role: RoleOption = "actor",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the model card, and do nothing.")] = False,
    wait_min: WaitOption = 10.0,
) -> None:
    """Merge a step and publish it on the Hugging Face Hub, private unless --public. Repeat it to go on."""
    from cloudrl.checkpoints.push import plan_push
    from cloudrl.checkpoints.push import push as publish
    from cloudrl.cli._progress import bytes_shown

    checkpoint = _one(step, where, run, role, wait_min)
    plan = plan_push(
        checkpoint, repo, _staging_root(), private=not public, dtype=dtype, known=_provenance(checkpoint)
    )
    if dry_run:
        _output.data(plan.render())
        return
    with bytes_shown(f"merging step {checkpoint.step}") as on_progress:
        _output.data(publish(plan, on_progress=on_progress))


@app.command()
def pull(
    step: Annotated[str, typer.Argument(metavar="STEP", help="A step, or latest.")],
    to: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; the step comes to lie in it.")],
    where: WhereArgument = None,
    run: RunOption = None,
    wait_min: WaitOption = 10.0,
) -> None:
    """Copy the raw shards of a step, all ranks and roles, so that a job can go on from them. Repeat it to go on."""
    from cloudrl.cli._progress import bytes_shown, gigabytes

    checkpoint = _one(step, where, run, "actor", wait_min)
    with bytes_shown(f"copying step {checkpoint.step}") as on_progress:
        pulled = checkpoint.pull(to, on_progress=on_progress)
    size = gigabytes(pulled.size_bytes)
    _output.data(f"{pulled.folder / f'global_step_{checkpoint.step}'}: {pulled.files} files, {size}")


@app.command()
def prune(
    keep: Annotated[int, typer.Option("--keep", metavar="N", help="Complete steps of each run that stay.")],
    where: WhereArgument = None,
    run: RunOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove old steps on all nodes; never the newest complete one, nor one that a job would go on from."""
    from cloudrl.cli._progress import gigabytes
    from cloudrl.errors import InputError
    from cloudrl.saves.prune import plan_prune

    found = _all(where)
    found.inventory.refuse_silent("what it has would be left half-removed", "Try again when it answers")
    pruning = plan_prune(found.inventory, keep, run=run, commands=_commands(found))
    _announce(pruning)
    size = gigabytes(pruning.size_bytes)
    if pruning.removals:
        question = f"Remove {len(pruning.removals)} steps, {size}?"
        if not _output.confirm(question, yes=yes, unattended=False):
            raise InputError("nothing was removed")
    for removal in pruning.removals:
        for place, path in removal.where:
            found.source.remove(place, path)
    removed = [
        {"run": each.run, "step": each.step, "size_bytes": each.size_bytes} for each in pruning.removals
    ]
    if as_json:
        _output.as_json({"removed": removed, "size_bytes": pruning.size_bytes, "notes": list(pruning.notes)})
    else:
        _output.data(f"removed {len(removed)} steps, {size}")


def _all(where: str | None, wait_min: float = 10.0) -> Checkpoints:
    from cloudrl.checkpoints.handle import Checkpoints

    return Checkpoints(origin(where, wait_min))


def _one(
    step: str | None, where: str | None, run: str | None, role: str, wait_min: float
) -> CheckpointHandle:
    which, where = step_and_where(step, where)
    found = _all(where, wait_min)
    for note in found.notes:
        if which != "latest" or note not in found.inventory.silent:  # then it is the error
            _output.note(f"note: {note}")
    return found.select(which, run=run, role=role)


def _row(info: Checkpoint) -> tuple[str, ...]:
    from cloudrl.cli._progress import gigabytes
    from cloudrl.jobs.format import duration
    from cloudrl.saves.inventory import spans

    size = info.world_size
    ranks = "Megatron" if info.is_megatron else f"{len(info.ranks)} of {size}" if size is not None else "none"
    locations = [
        f"{spans(held)}{' on ' * bool(place.ranks)}{place.short}" for place, held in info.locations.items()
    ]
    missing = f"missing: {', '.join(info.missing)}" if info.missing else "complete"
    state = f"{missing}; a resume takes it" if info.resumes else missing
    age = duration(max(0.0, time.time() - info.modified_at))
    return (
        info.run, str(info.step), info.role, ranks, "; ".join(locations), gigabytes(info.size_bytes), age, state,
    )  # fmt: skip


def _fields(info: Checkpoint) -> dict[str, Any]:
    locations = {
        place.label: {"folder": place.folder, "nodes": list(place.ranks), "ranks": list(ranks)}
        for place, ranks in info.locations.items()
    }
    return {
        "run": info.run,
        "step": info.step,
        "role": info.role,
        "format": "megatron" if info.is_megatron else "fsdp",
        "world_size": info.world_size,
        "ranks": list(info.ranks),
        "places": locations,
        "size_bytes": info.size_bytes,
        "modified_at": info.modified_at,
        "complete": info.complete,
        "missing": list(info.missing),
        "resumes": info.resumes,
        "recorded_ranks": sorted(info.records),
    }


def _report_fields(checkpoint: CheckpointHandle, report: Report) -> dict[str, Any]:
    from dataclasses import asdict

    return {"checkpoint": str(checkpoint), "ok": report.ok, **asdict(report)}


def _show(checkpoint: CheckpointHandle, report: Report) -> None:
    from cloudrl.cli._progress import gigabytes
    from cloudrl.saves.inventory import spans

    step = f"{report.step} (by {report.step_source})" if report.step is not None else "unknown"
    rows = [
        ("checkpoint", str(checkpoint)),
        ("ranks", f"{spans(report.ranks)}{_of(report)}"),
        ("step", step),
        ("tensors", str(report.tensors) if report.tensors else "not looked at"),
        ("size", gigabytes(report.size_bytes)),
        ("sound", "yes" if report.ok else "no"),
    ]
    for finding in report.findings:
        file = f"{finding.file}: " if finding.file and finding.file not in finding.message else ""
        rows.append(("error" if finding.fatal else "note", f"{file}{finding.message}"))
    _output.table(("", ""), rows)


def _of(report: Report) -> str:
    """How many ranks and parts there should be, where it is known."""
    ranks = f" of {report.world_size}" if report.world_size is not None else ""
    return f"{ranks}, {report.shards} parts" if report.shards is not None else ranks


def _staging_root() -> Path:
    import os

    return Path(os.environ.get("CLOUDRL_HOME") or "~/.cloudrl").expanduser().absolute() / "push"


def _provenance(checkpoint: CheckpointHandle) -> Any:
    from cloudrl.checkpoints.card import provenance
    from cloudrl.checkpoints.sources import ClusterSource

    if isinstance(checkpoint.source, ClusterSource):
        return provenance(checkpoint.source.connection, checkpoint.run, checkpoint.step)
    return None


def _commands(found: Checkpoints) -> list[str]:
    """Of the jobs that have not ended."""
    from cloudrl.checkpoints.sources import ClusterSource
    from cloudrl.jobs import list_jobs

    if not isinstance(found.source, ClusterSource):
        return []
    return [job.entrypoint for job in list_jobs(found.source.connection) if not job.status.is_terminal]


def _announce(pruning: PrunePlan) -> None:
    from cloudrl.cli._progress import gigabytes

    for note in pruning.notes:
        _output.note(f"note: {note}")
    for each in pruning.removals:
        where = "".join(f" on {place.short}" for place, _ in each.where if place.ranks)
        what = "" if each.complete else ", incomplete"
        _output.note(f"{each.run}: step {each.step}{where}, {gigabytes(each.size_bytes)}{what}")
