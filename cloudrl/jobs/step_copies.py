"""Whether copies of a durable job's steps have room on the nodes, and reach a mirror before the next save. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cloudrl.jobs.asynchronous import training_shape
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.save_room import save_bytes
from cloudrl.jobs.submission import DurablePlan
from cloudrl.spec.hydra import integer
from cloudrl.spec.sizes import duration_with_unit, seconds_of
from cloudrl.units import duration_option, duration_text, size_text
from cloudrl.verl import keys
from cloudrl.verl.memory.runs import run_alike

_COPIES = 2
"""Of a partner's saves: the safe one, and the one that is copied."""
_MEGABYTE = 1 << 20
"""As options have it (`spec.sizes.size_bytes`)."""


def warnings_of_copies(draft: JobDraft, snapshot: Snapshot, plan: DurablePlan) -> Iterator[str]:
    """What makes copies of a job's steps come late, or not at all.

    Args:
        draft: the job, with the verdict on its memory, which has the bytes of a save.
        snapshot: with the step times of earlier runs.
        plan: what the agents know of the job.
    """
    part = copied_bytes(draft)
    if part and plan.saves:
        yield from _short_of_room(draft, plan, part)
        yield from _slow_mirror(draft, snapshot, plan, part)


def copied_bytes(draft: JobDraft) -> int:
    """What each node copies of a save, rank 0 alone of a folder that all share; 0 if unknown."""
    nodes = 1 if draft.cluster.shared_checkpoints else training_shape(draft)[0]
    return save_bytes(draft.memory.estimate, nodes) if draft.memory is not None else 0


def _short_of_room(draft: JobDraft, plan: DurablePlan, part: int) -> Iterator[str]:
    """A node holds the saves that are kept and the one being written, and copies of another node's."""
    cluster = draft.cluster
    if cluster.has_one_disk or cluster.gpu_nodes < 2:
        return
    for_good = bool(plan.keep_best) + ((plan.total_steps or 0) // plan.keep_every if plan.keep_every else 0)
    own, copies = max(1, plan.keep) + 1 + for_good, _COPIES + for_good
    needed = (own + copies) * part
    if _COPIES * part <= cluster.disk_bytes < needed:  # with less a copy never fits, which is a warning of its own
        fewer = f", or {keys.CHECKPOINTS_KEPT}=1" if plan.keep > 1 else ""
        yield (
            f"each node needs room for {own} of its own saves and for copies of {copies} from another node, "
            f"{size_text(needed)}, and {size_text(cluster.disk_bytes)} are free: some steps will stay on one machine. "
            f"A larger disk: --set disk=SIZE{fewer}"
        )


def _slow_mirror(draft: JobDraft, snapshot: Snapshot, plan: DurablePlan, part: int) -> Iterator[str]:
    """Saves that come faster than `--mirror-rate` can send them."""
    interval = _interval(draft, snapshot)
    if not plan.mirror or not plan.mirror_rate or interval is None:
        return
    interval_s, source = interval
    takes_s = part / plan.mirror_rate
    if takes_s <= interval_s:
        return
    rate = -(-part // round(interval_s * _MEGABYTE))
    yield (
        f"--mirror-rate {draft.options.mirror_rate}: a save of {size_text(part)} takes a node "
        f"{duration_text(takes_s)}, and the next one comes after {duration_text(interval_s)} ({source}): the mirror "
        f"leaves saves out. It keeps up with --mirror-rate {rate}MB or --save-every {_minutes(takes_s)}"
    )


def _interval(draft: JobDraft, snapshot: Snapshot) -> tuple[float, str] | None:
    """Seconds between two saves, and who says so; None if unknown."""
    if draft.options.save_every is not None:
        return float(seconds_of(duration_with_unit(draft.options.save_every))), "--save-every"
    frequency, memory = integer(draft.values.get(keys.SAVE_FREQ)) or 0, draft.memory
    run = run_alike(snapshot.runs, memory.run_of("", draft.job.name)) if memory is not None else None
    if run is None or frequency < 1:
        return None
    return frequency * run.step_s, f"{keys.SAVE_FREQ}={frequency}, steps as long as in run {run.submission_id}"


def _minutes(seconds: float) -> str:
    """Whole minutes, not fewer."""
    return duration_option(-(-seconds // 60) * 60)
