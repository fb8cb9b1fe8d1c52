"""A training that stands still, in sentences."""

from cloudrl.jobs.hangs import hang_notice
from cloudrl.protocol.job_phases import Grade, Hang, JobState


def test_the_stillness_is_that_of_the_newest_look():
    """Rank 0 gives it anew with each look, so the time since the hang was found is in it."""
    state = JobState("one", "gen", 1000.0, hang=Hang(Grade.STILL, told_at=1400.0, still_s=900.0, limit_s=330.0))
    notice = hang_notice(state, 1970.0)
    assert notice is not None
    assert "nothing has moved for 15 min 00 s" in notice.text
