"""What really goes wrong with dstack, and what to do about it. Reasons are dstack 0.22.5's (core/models/runs.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl.errors import CapacityError, ClusterFailed, InputError
from cloudrl.providers.dstack import fleets, runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudrl.providers.dstack.fleets import FleetState
    from cloudrl.providers.dstack.runs import Attempt, RunPlan, RunState
    from cloudrl.providers.dstack.server import Server

_NO_CONTAINER = "creating_container_error"
_MEANING = {
    _NO_CONTAINER: "the image cannot be pulled or started",
    "log_quota_exceeded": (
        "dstack ends a run whose node prints too much: 50 MB in an hour, unless its server says otherwise. "
        "NCCL_DEBUG=INFO does that"
    ),
    "max_duration_exceeded": "it has run for its max_duration",
    "failed_to_start_due_to_no_capacity": "there is no such machine to be had now",
    "ports_binding_failed": "one of the run's ports is taken on that machine",
}
_ENOUGH = 2


def check(
    server: Server, planned: RunPlan, *, secrets: Sequence[str] = (), wanted: Sequence[str] = ()
) -> list[FleetState]:
    """Refuse what cannot be started, before anybody pays for it. Returns the fleets that it may run on.

    Args:
        server: where.
        planned: what it has said to the task.
        secrets: those that dstack is to fill in.
        wanted: names of fleets, none for all.

    Raises:
        InputError: a run of this name is going on or ending, or the task names a secret that the server does not have.
    """
    _check_name(server, planned)
    _check_secrets(server, planned, secrets)
    return [each for each in fleets.list_all(server) if not wanted or each.name in wanted]


def describe_failure(attempt: Attempt) -> str:
    """Why an attempt ended: dstack's words, and what they mean where that is not plain."""
    meaning = _MEANING.get(attempt.code)
    said = attempt.reason or attempt.code.replace("_", " ") or "failed"
    return f"{meaning} ({said})" if meaning is not None else said


def unrecoverable_error(run: RunState) -> ClusterFailed | None:
    """Why waiting for a run is in vain although dstack goes on trying; None when it is not.

    Without a container there is no agent that could count failures and end the run.
    """
    for node in run.nodes:
        failed = [each for each in node.attempts if each.code == _NO_CONTAINER]
        if len(failed) >= _ENOUGH:
            image = run.answer.run_spec.configuration.image
            return ClusterFailed(
                f"cluster {run.name!r} has failed {len(failed)} times and is stopped: rank {node.rank} "
                f"({failed[-1].hostname}): {describe_failure(failed[-1])}; image {image}",
                hint=f"Is its name right? docker pull {image}\n"
                "A private one needs registry_auth: docs/clusters.md",
            )
    return None


def _check_name(server: Server, planned: RunPlan) -> None:
    """Refuse a name that is taken. The way on is not to attach to the cluster of somebody else, nor to end it."""
    current, name = planned.current, planned.name
    if current is None or current.is_over:
        return
    if current.user != runs.present_user(server):
        said, hint = (
            f"user {current.user!r} has a run {name!r} in project {server.project!r}",
            "Choose another name",
        )
    elif current.status == "terminating":
        said, hint = f"a run {name!r} is still ending", f"Try again when it is gone: cloudrl status {name}"
    else:
        said = f"a run {name!r} is there: {current.status}"
        hint = f"cloudrl attach {name}\ncloudrl down {name}"
    raise InputError(said, hint=hint)


def _check_secrets(server: Server, planned: RunPlan, wanted: Sequence[str]) -> None:
    if not wanted:
        return
    there = {each.name for each in server.call(server.api.secrets.list, server.project)}
    missing = [name for name in wanted if name not in there]
    if missing:
        raise InputError(
            f"{planned.name}.dstack.yml takes {', '.join(missing)} from dstack's secrets, and project "
            f"{server.project!r} has {'them' if len(missing) > 1 else 'it'} not",
            hint="\n".join(f"dstack secret set {name} ..." for name in missing),
        )


def no_machines(server: Server, planned: RunPlan, known: Sequence[FleetState]) -> CapacityError:
    """That nobody has such machines, and which of the fleets that a task may run on nearly would."""
    if not known:
        return CapacityError(
            f"cluster {planned.name!r}: project {server.project!r} has no fleet that it may run on",
            hint="cloudrl fleet create --gpu 80GB:8 --nodes 2",
        )
    apart = [each.name for each in known if not each.is_cluster]
    if planned.nodes > 1 and apart:
        return CapacityError(
            f"cluster {planned.name!r} has {planned.nodes} nodes, and dstack runs those only on fleets with "
            f"placement: cluster; {', '.join(apart)} {'has' if len(apart) == 1 else 'have'} not",
            hint=f"cloudrl fleet delete {apart[0]}, then make it anew: cloudrl fleet create {apart[0]} "
            "--set placement=cluster ...",
        )
    names = ", ".join(each.name for each in known)
    return CapacityError(
        f"cluster {planned.name!r}: no fleet has or can get such a machine (there is: {names})",
        hint="What they have: cloudrl fleet list\nAnother one: cloudrl fleet create --gpu 80GB:8 --nodes 2",
    )
