"""Slurm's own answers, as 22.05 gives them, by stand-ins of its commands on PATH."""

import functools
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_clock import Clock

from cloudrl.errors import CapacityError, CloudrlError, ConnectionFailed, InputError, Interrupted, SpecError
from cloudrl.plugins import providers
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import BudgetStatus, ClusterInfo, ClusterStatus
from cloudrl.providers import registry
from cloudrl.providers.slurm import access, login, provider, queue
from cloudrl.providers.slurm.access import JobAccess
from cloudrl.providers.slurm.login import Login
from cloudrl.providers.slurm.plan import make_plan
from cloudrl.providers.slurm.provider import SlurmProvider
from cloudrl.providers.slurm.queue import JobState
from cloudrl.providers.slurm.script import to_slurm
from cloudrl.providers.slurm.state import SlurmState, read
from cloudrl.providers.slurm.watcher import JobWatcher, describe
from cloudrl.spec import Cluster
from cloudrl.transport import command
from cloudrl.transport.ssh import Route

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


@pytest.mark.parametrize(
    "said",
    [
        "Welcome to the site!",
        "12|RUNNING",
        "x" * 100_000,
        "9" * 10_000 + RUNNING,
        f"12{RUNNING[2:].replace('|2|', '|two|')}",
    ],
    ids=["a greeting", "cut off", "long", "a huge number", "no number"],
)
def test_what_is_no_list_of_jobs(commands: Commands, said: str) -> None:
    commands(squeue=f"echo '{said}'", sacct=f"echo '{said}'")
    for ask in (lambda: queue.jobs(Login()), lambda: queue.job(Login(), 12)):
        with pytest.raises(ConnectionFailed, match="squeue on this machine prints something else than jobs"):
            ask()
    commands(squeue="exit 0")
    with pytest.raises(ConnectionFailed, match="sacct on this machine prints something else"):
        queue.job(Login(), 12)


def test_an_answer_without_an_end(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "run", functools.partial(command.run, limit_bytes=1 << 20))
    commands(squeue=f"while :; do echo '{RUNNING}'; done")
    with pytest.raises(ConnectionFailed, match="squeue on this machine was ended: it says more than"):
        queue.jobs(Login())


def test_clusters_are_found_by_their_comment_or_because_they_were_started_from_here(commands: Commands) -> None:
    """A site may want a comment of its own, and every other job of the user is none of ours."""
    jobs = ["13|RUNNING|None|N/A|alice|1|node2|mine|", "14|RUNNING|None|N/A|alice|2|node[3-4]|own|account 7"]
    commands(sbatch="exit 0", scontrol="exit 0", squeue="; ".join(f"echo '{each}'" for each in [RUNNING, *jobs]))
    SlurmState("own", "", 14, "/runs", "/no/log", "").write()
    SlurmState("mine", "me@elsewhere", 13, "/runs", "/no/log", "", is_over=True).write()
    assert [each.name for each in SlurmProvider().list()] == ["lab", "own"]
    with pytest.raises(InputError, match="cluster 'own' is up already: job 14 of this machine is RUNNING"):
        SlurmProvider().up(make_plan(LAB.replace(name="own", slurm={**LAB.slurm, "comment": "account 7"})))


@pytest.mark.parametrize(
    ("state", "said", "error"),
    [
        ("RUNNING", "cluster 'lab' is up already: job 12 of me@login is RUNNING", InputError),
        (
            "",
            "cannot tell whether cluster 'lab' is up as job 12 of me@login: squeue on me@login: down",
            ConnectionFailed,
        ),
    ],
)
def test_a_cluster_that_was_started_on_another_login_node_is_not_lost_sight_of(
    commands: Commands, state: str, said: str, error: type[CloudrlError]
) -> None:
    squeue = f"echo '{RUNNING.replace('RUNNING', state)}'" if state else "echo down >&2; exit 1"
    there = 'case "$*" in *"-O check"*) exit ;; esac; for command; do :; done; AT=login exec sh -c "$command"'
    commands(
        sbatch="cat >/dev/null; touch $HOME/queued; echo 13",
        squeue=f'[ -n "${{AT:-}}" ] || exit 0; {squeue}',
        scontrol="exit 0",
        ssh=there,
    )
    SlurmState("lab", "me@login", 12, "/runs", "/no/log", "").write()
    plan = make_plan(LAB).priced()
    (Path.home() / "queued").unlink()
    with pytest.raises(error, match=said):
        SlurmProvider().up(plan)
    assert not (Path.home() / "queued").exists()
    known = read("lab")
    assert known is not None
    assert known.job_id == 12


