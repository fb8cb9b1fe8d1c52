"""A cluster on a Slurm whose commands are stand-ins on PATH."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cloudrl.providers.slurm import login
from cloudrl.providers.slurm.state import SlurmState, read
from cloudrl.spec import Cluster

LAB = Cluster.load(
    {"name": "lab", "nodes": 2, "slurm": {"container": "bare", "volumes": ["/shared/ckpt:/checkpoints"]}}
)
RUNNING = "12|RUNNING|None|2026-11-22T10:00:00|alice|2|node[0-1]|lab|cloudrl:"
PENDING = "12|PENDING|Resources|2026-11-23T08:30:00|alice|2||lab|cloudrl:/lustre/alice/runs"
Commands = Callable[..., None]


def a_state(name: str = "lab", job_id: int = 12, *, host: str = "", runs: Path = Path("/runs")) -> SlurmState:
    """What this machine remembers of a cluster; its log is not there."""
    return SlurmState(name, host, job_id, str(runs), "/no/log", "")


def remembered() -> SlurmState:
    """What this machine remembers of the lab."""
    known = read("lab")
    assert known is not None
    return known


def write_head(runs: Path) -> None:
    """The agent of rank 0 has started."""
    folder = runs / "12/0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "head.json").write_text('{"ip": "10.0.0.1", "agent": 1, "dashboard": 3}')


def set_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm is installed on this machine, and has no configuration."""
    monkeypatch.delenv("SLURM_CONF")
    monkeypatch.setattr(login, "_CONFIGS", ())
