"""What machines cost when no run uses them, told from a server's answers."""

from __future__ import annotations

import pytest
from fake_dstack import FakeDstack, fleet

from cloudrl.providers.dstack.machine_states import FleetState
from cloudrl.providers.dstack.machines import DstackFleets
from cloudrl.providers.dstack.provider import DstackProvider


@pytest.mark.parametrize(
    ("idle_s", "least", "said"),
    [
        (300, 0, "2 machines of fleet gpu-fleet go on costing $25.00/h until they were idle for 5m, $2.08 at most"),
        (300, 1, "2 machines of fleet gpu-fleet go on costing $25.00/h until the fleet is deleted"),
        (-1, 0, "2 machines of fleet gpu-fleet go on costing $25.00/h until the fleet is deleted"),
    ],
)
def test_idle_machines_that_are_rented(dstack: FakeDstack, idle_s: int, least: int, said: str) -> None:
    dstack.held_fleets = [fleet(idle_s=idle_s, least=least, spots=[False, False])]
    [notice] = DstackProvider().idle_costs()
    assert notice.text == said
    assert notice.hint == "End that now: cloudrl fleet delete gpu-fleet"


def test_machines_in_use_and_ones_own_cost_nothing_more(dstack: FakeDstack) -> None:
    used, own = fleet(spots=[False]), fleet("rack", ssh=True, spots=[False])
    used.instances[0].status.value, own.instances[0].backend.value = "busy", "remote"
    dstack.held_fleets = [used, own, fleet("empty")]
    assert DstackProvider().idle_costs() == []
    [mine, *_] = DstackFleets(dstack.server).list()
    assert mine.goes_on_costing(mine.present) is not None


@pytest.mark.parametrize(
    ("backends", "is_own"), [(("kubernetes",), True), (("kubernetes", "aws"), False), (("aws",), False), ((), False)]
)
def test_a_fleet_of_ones_own_cluster_without_pods(backends: tuple[str, ...], is_own: bool) -> None:
    """Pods come with a run; to rent others in place of them takes an answer all the same."""
    state = FleetState("pods", "active", (), idle_duration_s=300, is_ssh=False, backends=backends)
    assert state.is_own is is_own
