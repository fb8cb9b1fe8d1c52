"""A training that stands still, in sentences."""

from cloudrl.hangs.remedies import remedy
from cloudrl.jobs.hangs import hang_notice
from cloudrl.protocol.job_phases import Blame, Grade, Hang, JobState


def test_the_stillness_is_that_of_the_newest_look():
    """Rank 0 gives it anew with each look, so the time since the hang was found is in it."""
    state = JobState("one", "gen", 1000.0, hang=Hang(Grade.STILL, told_at=1400.0, still_s=900.0, limit_s=330.0))
    notice = hang_notice(state, 1970.0)
    assert notice is not None
    assert "nothing has moved for 15 min 00 s" in notice.text


def test_what_a_person_reads_of_a_stopped_rank():
    blame = Blame(1, "WorkerDict", "is stopped", 305, "10.0.0.7", "update_actor", "step (optimizer.py:3)")
    hang = Hang(Grade.PROOF, 1400.0, blame=(blame,), waiting="1 rank waits in barrier", remedy=remedy("gen", [blame]))
    notice = hang_notice(JobState("one", "update_actor", 1000.0, step=7, hang=hang), 1065.0, 3.5)
    assert notice is not None
    assert notice.text == (
        "the job cannot go on: step 7, update_actor for 1 min 05 s, at $3.50/h; "
        "WorkerDict.update_actor (pid 305) on rank 1 (10.0.0.7) is stopped, at step (optimizer.py:3); "
        "1 rank waits in barrier"
    )
    assert notice.hint.splitlines() == [
        "Find out who stopped the process. On its node, this lets it go on: kill -CONT 305",
        "Stacks of all ranks: cloudrl why one --stacks",
        "Stop the job: cloudrl jobs stop one",
    ]


def test_a_remedy_for_the_actor_that_is_to_blame():
    """Rewards are computed while the rollout runs."""
    assert "reward function" in remedy("gen", [Blame(0, "RewardLoopWorker", "has not returned")])
    assert "tool" in remedy("gen", [Blame(0, "AgentLoopWorkerTQ", "has not returned")])
    assert "rollout engine" in remedy("gen", [])
