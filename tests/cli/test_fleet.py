"""`cloudrl fleet`, towards a stand-in for what dstack answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import cloudrl
from cloudrl.cli import fleet
from cloudrl.errors import InputError, Interrupted
from cloudrl.providers.dstack import fleets, server
from cloudrl.providers.dstack.fleets import FleetPlan, FleetState, Instance, Offer

if TYPE_CHECKING:
    from collections.abc import Callable

OFFER = Offer("aws", "us-east-1", "p5.48xlarge", "8xH100", 98.32, spot=False)


def state(*hosts: str, ssh: bool = False) -> FleetState:
    machines = tuple(
        Instance(f"gpu-fleet-{number}", "idle", host, "aws", "us-east-1", "", 98.0)
        for number, host in enumerate(hosts)
    )
    return FleetState("gpu-fleet", "active", machines, 3600, is_ssh=ssh)


class Replaced:
    """A fleet that is there with one machine and cannot be changed in place; what was done is in `applied`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.applied: list[FleetPlan] = []
        self.planned = FleetPlan(
            "",
            "gpu-fleet",
            "recreate",
            2,
            is_ssh=False,
            offers=(OFFER,),
            total_offers=1,
            current=state("10.0.0.9"),
        )
        monkeypatch.setattr(server, "connect", lambda _project=None: SimpleNamespace(project="main"))
        monkeypatch.setattr(fleets, "plan", lambda *_: self.planned)
        monkeypatch.setattr(fleets, "apply", lambda _server, planned: self.applied.append(planned))
        monkeypatch.setattr(fleets, "wait", lambda *_, **__: state("10.0.0.10"))


class TestAFleetThatWouldBeReplaced:
    def test_is_not_by_a_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        there = Replaced(monkeypatch)
        with pytest.raises(
            InputError, match="cannot be changed in place: its machines and their disks would go"
        ):
            fleet.make("", yes=True, project=None, replace=False)
        with pytest.raises(InputError, match="cannot be changed in place") as caught:
            cloudrl.Fleet(name="gpu-fleet", gpu="H100:8").create()
        assert "cloudrl fleet delete gpu-fleet" in str(caught.value.hint)
        assert there.applied == []

    def test_is_replaced_only_after_a_question(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        there = Replaced(monkeypatch)
        with pytest.raises(InputError, match="Nobody is there to ask"):
            fleet.make("", yes=False, project=None)
        assert there.applied == []
        fleet.make("", yes=True, project=None)
        assert len(there.applied) == 1

    def test_from_python_only_when_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        there = Replaced(monkeypatch)
        cloudrl.Fleet(name="gpu-fleet", gpu="H100:8").create(replace=True)
        assert len(there.applied) == 1


def press(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (2, "interrupted; fleet gpu-fleet is being made, with machines from $196.64/h"),
        (0, "interrupted; fleet gpu-fleet is being made"),
    ],
)
@pytest.mark.parametrize("moment", ["apply", "wait"])
def test_ctrl_c_while_machines_come(
    monkeypatch: pytest.MonkeyPatch, nodes: int, said: str, moment: str
) -> None:
    planned = FleetPlan("", "gpu-fleet", "create", nodes, is_ssh=False, offers=(OFFER,), total_offers=1)
    answers: dict[str, Callable[..., Any]] = {"plan": lambda *_: planned}
    answers |= {"check": lambda *_: None, "apply": lambda *_: None, "wait": press, moment: press}
    monkeypatch.setattr(server, "connect", lambda _project: None)
    for name, answer in answers.items():
        monkeypatch.setattr(fleets, name, answer)
    with pytest.raises(Interrupted) as caught:
        fleet.make("", yes=True, project=None)
    assert caught.value.message == said
    assert "cloudrl fleet delete gpu-fleet" in str(caught.value.hint)
