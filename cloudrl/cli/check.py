"""`cloudrl check`: a recipe and the cluster for it, before anything is started."""

import sys
from typing import Annotated, Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import (
    JobRequest,
    JsonOption,
    OnOption,
    cluster_options,
    declared_fields,
    requested_job,
    with_options,
)
from cloudrl.cli._terminal import Terminal
from cloudrl.errors import CloudrlError


@with_options(asked=requested_job, declared=cluster_options)
def check(
    on: OnOption = None,
    *,
    asked: JobRequest,
    declared: dict[str, Any],
    fix: Annotated[bool, typer.Option("--fix", help="Print the corrected command, and nothing else.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a recipe and the cluster that `run` would start for it, before you pay. Nothing is started or asked.

    Checks your files, the nodes, GPUs, data and model, and verl's whole configuration: unknown keys, batch sizes and
    parallelism that do not fit the GPUs, and what else verl would find only once it runs. All that is wrong is
    reported at once, with the command that has it corrected. Exit code 2 if something cannot work. For a cluster that
    is up: submit --dry-run.
    """
    from cloudrl.sdk.runs import plan_run

    job, job_options, of_script = asked
    request = plan_run(job, job_options, {**of_script, **declared_fields(declared)}, on)
    words = [word for word in sys.argv[1:] if word != "--fix"]
    try:
        with Terminal() as terminal, terminal.busy("checking the job"):
            checked = request.check()
    except CloudrlError as error:
        if as_json:
            corrected = error.corrected([word for word in words if word != "--json"])
            _output.as_json({
                "ok": False, "cluster": request.shape, "error": error.message, "hint": error.hint,
                "findings": error.to_json(), "warnings": list(error.warnings),
                "corrected": None if corrected is None else _output.command(corrected),
            })  # fmt: skip
        if not fix or (corrected := error.corrected(words)) is None:
            for warning in error.warnings:
                _output.note(f"warning: {warning}")
            raise
        _output.data(_output.command(corrected))
        if error.remaining is not None:
            raise error.remaining from None
        return
    if fix:
        _output.data(_output.command(words))
        return
    for remark in checked.lines:
        _output.note(remark)
    memory = request.submission.memory
    if memory is not None and not as_json:
        _output.lines(memory.shown)
    if job_options.unchecked:
        verdict = f"{job.name} would be sent, unchecked, to {request.shape}"
    else:
        doubts = [memory.doubt] if memory is not None and memory.doubt else []
        doubts += ["verl refuses it unless the job brings another verl"] if checked.is_refused_by_verl else []
        doubts += ["not all of it was checked"] if checked.not_checked else []
        limit = f", but {' and '.join(doubts)}" if doubts else ""
        verdict = f"nothing found that would stop {job.name} on {request.shape}{limit}"
    fields = {"ok": True, "cluster": request.shape, **checked.to_json(), "memory": memory and memory.to_json()}
    _output.result(f"{verdict}; nothing was started", fields, is_json=as_json)