def test_a_script_that_was_cut_off_on_its_way_is_not_queued(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its sender is killed, the shell over there reads to the end of what has come."""
    commands(sbatch='[ "$1" = --test-only ] && exit; touch $HOME/queued', squeue="exit 0")
    plan = make_plan(LAB.replace(slurm={**LAB.slurm, "run_dir": str(tmp_path / "runs")})).priced()
    whole = Login.shell

    def cut(self: Login, command: str, data: bytes = b"", **options: Any) -> str:
        return whole(self, command, data[: len(data) // 2], **options)

    monkeypatch.setattr(Login, "shell", cut)
    with pytest.raises(CloudrlError):
        SlurmProvider().up(plan)
    assert not (tmp_path / "queued").exists()
    assert list((tmp_path / "runs").glob("job*")) == []
    monkeypatch.undo()


def test_an_interrupted_sbatch_may_queue_the_job_yet(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    commands(sbatch="exit 0", squeue="exit 0")
    plan = make_plan(LAB).priced()
    asked = Login.shell

    def interrupted(self: Login, command: str, data: bytes = b"", **options: Any) -> str:
        if "--parsable" in command:
            raise KeyboardInterrupt
        return asked(self, command, data, **options)

    monkeypatch.setattr(Login, "shell", interrupted)
    with pytest.raises(Interrupted, match="interrupted; no job lab is queued so far") as error:
        SlurmProvider().up(plan)
    assert "squeue --me --name=lab" in str(error.value)


def test_before_sbatch_is_asked_nothing_is_started(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    commands(sbatch="exit 0", squeue="exit 0")
    plan = make_plan(LAB).priced()

    def interrupted(*_: Any, **__: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Login, "shell", interrupted)
    with pytest.raises(Interrupted, match="interrupted; nothing was started"):
        SlurmProvider().up(plan)


def test_each_cluster_has_secrets_of_its_own(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two clusters at once may have two accounts, and each of them is queued again with its own."""
    commands(sbatch='[ "$1" = --test-only ] && exit; echo full >&2; exit 1', squeue="exit 0")
    for name in ("first", "second"):
        monkeypatch.setenv("HF_TOKEN", f"hf_of_{name}")
        with pytest.raises(InputError):
            SlurmProvider().up(make_plan(LAB.replace(name=name, secrets=("HF_TOKEN",))))
    kept = {file.parent.name: file.read_text() for file in tmp_path.glob(".cloudrl/slurm/secrets/*/HF_TOKEN")}
    assert kept == {"first": "hf_of_first", "second": "hf_of_second"}
    assert {each.stat().st_mode & 0o077 for each in (tmp_path / ".cloudrl/slurm").rglob("*")} == {0}


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
    monkeypatch.setattr(registry, "providers", lambda: {"slurm": providers()["slurm"]})
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
    for kept in (tmp_path / ".cloudrl/slurm/secrets/HF_TOKEN", tmp_path / ".cloudrl/slurm/secrets/lab/HF_TOKEN"):
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("hf_there")
        make_plan(cluster).priced()
        kept.unlink()
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


def test_up_does_not_wait_for_a_head_that_no_way_leads_to(
    commands: Commands, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site may allow neither steps beside others nor ssh to its nodes; the job would have its nodes for a day."""
    commands(
        sbatch=f'[ "$1" = --test-only ] && exit; mkdir -p {tmp_path}/runs/12/0; echo 12',
        squeue=f"case $* in *--me*) exit ;; esac; echo '{RUNNING}'",
        scontrol="exit 0",
    )

    def no_way(_state: SlurmState, *, timeout_s: float) -> JobAccess:
        clock.sleep(timeout_s)
        raise ConnectionFailed("no tunnel after 45 s: Permission denied")

    def write_head() -> None:
        if clock.now > 60:
            (tmp_path / "runs/12/0/head.json").write_text('{"ip": "10.0.0.1", "agent": 1, "dashboard": 3}')

    clock.on_sleep = write_head
    monkeypatch.setattr(provider, "JobWatcher", functools.partial(JobWatcher, opener=no_way, clock=clock))
    monkeypatch.setattr(provider, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))
    plan = make_plan(LAB.replace(slurm={**LAB.slurm, "run_dir": str(tmp_path / "runs")}))
    with pytest.raises(
        ConnectionFailed, match=r"found in 1\d minutes: no tunnel .*; cluster lab goes on as job 12, RUN"
    ):
        SlurmProvider().up(plan)
    assert 660 < clock.now < 780


def test_keys_of_nodes_are_not_written_into_the_users_own_file(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands(**{"ssh-keygen": 'for file; do :; done; echo "key of $file" >"$file.pub"; touch "$file"'})
    (tmp_path / "runs/12/0").mkdir(parents=True)
    (tmp_path / "runs/12/0/head.json").write_text('{"ip": "10.0.0.1", "agent": 1, "dashboard": 3}')
    way = JobAccess(SlurmState("lab", "", 12, str(tmp_path / "runs"), "/no/log", ""))
    for options in (each.hosts["lab"] for each in (way.route(), way.route())):
        asked = ["ssh", "-G", "-F", "/dev/stdin", "lab"]
        text = Route("lab", {"lab": options}).config()
        said = subprocess.run(asked, input=text, capture_output=True, text=True, check=True, timeout=60).stdout
        [file] = [line.split()[1] for line in said.splitlines() if line.startswith("userknownhostsfile ")]
        assert Path(file).parent == tmp_path / "cloudrl/slurm-clusters/lab"


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
