"""What is known around a run, as rows of text: attempts, nodes, checkpoints, cost."""

import math
import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime

from cloudrl.logs.causes import Evidence
from cloudrl.protocol.report import GpuUsage, NodeReport
from cloudrl.providers.model import Status
from cloudrl.report.model import Table
from cloudrl.saves.inventory import Checkpoint
from cloudrl.saves.places import nodes_text
from cloudrl.transport.ray_job import RayJob
from cloudrl.units import dollars_text, duration_text, size_text
from cloudrl.verl.balance import Balance
from cloudrl.verl.memory.runs import RunMemory


def attempts_table(jobs: Iterable[RayJob], status: Status | None) -> Table:
    """The jobs that have trained the run, and the starts of the cluster before the present one."""
    rows = [
        (job.submission_id, str(job.status), _moment(job.start_time), _took(job.start_time, job.end_time))
        for job in jobs
    ]
    for attempt in status.previous_attempts if status is not None else ():
        reason = f"ended and was started again: {attempt['reason']}"
        took = _took(attempt["submitted_at"], attempt["ended_at"])
        rows.append((f"cluster, attempt {attempt['attempt']}", reason, _moment(attempt["submitted_at"]), took))
    return Table("Attempts", ("job", "status", "started", "took"), tuple(rows))


def about_run(job: RayJob, nodes: Sequence[NodeReport] = ()) -> dict[str, str]:
    """What a run is at a glance: heading -> text; what is unknown is left out.

    Args:
        job: the last of its jobs.
        nodes: of its cluster, the first of which says which versions it has.
    """
    said = job.metadata
    recipe, mine = said.get("cloudrl_recipe", ""), said.get("cloudrl_overrides", "")
    name, group = said.get("job_name", ""), said.get("cloudrl_group", "")
    named = f"--name {shlex.quote(name)}" if name and name != job.submission_id else ""
    labelled = f"--group {shlex.quote(group)}" if group else ""
    versions = {"verl": said.get("cloudrl_verl")}
    if nodes:
        versions = {"verl": nodes[0].verl_version, "Ray": nodes[0].ray_version, "Python": nodes[0].python_version}
    rows = {
        "Command": " ".join(filter(None, ["cloudrl submit", shlex.quote(recipe), named, labelled, mine]))
        if recipe
        else "",
        "Group": group,
        "Overrides of mine": "\n".join(shlex.split(mine)),
        "Versions": ", ".join(f"{what} {version}" for what, version in versions.items() if version),
        "Git commit": said.get("cloudrl_commit", ""),
        "Started": _moment(job.start_time),
        "Duration": _took(job.start_time, job.end_time),
    }
    return {heading: text for heading, text in rows.items() if text}


def nodes_table(nodes: Sequence[NodeReport]) -> Table:
    """The nodes, with how busy they are now. On CPUs, Ray counts a rank's share of them as a GPU."""
    has_gpus = any(node.usage is not None and node.usage.gpus for node in nodes)
    rows = tuple(
        (
            str(node.rank), node.ip, str(node.phase), node.detail, str(node.gpus) if has_gpus else "",
            "\n".join(map(_gpu, node.usage.gpus)) if node.usage is not None else "", _memory(node),
        )
        for node in nodes
    )  # fmt: skip
    return Table("Nodes", ("rank", "address", "phase", "detail", "GPUs", "GPU use now", "memory now"), rows)


def kept_nodes_table(evidence: Evidence) -> Table:
    """The nodes of a cluster that is gone, as Ray saw them when its records were kept."""
    keys = ("node_ip", "state", "state_message")
    ranked = [(evidence.rank_of(node.get("node_id")), node) for node in evidence.state.nodes]
    rows = tuple(
        ("" if rank is None else str(rank), *(str(node.get(key) or "") for key in keys))
        for rank, node in sorted(ranked, key=lambda row: math.inf if row[0] is None else row[0])
    )
    return Table("Nodes", ("rank", "address", "last state", "why"), rows)


def checkpoints_table(checkpoints: Iterable[Checkpoint]) -> Table:
    """Those of one run."""
    rows = tuple(
        (
            str(checkpoint.step), checkpoint.role, checkpoint.shortfall or "complete",
            size_text(checkpoint.size_bytes), nodes_text(place for place in checkpoint.locations if place.ranks),
        )
        for checkpoint in checkpoints
    )  # fmt: skip
    return Table("Checkpoints", ("step", "role", "state", "size", "where"), rows)


def cost_table(status: Status) -> Table:
    """Of the whole cluster, not of one job alone."""
    per_hour = dollars_text(status.price_per_hour) if status.price_per_hour else "-"
    budget = dollars_text(status.budget.max_cost) if status.budget.max_cost else "-"
    so_far = dollars_text(status.cost) if status.cost is not None else "-"
    rows = ((status.name, status.provider, per_hour, so_far, budget),)
    return Table(
        "Cost", ("cluster", "on", "an hour", "so far", "limit"), rows if status.price_per_hour or status.cost else ()
    )


def memory_table(run: RunMemory) -> Table:
    """What training has needed of a GPU, beside what was estimated; no rows before it has said so."""
    columns = ("", "GiB of a GPU")
    if not run.allocated_gib:
        return Table("Memory of training", columns, ())
    rows = [("most allocated", f"{run.allocated_gib:.1f}"), ("most reserved", f"{run.reserved_gib:.1f}")]
    if run.estimate_gib:
        low, likely, high = run.estimate_gib
        rows.append(("estimated by check", f"{likely:.1f} ({low:.1f} to {high:.1f})"))
    return Table("Memory of training", columns, tuple(rows))


def balance_table(balance: Balance | None) -> Table:
    """How rollout and training of an asynchronous run keep pace; no rows in another mode."""
    return Table("Rollout and training", ("", "over the whole run"), balance.rows if balance is not None else ())


def _gpu(gpu: GpuUsage) -> str:
    share = f"{gpu.utilization_percent:.0f} %" if gpu.utilization_percent is not None else "-"
    memory = ""
    if gpu.memory_used_mib is not None and gpu.memory_total_mib:
        memory = f", {gpu.memory_used_mib / 1024:.0f} of {gpu.memory_total_mib / 1024:.0f} GiB"
    return f"{gpu.index}: {share}{memory}"


def _memory(node: NodeReport) -> str:
    if node.usage is None or not node.usage.memory_total_bytes:
        return ""
    return f"{size_text(node.usage.memory_used_bytes or 0)} of {size_text(node.usage.memory_total_bytes)}"


def _moment(seconds: float | None) -> str:
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S}" if seconds else ""


def _took(start: float | None, end: float | None) -> str:
    return duration_text(end - start) if start and end else ""
