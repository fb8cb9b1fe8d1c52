"""Jobs that failed on a real Ray of two nodes: the first cause and its place, from the state and from logs alone."""

from dataclasses import replace

import pytest
from recordings import FOLDER, load

from cloudrl.jobs.causes import find_cause
from cloudrl.protocol.ray_state import KINDS

CAUSES = {
    # recording: rank, process without its id, signature, how the error begins
    "kill": (0, "WorkerDict_1:0", "process-killed", "Worker unexpectedly exits with a connection error"),
    "raises": (0, "Rank", None, "ValueError: rank 1 has no more"),
    "unknown_key": (0, "driver", "unknown-key", "Could not override 'actor_rollout_ref.rollout.nonsense'"),
}


def test_each_recording_has_its_row():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(CAUSES)


@pytest.mark.parametrize("name", CAUSES)
def test_the_first_cause(name: str):
    rank, process, signature, error = CAUSES[name]
    found = find_cause(load(name))
    assert (found.rank, found.process.partition(" (")[0], found.signature) == (rank, process, signature)
    assert found.error.startswith(error)


@pytest.mark.parametrize("name", CAUSES)
def test_the_order_of_rows_changes_nothing(name: str):
    held = load(name)
    turned = {kind: getattr(held.state, kind)[::-1] for kind in KINDS}
    assert find_cause(replace(held, state=replace(held.state, **turned))) == find_cause(held)
