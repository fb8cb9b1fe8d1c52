"""Slurm's own answers, as 22.05 gives them, by stand-ins of its commands on PATH."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudrl.errors import CapacityError, CloudrlError, ConnectionFailed, InputError, SpecError
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import BudgetStatus, ClusterInfo, ClusterStatus
from cloudrl.providers import registry
from cloudrl.providers.slurm import access, login, queue
from cloudrl.providers.slurm.access import JobAccess
from cloudrl.providers.slurm.login import Login
from cloudrl.providers.slurm.plan import make_plan
from cloudrl.providers.slurm.provider import SlurmProvider
from cloudrl.providers.slurm.queue import JobState
from cloudrl.providers.slurm.state import SlurmState, read
from cloudrl.providers.slurm.watcher import JobWatcher, describe
from cloudrl.render.slurm import to_slurm
from cloudrl.spec import Cluster

pytestmark = pytest.mark.io

LAB = Cluster.load(
    {"name": "lab", "nodes": 2, "slurm": {"container": "bare", "volumes": ["/shared/ckpt:/checkpoints"]}}
)
RUNNING = "12|RUNNING|None|2026-11-22T10:00:00|alice|2|node[0-1]|lab|cloudrl:"
PENDING = "12|PENDING|Resources|2026-11-23T08:30:00|alice|2||lab|cloudrl:/lustre/alice/runs"
Commands = Callable[..., None]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Puts commands of these texts on PATH, and nothing else of Slurm; home is an empty folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "cloudrl"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")

    def put(**texts: str) -> None:
        for name, text in texts.items():
            path = folder / name
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)

    return put


@pytest.mark.parametrize(
    ("line", "state", "phase", "reason", "start", "comment"),
    [
        (RUNNING, JobState.RUNNING, Phase.RUNNING, "", "2026-11-22T10:00:00", "cloudrl:"),
        (PENDING, JobState.PENDING, Phase.PENDING, "Resources", "2026-11-23T08:30:00", "cloudrl:/lustre/alice/runs"),
        (RUNNING.replace("RUNNING", "COMPLETING"), JobState.COMPLETING, Phase.TERMINATING, "", None, "cloudrl:"),
        (RUNNING.replace("RUNNING", "NODE_FAIL"), JobState.NODE_FAIL, Phase.FAILED, "", None, "cloudrl:"),
        (RUNNING.replace("RUNNING", "BRAND_NEW"), JobState.UNKNOWN, Phase.UNKNOWN, "", None, "cloudrl:"),
        (RUNNING.replace("|lab|", "|a|b|"), JobState.RUNNING, Phase.RUNNING, "", None, "cloudrl:"),
    ],
    ids=["running", "pending", "completing", "node lost", "a newer Slurm", "a name with a bar"],
)
def test_a_line_of_squeue(
    commands: Commands, line: str, state: JobState, phase: Phase, reason: str, start: str | None, comment: str
) -> None:
    commands(squeue=f"echo '{line}'")
    job = queue.job(Login(), 12)
    assert job is not None
    assert (job.id, job.state, job.state.phase, job.reason, job.nodes) == (12, state, phase, reason, 2)
    assert job.comment == comment
    assert start is None or job.start == start


@pytest.mark.parametrize("state", JobState)
def test_every_state_has_a_phase(state: JobState) -> None:
    assert (state.phase is Phase.UNKNOWN) == (state is JobState.UNKNOWN)


def test_a_job_that_squeue_has_forgotten_is_asked_of_accounting(commands: Commands) -> None:
    commands(
        squeue="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
        sacct="echo '12|CANCELLED by 3001|None|2026-11-22T10:00:00|alice|2|node[0-1]|lab'",
    )
    job = queue.job(Login(), 12)
    assert job is not None
    assert (job.state, job.is_over) == (JobState.CANCELLED, True)


def test_without_accounting_nobody_knows_it_any_more(commands: Commands) -> None:
    commands(squeue="exit 0", sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert queue.job(Login(), 12) is None


def test_a_controller_that_is_down_is_no_end_of_a_job(commands: Commands) -> None:
    commands(squeue="echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    with pytest.raises(ConnectionFailed, match="Unable to contact slurm controller"):
        queue.job(Login(), 12)


def test_clusters_are_found_by_their_comment(commands: Commands) -> None:
    commands(squeue=f"echo '{RUNNING}'; echo '13|RUNNING|None|N/A|alice|1|node2|mine|'")
    assert [job.id for job in queue.jobs(Login())] == [12]


def test_where_slurm_is_installed_and_not_set_up_there_is_no_cluster(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands(squeue="exit 1", sbatch="exit 1")
    monkeypatch.delenv("SLURM_CONF")
    monkeypatch.setattr(login, "_CONFIGS", ())
    provider = SlurmProvider()
    assert not provider.is_configured()
    assert provider.list() == ()
    assert provider.list("lab") == ()
    monkeypatch.setattr(login, "_CONFIGS", (__file__,))
    assert provider.is_configured()


def test_a_cluster_that_sbatch_has_started_is_known_by_its_name(commands: Commands) -> None:
    commands(sbatch="exit 1", squeue=f"echo '{PENDING}'", scontrol="echo '   StdOut=/home/alice/lab-12.log'")
    provider = SlurmProvider()
    for found in (provider.list()[0], provider.list("lab")[0], provider.status("lab")):
        assert (found.name, found.phase, found.nodes_wanted) == ("lab", Phase.PENDING, 2)
        assert found.reason == "Resources: no such nodes are free; expected to start 2026-11-23T08:30:00"
        assert found.logs_command == "tail -n +1 -f /home/alice/lab-12.log"


def test_a_login_node_is_not_asked_for_clusters_whose_end_was_seen(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody would have to type a second factor for it."""
    monkeypatch.delenv("SLURM_CONF")
    monkeypatch.setattr(login, "_CONFIGS", ())
    over = RUNNING.replace("RUNNING", "CANCELLED")
    ssh = 'case "$*" in *"-O check"*) exit ;; esac; echo >>$HOME/asked; for command; do :; done; exec sh -c "$command"'
    commands(ssh=ssh, squeue=f"case $* in *--me*) exit ;; esac; echo '{over}'")
    SlurmState("lab", "me@login", 12, "/runs", "/no/log", "").write()
    provider = SlurmProvider()
    assert provider.list() == ()
    assert (Path.home() / "asked").exists()
    assert provider.status("lab").phase is Phase.DOWN
    (Path.home() / "asked").unlink()
    assert provider.list() == ()
    assert not (Path.home() / "asked").exists()
    assert provider.status("lab").phase is Phase.DOWN


