"""`cloudrl fleet`, towards a stand-in for what dstack answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cloudrl.cli import fleet
from cloudrl.errors import Interrupted
from cloudrl.providers.dstack import fleets, server
from cloudrl.providers.dstack.fleets import FleetPlan, Offer

if TYPE_CHECKING:
    from collections.abc import Callable

OFFER = Offer("aws", "us-east-1", "p5.48xlarge", "8xH100", 98.32, spot=False)


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
