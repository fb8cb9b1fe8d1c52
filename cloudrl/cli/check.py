"""`cloudrl check`: a recipe and the cluster for it, before anything is started."""

from typing import Any

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


@with_options(asked=requested_job, declared=cluster_options)
def check(
    on: OnOption = None,
    *,
    asked: JobRequest,
    declared: dict[str, Any],
    as_json: JsonOption = False,
) -> None:
    """Check a recipe and the cluster that `run` would start for it, before you pay. Nothing is started or asked.

    Checks your files, the nodes, GPUs, data and model, and verl's whole configuration: unknown keys, batch sizes and
    parallelism that do not fit the GPUs, and what else verl would find only once it runs. Exit code 2 if something
    cannot work. For a cluster that is up: submit --dry-run.
    """
    from cloudrl.errors import CloudrlError
    from cloudrl.sdk.runs import plan_run

    job, job_options, of_script = asked
    request = plan_run(job, job_options, {**of_script, **declared_fields(declared)}, on)
    try:
        notes = request.check()
    except CloudrlError as error:
        if as_json:
            _output.as_json({"ok": False, "cluster": request.shape, "error": error.message, "hint": error.hint})
        raise
    for note in notes:
        _output.note(f"note: {note}")
    if unknown := request.submission.not_checked:
        _output.note(f"note: not checked before the job starts: {'; '.join(unknown)}")
    memory = request.submission.memory
    if memory is not None and not as_json:
        _output.lines(memory.shown)
    verdict = "would be sent, unchecked, to" if job_options.unchecked else "can run on"
    text = f"{job.name} {verdict} {request.shape}; nothing was started"
    _output.result(
        text,
        {
            "ok": True,
            "cluster": request.shape,
            "notes": notes,
            "not_checked": list(unknown),
            "memory": memory and memory.to_json(),
        },
        is_json=as_json,
    )
