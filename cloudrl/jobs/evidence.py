"""What warnings about a job that runs are drawn from, and what a warning is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cloudrl.protocol.job_phases import JobState
from cloudrl.protocol.report import Usage
from cloudrl.protocol.stops import Stop
from cloudrl.verl.metrics import Step


@dataclass(frozen=True)
class RunWarning:
    """One thing that is wrong.

    Attributes:
        kind: `hang`, `debugger`, `nan`, `reward`, `entropy`, `length`, `tools`, `prompts`, `node`, `gpu`, `memory`,
            `shm`, `store`, `disk`, `spot`, or one of a node's own, `machine`, `network` or `slow`; there is one of a
            kind at most.
        seen: what is seen, with its numbers.
        remedy: what to do.
        of: which one of its kind, where another may follow; "" for others.
    """

    kind: str
    seen: str
    remedy: str
    of: str = ""


@dataclass(frozen=True)
class Evidence:
    """What warnings are drawn from.

    Attributes:
        steps: of the run so far.
        usage: rank -> how busy the node was, oldest first.
        tool_failures: failed calls of tools during each of the last steps.
        failed_prompts: that got no answers or no score since the last step.
        prompt_exception: of the newest of them; "" if unknown.
        pools: rank -> what the node is for, where the rollout has nodes of its own; else empty.
        left_s: seconds until the run ends; None if unknown.
        stops: tasks that wait for a debugger.
        now: seconds since the epoch.
        job: where the training stands; None if unknown.
        price_per_hour: of the cluster in US dollars; None if unknown.
        url: of the job.
    """

    steps: Sequence[Step] = ()
    usage: Mapping[int, Sequence[Usage]] = field(default_factory=dict)
    tool_failures: Sequence[int] = ()
    left_s: float | None = None
    stops: Sequence[Stop] = ()
    now: float = 0.0
    job: JobState | None = None
    price_per_hour: float | None = None
    failed_prompts: int = 0
    prompt_exception: str = ""
    pools: Mapping[int, str] = field(default_factory=dict)
    url: str = "ID"
