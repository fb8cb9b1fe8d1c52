"""What to do about a hang, by what is to blame and by the phase. Pure."""

from __future__ import annotations

from typing import Sequence

from cloudrl.protocol.job_phases import Blame, JobPhase

_BY_REASON = (
    (
        "is stopped",
        "Find out who stopped the process. On its node, this lets it go on: kill -CONT {pid}",
    ),
    (
        "waits in the kernel",
        "Look at that node's disks, shares and GPU driver (dmesg), and replace it if they are lost",
    ),
    ("is dead", "It will not come back. Stop the job and submit it again: it resumes from its newest checkpoint"),
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
        "That rank has not reached the collective that the others wait in: see its frame, and dmesg on its node",
    ),
    ("waits for an answer", "Check the service at that address, and give calls to it a time-out"),
)
_REWARD = "The reward function does not return: give it a time-out for each answer"
_BY_ACTOR = {
    "RewardLoopWorker": _REWARD,
    "RewardManagerWorker": _REWARD,
    "AgentLoopWorker": "A tool or the agent loop does not return: give each call a time-out",
}
_BY_PHASE = {
    JobPhase.GEN: "Give tools and judges a time-out. If a rollout engine is stuck, start the job again",
    JobPhase.REWARD: _REWARD,
    JobPhase.TESTING: "A validation may be long: if it does not end, give tools and the reward function a time-out",
    JobPhase.SAVE_CHECKPOINT: "The volume may not answer: try to write a file there",
    JobPhase.LOAD_CHECKPOINT: "The volume may not answer: try to read a file there",
    JobPhase.DATA: "The code of the data set does not return the next batch: see the frame",
    JobPhase.PLACEMENT: "The cluster does not have what the job asks for: compare nodes and GPUs with cloudrl status",
}
_ELSE = "Stop the job and submit it again: it resumes from its newest checkpoint"


def remedy(phase: str, blame: Sequence[Blame]) -> str:
    """One sentence for a person."""
    for found in blame[:1]:
        for reason, text in _BY_REASON:
            if found.reason.startswith(reason):
                return text.format(pid=found.pid)
        for actor, text in _BY_ACTOR.items():
            if found.actor.startswith(actor):
                return text
    return next((text for name, text in _BY_PHASE.items() if name == phase), _ELSE)
