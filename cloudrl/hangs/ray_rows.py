"""What Ray's state API proves of a job that runs: resources that no node has, actors that are dead. Pure.

Ray 2.60, util/state/common.py: rows of `/api/v0/placement_groups` and `/api/v0/actors` with `detail=true`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cloudrl.protocol.job_phases import Blame
from cloudrl.units import duration_text, size_text

WAITS_S = 60.0
"""For so long a group or an actor has to wait for what others hold: they may give it back."""
_INTENDED = (
    "all references to the actor were removed",
    "INTENDED",
    "its creator",
    "its owner has died",
    "ray.actor.exit",
    "exit_actor",
)
"""Ends of an actor that its job wanted."""
_WAITS = ("PENDING", "RESCHEDULING")
_LONGEST_ERROR = 200


def waiting_groups(groups: Sequence[Any], job_id: str, now: float) -> tuple[Blame, ...]:
    """Placement groups of a job that have waited too long for CPUs and GPUs.

    Args:
        groups: rows.
        job_id: Ray's own id of the job.
        now: seconds since the epoch.
    """
    found = []
    for group in _of_job(groups, "creator_job_id", job_id):
        given = group.get("stats")
        stats: Mapping[str, Any] = given if isinstance(given, dict) else {}
        since = _seconds(stats.get("creation_request_received_ns"))
        if group.get("state") in _WAITS and since is not None and now - since > WAITS_S:
            why = str(stats.get("scheduling_state") or "pending").lower().replace("_", " ")
            reason = f"has waited {duration_text(now - since)} for a node with {_needs(group)} free ({why})"
            found.append(Blame(None, "placement group", reason))
    return tuple(found[:1])


def dead_actors(actors: Sequence[Any], job_id: str) -> dict[str, Blame]:
    """Actors of a job that died without its will, while it goes on, by their ids.

    Args:
        actors: rows.
        job_id: Ray's own id of the job.
    """
    found = {}
    for actor in _of_job(actors, "job_id", job_id):
        error = _death(actor)
        if actor.get("state") == "DEAD" and error.strip() and not any(text in error for text in _INTENDED):
            first = error.strip().splitlines()[0][:_LONGEST_ERROR]
            pid = actor.get("pid")
            found[str(actor.get("actor_id"))] = Blame(
                None, str(actor.get("class_name") or "an actor"), f"is dead, and the job waits for it: {first}",
                pid if isinstance(pid, int) else 0,
            )  # fmt: skip
    return found


def _of_job(rows: Sequence[Any], key: str, job_id: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if isinstance(row, dict) and row.get(key) == job_id]


def _death(actor: Mapping[str, Any]) -> str:
    """Ray's words: the one entry of `death_cause` says of which kind it is."""
    causes = actor.get("death_cause")
    contexts: Iterable[Any] = causes.values() if isinstance(causes, dict) else ()
    return next((str(context.get("error_message") or "") for context in contexts if isinstance(context, dict)), "")


def resources_text(resources: Mapping[str, Any]) -> str:
    """`CPU 3, GPU 1`."""
    counts = {name: count for name, count in sorted(resources.items()) if isinstance(count, (int, float))}
    return ", ".join(
        f"{name} {size_text(int(count)) if name == 'memory' else f'{count:g}'}" for name, count in counts.items()
    )


def _needs(group: Mapping[str, Any]) -> str:
    """`8x CPU 3, GPU 1`."""
    bundles = group.get("bundles")
    needs = [bundle.get("unit_resources") for bundle in bundles or () if isinstance(bundle, dict)]
    texts = [resources_text(need) for need in needs if isinstance(need, dict)]
    counts = {text: texts.count(text) for text in texts}
    return " and ".join(f"{count}x {text}" if count > 1 else text for text, count in counts.items()) or "its resources"


def _seconds(nanoseconds: Any) -> float | None:
    """Ray writes 64-bit numbers as text."""
    try:
        value = int(nanoseconds) / 1e9
    except (TypeError, ValueError):
        return None
    return value or None
