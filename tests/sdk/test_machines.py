"""Fleets, towards a stand-in for what dstack answers."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import cloudrl
from cloudrl.errors import InputError, Interrupted
from cloudrl.providers.dstack.machine_states import FleetPlan, FleetState, Instance
from cloudrl.providers.dstack.machines import DstackFleets
from cloudrl.providers.model import Offer, Price
from cloudrl.sdk import machines

FLEET = cloudrl.Fleet(name="gpu-fleet", gpu="H100:8")
OFFER = Offer("aws", "us-east-1", "p5.48xlarge", "8xH100", 98.32, spot=False)
PRICE = Price(2 * OFFER.price, (OFFER,), total_offers=1)


def state(*hosts: str, ssh: bool = False) -> FleetState:
    machines = tuple(
        Instance(f"gpu-fleet-{number}", "idle", host, "aws", "us-east-1", "", 98.0) for number, host in enumerate(hosts)
    )
    return FleetState("gpu-fleet", "active", machines, 3600, is_ssh=ssh)


class Replaced:
    """A fleet that is there with one machine and cannot be changed in place; what was done is in `applied`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.applied: list[FleetPlan] = []
        self.planned = FleetPlan("", "gpu-fleet", "recreate", 2, PRICE, current=state("10.0.0.9"))
        monkeypatch.setattr(machines, "connect", lambda _project=None: SimpleNamespace(project="main"))
        monkeypatch.setattr(DstackFleets, "plan", lambda *_: self.planned)
        monkeypatch.setattr(DstackFleets, "create", self._create)

    def _create(self, planned: FleetPlan, _on_look: object) -> FleetState:
        self.applied.append(planned)
        return state("10.0.0.10")


class TestAFleetThatWouldBeReplaced:
    def test_is_not_unless_that_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        there = Replaced(monkeypatch)
        with pytest.raises(
            InputError, match="cannot be changed in place: its machines and their disks would go"
        ) as caught:
            FLEET.create(confirm=lambda _question: True)
        assert "cloudrl fleet delete gpu-fleet" in str(caught.value.hint)
        assert there.applied == []
        FLEET.create(replace=True)
        assert len(there.applied) == 1

    def test_may_be_left_to_a_question(self, monkeypatch: pytest.MonkeyPatch) -> None:
        there = Replaced(monkeypatch)
        with pytest.raises(InputError, match="There is no terminal to ask on"):
            FLEET.create(replace=None)
        assert there.applied == []
        asked: list[cloudrl.Question] = []
        FLEET.create(replace=None, confirm=lambda question: asked.append(question) is None)
        assert "gpu-fleet-0 and everything on their disks will be lost" in asked[0].text
        assert len(there.applied) == 1


def test_price_and_machines_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Replaced(monkeypatch)
    there.planned = replace(there.planned, action="create", current=None)
    told: list[Any] = []
    FLEET.create(on_progress=told.append)
    said = [each.text for each in told]
    assert "offer: aws us-east-1, p5.48xlarge: 8xH100, $98.32/h" in said
    assert "2 machines at once: from $196.64/h" in said
    assert said[-1] == "fleet gpu-fleet: 1 machine ready"


def press(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("price", "said"),
    [
        (PRICE, "interrupted; fleet gpu-fleet is still being created, with machines from $196.64/h"),
        (None, "interrupted; fleet gpu-fleet is still being created"),
    ],
)
@pytest.mark.parametrize("moment", ["_call", "_wait"])
def test_ctrl_c_while_machines_come(
    monkeypatch: pytest.MonkeyPatch, price: Price | None, said: str, moment: str
) -> None:
    planned = FleetPlan("", "gpu-fleet", "create", 2, price)
    answers: dict[str, Callable[..., Any]] = {"plan": lambda *_: planned}
    answers |= {"check": lambda *_, **__: None, "_call": lambda *_: None, "_wait": press, moment: press}
    monkeypatch.setattr(machines, "connect", lambda _project=None: None)
    for name, answer in answers.items():
        monkeypatch.setattr(DstackFleets, name, answer)
    with pytest.raises(Interrupted) as caught:
        FLEET.create("team x")
    assert caught.value.message == said
    assert "cloudrl fleet delete gpu-fleet --project 'team x'" in str(caught.value.hint)
