"""`cloudrl volume`, towards a stand-in for what dstack answers."""

from typing import Any

import pytest
from typed_command import Run

from cloudrl.providers.dstack.machines import DstackVolumes
from cloudrl.sdk import machines

pytestmark = pytest.mark.io

CREATE = ("volume", "create", "ckpt", "--backend", "aws", "--region", "us-east-1", "--size", "500GB", "-y")


def press(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("moment", ["_call", "_wait"])
@pytest.mark.parametrize("where", [(), ("--project", "research")])
def test_ctrl_c_while_a_disk_is_made(
    run: Run, monkeypatch: pytest.MonkeyPatch, moment: str, where: tuple[str, ...]
) -> None:
    monkeypatch.setattr(machines, "connect", lambda _project: None)
    monkeypatch.setattr(DstackVolumes, "_call", lambda *_: ())
    monkeypatch.setattr(DstackVolumes, moment, press)
    done = run(*CREATE, *where)
    assert done.code == 130
    assert "interrupted; volume ckpt is still being created, and its disk costs money until you delete it" in done.err
    option = " --project research" if where else ""
    assert f"Look: cloudrl volume list{option}\n" in done.err
    assert f"Delete it: cloudrl volume delete ckpt{option}\n" in done.err
