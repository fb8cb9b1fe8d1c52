"""The real supervisor on simulated clusters: what must never happen, and what must happen in the end."""

import os
from dataclasses import replace

import pytest
from durable.simulation import World, shrunk

from cloudrl.durable import queue
from cloudrl.durable.verdicts import Judgement
from cloudrl.node import supervisor
from cloudrl.node.supervisor import Supervisor
from cloudrl.protocol.durable_jobs import DurableJob, Verdict

FOUND = (73, 926, 941, 1678, 3686)
"""Seeds that have shown a fault once."""
SEEDS = 500
MANY = 10_000


def _failing(seeds):
    for seed in seeds:
        if World(seed).run():
            world, violations = shrunk(seed)
            trace = "\n".join(world.trace[-40:])
            return f"seed {seed} with {world.faults}: {violations}\n{world.scripts}\n{trace}"
    return ""


def test_nothing_is_lost_doubled_or_left_without_an_end():
    assert _failing((*FOUND, *range(SEEDS))) == ""


@pytest.mark.slow
@pytest.mark.skipif("CLOUDRL_SLOW" not in os.environ, reason="takes minutes: CLOUDRL_SLOW=1")
def test_many_seeds():
    assert _failing(range(MANY)) == ""


def _plant(monkeypatch, name):
    """A fault in the real code."""
    plain = {each: getattr(queue, each) for each in ("_planned", "_stop")}
    faults = {
        "a silent node is the end": lambda: monkeypatch.setattr(
            queue, "_planned", lambda state, event, now: plain["_planned"](
                state, replace(event, may_pass=False) if isinstance(event, queue.PlanFailed) else event, now
            ),
        ),
        "sent before it is recorded": lambda: monkeypatch.setattr(
            queue, "_planned", lambda *each: _reversed(*plain["_planned"](*each))
        ),
        "tried for ever": lambda: monkeypatch.setattr(queue, "_gives_up", lambda *_: None),
        "silence is the end": lambda: monkeypatch.setattr(
            supervisor, "_GONE_ROUNDS", 0
        ) or monkeypatch.setattr(Supervisor, "look", _look_at_silence(Supervisor.look)),
        "others are not seen": lambda: monkeypatch.setattr(Supervisor, "_others", lambda *_: []),
        "the journal is not read": lambda: monkeypatch.setattr(
            queue, "restore", lambda _records, *, cluster, cluster_run, now: (queue.Queue(cluster), [])
        ),
        "an id is used twice": lambda: monkeypatch.setattr(
            DurableJob, "next_submission_id", property(lambda job: job.job_id)
        ),
        "any end is the infrastructure's": lambda: monkeypatch.setattr(
            queue, "judge", lambda *_: Judgement(Verdict.INFRASTRUCTURE, "?")
        ),
        "a stop is not recorded": lambda: monkeypatch.setattr(
            queue, "_stop", lambda state, *each: (state, plain["_stop"](state, *each)[1][2:])
        ),
        "another step than the whole one": lambda: monkeypatch.setattr(
            queue, "_planned", lambda state, event, now: plain["_planned"](
                state, replace(event, from_step=max(event.from_step - 1, 0)) if isinstance(event, queue.Planned)
                else event, now,
            ),
        ),
    }  # fmt: skip
    faults[name]()


def _reversed(state, actions):
    return state, actions[::-1]


def _look_at_silence(look):
    def look_at(self):
        jobs = self._machinery.jobs
        self._machinery = replace(self._machinery, jobs=lambda: jobs() or [])
        look(self)
        self._machinery = replace(self._machinery, jobs=jobs)

    return look_at


PLANTED = (
    "a silent node is the end", "sent before it is recorded", "tried for ever", "silence is the end",
    "others are not seen", "the journal is not read", "an id is used twice", "any end is the infrastructure's",
    "a stop is not recorded", "another step than the whole one",
)  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_in_the_real_code_is_found(monkeypatch, fault):
    _plant(monkeypatch, fault)

    assert any(_is_found(seed) for seed in range(300))


def _is_found(seed):
    try:
        return bool(World(seed).run())
    except (AssertionError, IndexError, KeyError, RecursionError):
        return True
