"""Deadlines follow from the times that were asked for, and the one that says most comes first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.node.timeouts import INSPECTION_S, PhaseTimeouts
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.phases import Phase

TIMES = st.integers(min_value=1, max_value=100_000)


def _words(setup: int, ray: int, fetch: int, join: int, lost: int) -> list[str]:
    times = {"setup-timeout": setup, "ray-timeout": ray, "fetch-timeout": fetch, "join-timeout": join}
    return [f"--lost-after-s={lost}", *(f"--{name}-s={seconds}" for name, seconds in times.items())]


@given(TIMES, TIMES, TIMES, TIMES, TIMES, st.integers(0, 3), st.integers(0, 3))
def test_a_ranks_own_deadline_is_within_that_of_its_phase(
    setup: int, ray: int, fetch: int, join: int, lost: int, data: int, models: int
) -> None:
    words = [*_words(setup, ray, fetch, join, lost), *["--data=x"] * data, *["--model=m"] * models]
    found = PhaseTimeouts(AgentOptions.from_argv(words))
    phases = found.phases
    assert phases[Phase.SETUP] == setup
    assert phases[Phase.PREFLIGHT] >= found.head_ready_s + INSPECTION_S
    assert phases[Phase.RAY] == found.gcs_s + ray
    assert phases[Phase.FETCH] == found.fetch_s + ray
    assert found.gcs_s > ray  # rank 0 knows more of its own Ray than those that wait for it
    assert found.fetch_s >= ray + fetch * max(data, models)
    assert found.ray_head_s <= ray
    assert found.barrier_s >= join + sum(limit for phase, limit in phases.items() if phase is not Phase.BARRIER)
    assert phases[Phase.BARRIER] > found.barrier_s


def test_every_phase_before_ready_has_an_end() -> None:
    found = PhaseTimeouts(AgentOptions.from_argv([]))
    every = list(Phase)
    agents = every[every.index(Phase.START) : every.index(Phase.ENDED) + 1]
    hangs = {each: found.hang(each, 1e9) for each in agents if each is not Phase.TERMINATING}
    assert [each for each, hang in hangs.items() if not hang] == ["ready", "failed", "ended"]
    with pytest.raises(KeyError):
        found.hang(Phase.PULLING, 1e9)


def test_a_rank_hangs_after_the_limit_and_the_time_for_its_heartbeats() -> None:
    found = PhaseTimeouts(AgentOptions.from_argv(["--setup-timeout-s=60", "--lost-after-s=10"]))
    assert found.hang(Phase.SETUP, 70) == ""
    assert found.hang(Phase.SETUP, 71, "make") == "hangs in phase setup (make): 71 s, and the limit is 60 s"


@pytest.mark.parametrize(
    ("words", "items"),
    [([], 0), (["--model=a", "--model=b"], 2), (["--data=a"], 2), (["--data=a", "--model=a", "--model=b"], 3)],
)
def test_time_to_fetch_grows_with_what_is_fetched(words: list[str], items: int) -> None:
    """Side by side on rank 0; then the data go to the others."""
    found = PhaseTimeouts(AgentOptions.from_argv(["--ray-timeout-s=600", "--fetch-timeout-s=7200", *words]))
    assert found.fetch_s == 600 + items * 7200
