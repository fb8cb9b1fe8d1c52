"""How many ranks were lost, of 256."""

import threading
import time
from dataclasses import replace

import pytest
from patience import SLOWER

from cloudrl.logs.causes.signatures import recognise
from cloudrl.node.losses import find_loss
from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.interruptions import Interruption
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.side_by_side import AT_ONCE

NODES = 256


class Ranks:
    """Those of `down` have been silent for so many seconds, all others for none."""

    def __init__(self, down: dict[int, float], *, answer: str = "silent", ended: tuple[int, ...] = ()) -> None:
        self._down, self._answer = down, answer
        self.reports = [
            NodeReport(rank, f"10.0.0.{rank}", f"host-{rank}", phase=Phase.ENDED if rank in ended else Phase.READY)
            for rank in range(NODES)
        ]
        self.probes = 0
        self._lock = threading.Lock()

    def probe(self, report: NodeReport) -> str:
        with self._lock:
            self.probes += 1
        return self._answer if report.rank in self._down else "open"

    def find(self, late: dict[int, float] | None = None) -> Failure | None:
        age_s = {**self._down, **(late or {})}
        return find_loss(self.reports, lambda rank: age_s.get(rank, 0.1), self.probe, lost_after_s=30.0)


def test_all_beat() -> None:
    ranks = Ranks({})
    assert ranks.find() is None
    assert ranks.probes == 0


def test_late_beats_are_no_loss() -> None:
    ranks = Ranks({})
    assert ranks.find(late=dict.fromkeys(range(1, NODES), 20.0)) is None
    assert ranks.probes == NODES - 1


def test_one_is_lost() -> None:
    failure = Ranks({14: 31.2}).find(late={20: 20.0})
    assert failure is not None
    assert (failure.kind, failure.rank) == (FailureKind.LOST, 14)
    assert failure.reason == "rank 14 (host-14, 10.0.0.14) was lost in phase ready: no heartbeat for 31 s"


def test_half_is_lost_with_a_switch() -> None:
    """The first is too late, the others were heard of a little later."""
    down = {rank: 30.5 - (rank - 128) / 128 for rank in range(128, 256)}
    failure = Ranks(down).find(late={3: 2.0, 4: 1.0})
    assert failure is not None
    assert failure.rank == 128
    assert failure.reason.endswith(": no heartbeat for 30 s; so were ranks 129-255: 128 of 256 nodes")


def test_agents_that_were_ended_all_at_once() -> None:
    """Most have beaten a moment ago when the first is seen to be gone."""
    failure = Ranks({rank: 0.32 + rank / 20 for rank in range(30, 45)}, answer="refused").find()
    assert failure is not None
    assert failure.reason == (
        "rank 44 (host-44, 10.0.0.44) was lost in phase ready: no heartbeat for 3 s, and its agent is gone; "
        "so were ranks 30-43: 15 of 256 nodes"
    )


def test_one_more() -> None:
    failure = Ranks({7: 40.0, 9: 40.0}).find()
    assert failure is not None
    assert failure.reason.endswith("; so was rank 9: 2 of 256 nodes")


def test_those_that_ended_by_themselves_are_another_matter() -> None:
    failure = Ranks({7: 40.0, 8: 40.0, 9: 40.0}, answer="refused", ended=(7, 9)).find()
    assert failure is not None
    assert "host-7, 10.0.0.7) was ended there: no heartbeat for 40 s" in failure.reason
    assert failure.reason.endswith("; so was rank 9: 2 of 256 nodes")


@pytest.mark.parametrize("step", [2, 7])
def test_the_reason_stays_short(step: int) -> None:
    failure = Ranks(dict.fromkeys(range(0, NODES, step), 31.0)).find()
    assert failure is not None
    assert len(failure.reason) < 400


def test_probes_are_sent_side_by_side() -> None:
    """A host that is off takes half a second to be silent: one after the other no signal would be looked at."""
    meeting = threading.Barrier(AT_ONCE)
    ranks = Ranks(dict.fromkeys(range(64), 20.0))

    def probe(report: NodeReport) -> str:
        meeting.wait(30 * SLOWER)
        return ranks.probe(report)

    assert find_loss(ranks.reports, lambda rank: 20.0 if rank < 64 else 0.1, probe, lost_after_s=30.0) is None
    assert ranks.probes == 64


def test_what_is_announced_for_later_is_not_what_has_ended_it() -> None:
    ranks = Ranks({14: 31.2})
    later = Interruption("GCP", "maintenance", time.time() + 3000)
    ranks.reports[14] = replace(ranks.reports[14], interruption=later)
    failure = ranks.find()
    assert failure is not None
    when = time.strftime("%H:%M UTC", time.gmtime(later.ends_at))
    assert f"was lost, with a maintenance notice of GCP for {when}: no heartbeat" in failure.reason
    found = recognise(failure.reason)
    assert found is not None
    assert found.name == "node-lost"


def test_a_notice_is_its_reason() -> None:
    ranks = Ranks({14: 31.2})
    ranks.reports[14] = replace(ranks.reports[14], interruption=Interruption("AWS", "spot", 0.0))
    failure = ranks.find()
    assert failure is not None
    assert failure.reason == "rank 14 (host-14, 10.0.0.14) was taken back (spot notice of AWS): no heartbeat for 31 s"
    found = recognise(failure.reason)
    assert found is not None
    assert found.name == "spot-interrupted"
