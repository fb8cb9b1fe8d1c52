"""Jobs: plan, submit, list, follow, stop."""

from typing import TYPE_CHECKING

from cloudrl.lazy_names import lazy_names

if TYPE_CHECKING:
    from cloudrl.jobs.events import Ended as Ended
    from cloudrl.jobs.events import Event as Event
    from cloudrl.jobs.events import Line as Line
    from cloudrl.jobs.events import Progress as Progress
    from cloudrl.jobs.handle import JobHandle as JobHandle
    from cloudrl.jobs.handle import find_job as find_job
    from cloudrl.jobs.neighbours import job_of_cluster as job_of_cluster
    from cloudrl.jobs.neighbours import wait_for_end as wait_for_end
    from cloudrl.jobs.pipeline import plan_job as plan_job
    from cloudrl.jobs.submission import Submission as Submission
    from cloudrl.jobs.submit import prepare as prepare
    from cloudrl.jobs.submit import send as send
    from cloudrl.jobs.submit import take_snapshot as take_snapshot
    from cloudrl.options.job import SubmitOptions as SubmitOptions
    from cloudrl.verl.metrics import Step as Step
    from cloudrl.verl.startup import Starting as Starting

__getattr__ = lazy_names(
    __name__,
    {
        "cloudrl.jobs.events": (
            "Ended",
            "Event",
            "Line",
            "Progress",
        ),
        "cloudrl.jobs.handle": (
            "JobHandle",
            "find_job",
        ),
        "cloudrl.jobs.neighbours": ("job_of_cluster", "wait_for_end"),
        "cloudrl.jobs.pipeline": ("plan_job",),
        "cloudrl.jobs.submission": ("Submission",),
        "cloudrl.jobs.submit": (
            "prepare",
            "send",
            "take_snapshot",
        ),
        "cloudrl.options.job": ("SubmitOptions",),
        "cloudrl.verl.metrics": ("Step",),
        "cloudrl.verl.startup": ("Starting",),
    },
)
