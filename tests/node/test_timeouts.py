"""Deadlines follow from the times that were asked for, and the one that says most comes first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.node.timeouts import LOOK_S, phase_timeouts
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.phases import AGENT_PHASES

TIMES = st.integers(min_value=1, max_value=100_000)


def _words(setup: int, ray: int, fetch: int, join: int, lost: int) -> list[str]:
    times = {"setup-timeout": setup, "ray-timeout": ray, "fetch-timeout": fetch, "join-timeout": join}
    return [f"--lost-after-s={lost}", *(f"--{name}-s={seconds}" for name, seconds in times.items())]


@given(TIMES, TIMES, TIMES, TIMES, TIMES, st.integers(0, 3), st.integers(0, 3))
def test_a_ranks_own_deadline_is_within_that_of_its_phase(
    setup: int, ray: int, fetch: int, join: int, lost: int, data: int, models: int
) -> None:
    words = [*_words(setup, ray, fetch, join, lost), *["--data=x"] * data, *["--model=m"] * models]
    found = phase_timeouts(AgentOptions.from_argv(words))
    phases = found.phases
    assert phases["setup"] == setup
    assert phases["preflight"] >= found.head_ready_s + LOOK_S
    assert phases["ray"] == found.gcs_s + found.ray_s
    assert phases["fetch"] == found.fetch_s + found.ray_s
    assert found.gcs_s > found.ray_s  # rank 0 knows more of its own Ray than those that wait for it
    assert found.fetch_s >= ray + fetch * max(data, models)
    assert found.ray_head_s <= found.ray_s
    assert found.barrier_s >= join + sum(phases[each] for each in AGENT_PHASES[:5])
    assert phases["barrier"] > found.barrier_s


def test_every_phase_before_ready_has_an_end() -> None:
    assert (
        tuple(phase_timeouts(AgentOptions.from_argv([])).phases)
        == AGENT_PHASES[: AGENT_PHASES.index("ready")]
    )


@pytest.mark.parametrize(
    ("words", "items"),
    [
        ([], 0),
        (["--model=a", "--model=b"], 2),
        (["--data=a"], 2),
        (["--data=a", "--model=a", "--model=b"], 3),
    ],
)
def test_time_to_fetch_grows_with_what_is_fetched(words: list[str], items: int) -> None:
    """Side by side on rank 0; then the data go to the others."""
    found = phase_timeouts(AgentOptions.from_argv(["--ray-timeout-s=600", "--fetch-timeout-s=7200", *words]))
    assert found.fetch_s == 600 + items * 7200
