"""What to do about a hang, by what is to blame and by the phase. Pure."""

from __future__ import annotations

from typing import Sequence

from cloudrl.protocol.job_phases import Blame, JobPhase

_BY_REASON = (
    (
        "is stopped",
        "Find out who has stopped the process; `kill -CONT PID` on that node lets it go on",
    ),
    (
        "waits in the kernel",
        "Look at that node's disks, shares and GPU driver (dmesg), and replace it if they are lost",
    ),
    ("is dead", "It will not come back: stop the job and start it again; it resumes from its newest checkpoint"),
    (
        "has waited",
        "The cluster lacks what the job asks for: compare its nodes (cloudrl status), and stop what else runs on it",
    ),
    (
        "needs",
        "Ask for less (num_gpus, num_cpus or memory of that actor), or start a cluster with larger nodes",
    ),
    (
        "lags behind",
        "That rank has not come to the collective that the others wait in: see its frame, and dmesg on its node",
    ),
    ("waits for an answer", "Look at the service behind that address, and give calls of it a time-out"),
)
_BY_PHASE = {
    JobPhase.GEN: "Give tools and judges a time-out; a stuck rollout engine needs a restart of the job",
    JobPhase.REWARD: "Give the reward function a time-out for each answer: it does not return",
    JobPhase.TESTING: "A validation may be long: if it does not end, give tools and the reward function a time-out",
    JobPhase.SAVE_CHECKPOINT: "The volume may not answer: try to write a file there",
    JobPhase.LOAD_CHECKPOINT: "The volume may not answer: try to read a file there",
    JobPhase.DATA: "The data set's own code does not return the next batch: see the frame",
    JobPhase.PLACEMENT: "The cluster does not have what the job asks for: compare nodes and GPUs with cloudrl status",
}
_ELSE = "Stop the job and start it again; it resumes from its newest checkpoint"


def remedy(phase: str, blame: Sequence[Blame]) -> str:
    """One sentence for a person."""
    for found in blame[:1]:
        for reason, text in _BY_REASON:
            if found.reason.startswith(reason):
                return text
    return next((text for name, text in _BY_PHASE.items() if name == phase), _ELSE)
