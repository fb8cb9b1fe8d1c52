"""A search that takes too long."""

from failed_job import NODES, task

from cloudrl.logs.causes import Budget, Evidence, LogTail
from cloudrl.logs.causes.finder import search
from cloudrl.protocol.ray_state import RayState


class Clock:
    """Each look at it takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_a_search_that_takes_too_long_says_what_it_has():
    tasks = [task(f"t{at}", 5000 - at) for at in range(100)]
    evidence = Evidence(RayState(saved_at=0.0, job={}, tasks=tuple(tasks)), NODES)
    found = search(evidence, Budget(10, Clock()))
    assert (found.is_complete, found.cause.error) == (False, "ValueError: boom")
    assert found.cause.process == "t8 (pid 7)", "the first of those that were looked at"
    assert search(evidence, Budget(1000, Clock())).cause.process == "t99 (pid 7)"


def test_a_search_in_logs_that_takes_too_long():
    evidence = Evidence(logs=[LogTail("worker-a-01-1.err", 0, ("loading",) * 500 + ("ValueError: late",))])
    assert search(evidence, Budget(100, Clock())) == (None, False)
    assert search(evidence, Budget(10_000, Clock())).cause.error == "ValueError: late"
