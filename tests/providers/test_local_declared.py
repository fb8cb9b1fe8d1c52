"""A declaration that is meant for a cloud, on one machine: what holds, what is named, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudrl.errors import InputError
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.spec import Cluster

provider = LocalProvider()


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("fields", "folder"),
    [
        ({}, None),
        ({"checkpoints": "/nvme/ckpt"}, "/nvme/ckpt"),
        ({"volumes": ["/mnt/big:/checkpoints"]}, "/mnt/big"),
        ({"volumes": ["/mnt/big:/vol"], "checkpoints": "/vol/rl/ckpt"}, "/mnt/big/rl/ckpt"),
        ({"volumes": ["ckpt:/checkpoints"]}, None),
    ],
    ids=["none", "a folder", "a host's volume", "below it", "a network volume"],
)
def test_where_checkpoints_go(tmp_path: Path, fields: dict[str, object], folder: str | None) -> None:
    plan = provider.plan(Cluster.load({"name": "lab", **fields}))
    wanted = Path(folder) if folder else tmp_path / "home" / "clusters" / "lab" / "checkpoints"
    assert plan.state.checkpoints == wanted
    assert f"--checkpoints={wanted}" in plan.commands[0]
    assert plan.checkpoint_dir == str(wanted)


def test_what_has_no_effect_is_named() -> None:
    fields = {
        "image": "mine:1",
        "dstack": {"fleets": ["gpus"], "max_duration": "2d"},
        "volumes": ["ckpt:/checkpoints"],
    }
    plan = provider.plan(Cluster.load({"name": "lab", "env": {"A": "1"}, **fields}))
    assert plan.notes == ("without effect on this machine: image, volumes, dstack",)
    assert f"# {plan.notes[0]}\n" in plan.render()
    assert provider.plan(Cluster.load({"name": "lab", "checkpoints": "/nvme/ckpt"})).notes == ()


def test_a_secret_comes_from_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(name="lab", secrets=["HF_TOKEN"])
    monkeypatch.setenv("HF_TOKEN", "")
    with pytest.raises(InputError, match="secret HF_TOKEN is not set") as caught:
        provider.plan(cluster)
    assert "export HF_TOKEN=" in str(caught.value.hint)
    monkeypatch.setenv("HF_TOKEN", "hf_1")
    assert "hf_1" not in provider.plan(cluster).render()


@pytest.mark.parametrize("declared", [False, True])
def test_what_stays_is_said_with_its_place(tmp_path: Path, declared: bool) -> None:
    nvme = tmp_path / "nvme"
    plan = provider.plan(Cluster.load({"name": "lab", **({"checkpoints": str(nvme)} if declared else {})}))
    plan.state.write()
    look, own = provider.status("lab"), plan.state.folder
    assert look.retention is not None
    assert look.retention.location == f"in {nvme if declared else own / 'checkpoints'}"
    assert look.teardown_summary == (
        f"checkpoints stay in {nvme}, logs in {own}" if declared else f"checkpoints and logs stay in {own}"
    )
