"""An hour of a real training raises no alarm, whatever its stacks would say.

`recorded_training.json` has the heartbeats of two nodes, each 5 s, while grpo-tiny trained 530 steps with verl 0.9.1 on
two CPUs with a load of 16 to 109: phase, its age in seconds, phases that have ended since with their seconds, and of
each node the cores and bytes per second. At such a load hardly anything counts as moving, so that only phases tell that
the training goes on. One rollout took 73 s, where 2 are usual.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from cloudrl.node.hang_watch import HangMonitor
from cloudrl.protocol.job_work import EndedPhase, JobWork, LookedAt, PhaseNote
from cloudrl.protocol.report import NodeReport

NOW, EVERY_S = 1_700_000_000.0, 5.0
ROWS: list[Any] = json.loads(Path(__file__).with_name("recorded_training.json").read_text())
STACKS = 'Thread 1 (active): "MainThread"\n    compute_score (mine/reward.py:11)\n    run (a.py:1)\n    run (b.py:1)\n'


class Dashboard:
    """Of a cluster with one job."""

    def jobs(self) -> list[dict[str, Any]]:
        return [{"submission_id": "one", "job_id": "02", "status": "RUNNING", "start_time": NOW * 1000}]

    def placement_groups(self) -> tuple[Any, ...]:
        return ()

    def rows(self, kind: str, job_id: str) -> tuple[Any, ...]:
        return ()


class Replay:
    """The rows as heartbeats."""

    def __init__(self, folder: Path) -> None:
        self.at, self.looks, self.works = 0.0, 0, [JobWork(NOW), JobWork(NOW)]
        self._ended: list[EndedPhase] = []
        self.monitor = HangMonitor(
            lambda: [NodeReport(rank, f"10.0.0.{rank}", work=work) for rank, work in enumerate(self.works)],
            Dashboard(), self._look, lambda: folder, folder=folder, checkpoints=folder,  # type: ignore[arg-type]
            ask_ras=lambda _: ((), ""), clock=lambda: self.at, now=lambda: NOW + self.at,
        )  # fmt: skip

    def run(self, **changes: Any) -> bool:
        """Whether there is a warning of a hang at any time."""
        told = False
        for phase, age_s, ended, works in ROWS:
            self.at += EVERY_S
            for name, ended_s in ended:
                self._ended.append(EndedPhase(len(self._ended) + 1, name, ended_s))
            note = PhaseNote("02", phase, NOW + self.at - age_s, tuple(self._ended[-16:]))
            self.works = [JobWork(NOW + self.at, *work, note=note, **changes) for work in works]
            self.monitor.tick()
            told = told or (self.monitor.state is not None and self.monitor.state.hang is not None)
        return told

    def stand(self, seconds: float) -> bool:
        """The last heartbeat again: the same phase goes on, and nothing moves."""
        for _ in range(int(seconds / EVERY_S)):
            self.at += EVERY_S
            self.works = [JobWork(NOW + self.at, note=work.note) for work in self.works]
            self.monitor.tick()
        return self.monitor.state is not None and self.monitor.state.hang is not None

    def _look(self, report: NodeReport) -> tuple[LookedAt, ...]:
        self.looks += 1
        return (LookedAt(40, "ray::RewardLoopWorker.compute_score", "S", stacks=STACKS),) if report.rank else ()


@pytest.mark.parametrize("wait_percent", [0.0, 99.0])
def test_an_hour_of_a_real_training(tmp_path: Path, wait_percent: float):
    replay = Replay(tmp_path)
    assert not replay.run(cpu_wait_percent=wait_percent)
    assert replay.looks == 0
    assert replay.stand(120)  # and then it hangs