def test_a_login_node_that_does_not_answer_hides_only_its_own_clusters(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is asked for a password either, as long as there is another one to be shown."""
    monkeypatch.delenv("SLURM_CONF")
    monkeypatch.setattr(login, "_CONFIGS", ())
    monkeypatch.setattr(registry, "PROVIDERS", {"slurm": registry.PROVIDERS["slurm"]})
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    ssh = """
        case "$*" in
          *"-O check"*) exit 1 ;;
          *me@down) echo "$*" >>$HOME/asked; echo 'Permission denied (password).' >&2; exit 255 ;;
          *-fN*) exit ;;
        esac
        for command; do :; done
        exec sh -c "$command"
        """
    commands(ssh=ssh, squeue=f"echo '{RUNNING}'")
    for name, host in (("hidden", "me@down"), ("lab", "me@login")):
        SlurmState(name, host, 12, "/runs", "/no/log", "").write()
    found = registry.find()
    assert [each.name for each in found.clusters] == ["lab"]
    assert [(where, why.message) for where, why in found.errors.items()] == [
        ("slurm (me@down)", "ssh to me@down: Permission denied (password).")
    ]
    assert "cloudrl status NAME" in str(found.errors["slurm (me@down)"])
    assert "BatchMode=no" not in (Path.home() / "asked").read_text()
    SlurmState("lab", "me@login", 12, "/runs", "/no/log", "").end()
    with pytest.raises(ConnectionFailed, match="Permission denied") as error:
        registry.find().refuse_silent()
    assert "ssh me@down squeue" in str(error.value)
    assert "BatchMode=no" in (Path.home() / "asked").read_text()


def test_a_new_job_of_a_name_counts_and_not_the_one_that_has_ended(commands: Commands) -> None:
    SlurmState("lab", "", 11, "/runs", "/no/log", "", is_over=True).write()
    commands(sbatch="exit 1", squeue=f"echo '{PENDING}'", scontrol="exit 0")
    assert SlurmProvider().status("lab").phase is Phase.PENDING
    known = read("lab")
    assert known is not None
    assert (known.job_id, known.is_over) == (12, False)


def test_what_sbatch_says_of_a_plan(commands: Commands) -> None:
    commands(
        sbatch='cat >$HOME/script; echo "$*" >$HOME/words; echo \'sbatch: Job 7 to start at 2026-11-23T08:30:00 using '
        "16 processors on nodes node[0-1] in partition gpu' >&2"
    )
    plan = make_plan(LAB)
    assert plan.price is None
    priced = plan.priced()
    assert priced.price is not None
    assert priced.price.notices[0].text == (
        "Slurm: expected to start at 2026-11-23T08:30:00 on node[0-1], partition gpu"
    )
    assert (Path.home() / "words").read_text() == "--test-only\n"
    assert (Path.home() / "script").read_text() == priced.script == to_slurm(LAB)


def test_what_sbatch_refuses_is_refused_in_its_words(commands: Commands) -> None:
    commands(sbatch="echo 'sbatch: error: invalid partition specified: gpus' >&2; exit 1")
    with pytest.raises(InputError, match=r"Slurm refuses cluster 'lab': sbatch: error: invalid partition .*: gpus"):
        make_plan(LAB).priced()


def test_a_machine_without_slurm_is_named(commands: Commands) -> None:
    commands(sbatch="no-such-command")
    with pytest.raises(InputError, match="no-such-command") as error:
        make_plan(LAB).priced()
    assert "--login user@host" in str(error.value)


def test_nodes_that_are_down_now_are_waited_for_and_those_that_never_were_are_refused(commands: Commands) -> None:
    """`sbatch --test-only` says the same of both; sbatch itself queues the job for the former."""
    commands(sbatch="echo 'sbatch: error: Requested node configuration is not available' >&2; exit 1", squeue="exit 0")
    priced = make_plan(LAB).priced()
    assert priced.price is not None
    assert "no such nodes are up now" in priced.price.notices[0].text
    with pytest.raises(CapacityError, match=r"Slurm refuses cluster 'lab': .*Requested node configuration is not"):
        SlurmProvider().up(priced)


@pytest.mark.parametrize("run_dir", ["/runs of me", "/it's", "/$(touch made)", "/a;touch made"])
def test_a_folder_with_any_name_is_only_a_folder(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_dir: str
) -> None:
    """Also where it is the comment of a job."""
    monkeypatch.chdir(tmp_path)
    folder = f"{tmp_path}{run_dir}"
    line = PENDING.replace("/lustre/alice/runs", folder)
    commands(squeue=f'cat <<"END"\n{line}\nEND', scontrol="exit 0", sbatch="pwd >$HOME/pwd; echo 12")
    secret = tmp_path / run_dir[1:] / "secrets/HF_TOKEN"
    secret.parent.mkdir(parents=True)
    secret.write_text("hf_there")
    (tmp_path / run_dir[1:] / "12/0").mkdir(parents=True)
    (tmp_path / run_dir[1:] / "12/0/key").write_text("the key")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    make_plan(LAB.replace(secrets=("HF_TOKEN",), slurm={**LAB.slurm, "run_dir": folder})).priced()
    assert SlurmProvider().status("lab").phase is Phase.PENDING
    known = read("lab")
    assert known is not None
    assert known.run_folder.key() == b"the key"
    assert not (tmp_path / "made").exists()


def test_the_plan_shows_what_is_sent() -> None:
    plan = make_plan(LAB)
    assert plan.preview() == plan.script == to_slurm(LAB)


def test_a_secret_comes_from_this_shell_or_lies_there_already(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands(sbatch="exit 0")
    cluster = LAB.replace(secrets=("HF_TOKEN",))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(InputError, match="secret HF_TOKEN is neither set in this shell nor in"):
        make_plan(cluster).priced()
    kept = tmp_path / ".cloudrl/slurm/secrets/HF_TOKEN"
    kept.parent.mkdir(parents=True)
    kept.write_text("hf_there")
    make_plan(cluster).priced()
    monkeypatch.setenv("HF_TOKEN", "hf_here")
    plan = make_plan(cluster)
    assert plan.secrets == {"HF_TOKEN": "hf_here"}
    assert "hf_here" not in plan.script
    assert "hf_here" not in repr(plan)


@pytest.mark.parametrize(
    ("sbatch", "scontrol"),
    [
        ("echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1", "echo ' StdOut=/l.log'"),
        ("echo 12", "echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1"),
    ],
)
def test_a_job_of_which_slurm_gave_no_word_is_known_to_down(commands: Commands, sbatch: str, scontrol: str) -> None:
    commands(
        sbatch=f'cat >/dev/null; [ "$1" = --test-only ] && exit; touch $HOME/queued; {sbatch}',
        squeue=f"[ ! -e $HOME/queued ] || echo '{PENDING}'",
        scontrol=scontrol,
        scancel="rm $HOME/queued",
        sacct="exit 1",
    )
    with pytest.raises(CloudrlError, match=r"Socket timed out.*; cluster lab goes on as job 12, PENDING"):
        SlurmProvider().up(make_plan(LAB))
    known = read("lab")
    assert known is not None
    assert (known.job_id, known.checkpoint_dir) == (12, "/shared/ckpt")
    assert SlurmProvider().down("lab")


def test_one_of_several_clusters_is_chosen_for_all_commands() -> None:
    plan = make_plan(LAB.replace(slurm={**LAB.slurm, "clusters": "gpu"}))
    assert "\n#SBATCH --clusters=gpu\n" in plan.script  # which sbatch can have
    with pytest.raises(InputError, match=r"slurm.clusters: sbatch would find") as error:
        plan.priced()
    assert "export SLURM_CLUSTERS=gpu" in str(error.value)


def test_without_volumes_there_is_no_plan() -> None:
    with pytest.raises(SpecError, match="no folder for checkpoints is given"):
        make_plan(Cluster.load({"name": "lab", "slurm": {"container": "bare"}}))


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

    watcher = JobWatcher(SlurmState("lab", "", 12, str(tmp_path / "runs"), "/no/log", ""), opener=opener)
    assert watcher.status().reason == "job 12 has not started an agent yet"
    assert asked == []
    (tmp_path / "runs/12/0").mkdir(parents=True)
    (tmp_path / "runs/12/0/head.json").write_text('{"ip": "10.0.0.1", "agent": 1, "dashboard": 3}')
    assert watcher.status().reason == "no tunnel"
    assert asked[0] > float(access.HANDSHAKE_S)


def test_what_it_costs_is_what_its_agents_were_told(commands: Commands, tmp_path: Path) -> None:
    commands(squeue=f"echo '{RUNNING}'")
    (tmp_path / "runs/12/0").mkdir(parents=True)
    (tmp_path / "runs/12/0/head.json").write_text('{"ip": "10.0.0.1", "agent": 1, "dashboard": 3}')
    said = ClusterStatus(ClusterInfo("lab", "id", "slurm", 2), Phase.READY, budget=BudgetStatus(4.5, 12.0))
    opened: Any = SimpleNamespace(status=lambda: said, is_kept_open=False)
    state = SlurmState("lab", "", 12, str(tmp_path / "runs"), "/no/log", "")
    seen = JobWatcher(state, opener=lambda *_, **__: opened).status()
    assert (seen.phase, seen.price_per_hour, seen.cost) == (Phase.READY, 12.0, 4.5)


def test_the_controller_is_asked_every_five_seconds_and_not_with_each_look(commands: Commands) -> None:
    commands(squeue=f"echo >>$HOME/asked; echo '{PENDING}'")
    now = [100.0]
    watcher = JobWatcher(SlurmState("lab", "", 12, "/runs", "/no/log", ""), clock=lambda: now[0])
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
    seen = JobWatcher(SlurmState("lab", "", 12, str(tmp_path / "runs"), "/no/log", "")).status()
    assert [each["attempt"] for each in seen.previous_attempts] == [1, 2]
    assert seen.previous_attempts[0]["reason"] == "requeued"
    assert seen.previous_attempts[0]["submitted_at"] > 0


def test_checkpoints_stay_when_it_ends() -> None:
    described = describe(SlurmState("lab", "alice@login", 12, "$HOME/x", "/home/alice/l.log", "/shared/ckpt"), None)
    assert described.retention is not None
    assert not described.retention.destroyed
    assert described.logs_command == "ssh alice@login 'tail -n +1 -f /home/alice/l.log'"
