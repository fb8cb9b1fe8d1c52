"""A job of Slurm from its start to its end, by stand-ins of its commands on PATH."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from slurm_commands import PENDING, RUNNING, Commands, a_state, write_head

from cloudrl.errors import ConnectionFailed
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import BudgetStatus, ClusterStatus
from cloudrl.providers.slurm import access
from cloudrl.providers.slurm.access import JobAccess
from cloudrl.providers.slurm.state import SlurmState
from cloudrl.providers.slurm.watcher import JobWatcher, describe
from cloudrl.transport.ssh import Route

pytestmark = pytest.mark.io


@pytest.mark.parametrize(
    ("state", "status", "files", "phase", "reason"),
    [
        ("TIMEOUT", "", {}, Phase.FAILED, "the job has reached its time limit"),
        ("FAILED", "4", {"nodes/1.failed": "rank 1: no image x"}, Phase.FAILED, "rank 1: no image x"),
        ("FAILED", "1", {}, Phase.FAILED, "Slurm says FAILED; its last line: the last words"),
        ("CANCELLED", "143", {}, Phase.DOWN, ""),
        ("", "4", {"nodes/1.failed": "rank 1: no image x"}, Phase.FAILED, "rank 1: no image x"),
        ("", "143", {}, Phase.DOWN, ""),
        ("COMPLETED", "0", {}, Phase.DOWN, ""),
    ],
)
def test_the_end_of_a_job(
    commands: Commands, tmp_path: Path, state: str, status: str, files: dict[str, str], phase: Phase, reason: str
) -> None:
    commands(squeue=f"echo '{RUNNING.replace('RUNNING', state)}'" if state else "exit 0", sacct="exit 1")
    log = tmp_path / "lab-12.log"
    log.write_text("first\nthe last words\n[10:00:00 batch] ended with status 1\n")
    start = tmp_path / "runs/12/0"
    for name, text in {"status": status, **files}.items():
        (start / name).parent.mkdir(parents=True, exist_ok=True)
        (start / name).write_text(text)
    known = SlurmState("lab", "", 12, str(tmp_path / "runs"), str(log), "/shared/ckpt")
    seen = JobWatcher(known).status()
    assert (seen.phase, seen.reason) == (phase, reason)


def test_the_way_to_the_head_is_opened_once_there_is_one(commands: Commands, tmp_path: Path) -> None:
    commands(squeue=f"echo '{RUNNING}'")
    asked: list[float] = []

    def opener(_state: SlurmState, *, timeout_s: float) -> JobAccess:
        asked.append(timeout_s)
        raise ConnectionFailed("no tunnel")

    watcher = JobWatcher(a_state(runs=tmp_path / "runs"), opener=opener)
    assert watcher.status().reason == "job 12 has not started an agent yet"
    assert asked == []
    write_head(tmp_path / "runs")
    assert watcher.status().reason == "no tunnel"
    assert asked[0] > float(access.HANDSHAKE_S)


def test_keys_of_nodes_are_not_written_into_the_users_own_file(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands(**{"ssh-keygen": 'for file; do :; done; echo "key of $file" >"$file.pub"; touch "$file"'})
    write_head(tmp_path / "runs")
    way = JobAccess(a_state(runs=tmp_path / "runs"))
    for options in (each.hosts["lab"] for each in (way.route(), way.route())):
        asked = ["ssh", "-G", "-F", "/dev/stdin", "lab"]
        text = Route("lab", {"lab": options}).config()
        said = subprocess.run(asked, input=text, capture_output=True, text=True, check=True, timeout=60).stdout
        [file] = [line.split()[1] for line in said.splitlines() if line.startswith("userknownhostsfile ")]
        assert Path(file).parent == tmp_path / "cloudrl/slurm-clusters/lab"


def test_what_it_costs_is_what_its_agents_were_told(commands: Commands, tmp_path: Path) -> None:
    commands(squeue=f"echo '{RUNNING}'")
    write_head(tmp_path / "runs")
    said = ClusterStatus(ClusterFacts("lab", "id", "slurm", 2), Phase.READY, budget=BudgetStatus(4.5, 12.0))
    opened: Any = SimpleNamespace(status=lambda: said, is_kept_open=False)
    state = a_state(runs=tmp_path / "runs")
    seen = JobWatcher(state, opener=lambda *_, **__: opened).status()
    assert (seen.phase, seen.price_per_hour, seen.cost) == (Phase.READY, 12.0, 4.5)


def test_the_controller_is_asked_every_five_seconds_and_not_with_each_look(commands: Commands) -> None:
    commands(squeue=f"echo >>$HOME/asked; echo '{PENDING}'")
    now = [100.0]
    watcher = JobWatcher(a_state(), clock=lambda: now[0])
    for now[0] in (100, 101, 104, 105, 106, 110):
        assert watcher.status().phase is Phase.PENDING
    assert (Path.home() / "asked").read_text().count("\n") == 3


def test_each_start_before_the_newest_is_told(commands: Commands, tmp_path: Path) -> None:
    commands(squeue=f"echo '{RUNNING.replace('RUNNING', 'TIMEOUT')}'")
    for number, status in (("0", "requeued"), ("1", "4"), ("10", "4")):
        folder = tmp_path / "runs/12" / number
        folder.mkdir(parents=True)
        (folder / "key").write_text("k")
        (folder / "status").write_text(status)
    (tmp_path / "runs/12/failures").write_text("")
    seen = JobWatcher(a_state(runs=tmp_path / "runs")).status()
    assert [each["attempt"] for each in seen.previous_attempts] == [1, 2]
    assert seen.previous_attempts[0]["reason"] == "requeued"
    assert seen.previous_attempts[0]["submitted_at"] > 0


def test_checkpoints_stay_when_it_ends() -> None:
    described = describe(SlurmState("lab", "alice@login", 12, "$HOME/x", "/home/alice/l.log", "/shared/ckpt"), None)
    assert described.retention is not None
    assert not described.retention.destroyed
    assert described.logs_command == "ssh alice@login 'tail -n +1 -f /home/alice/l.log'"
