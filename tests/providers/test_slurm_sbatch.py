"""From a plan to a job in the queue of Slurm, by stand-ins of its commands on PATH."""

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_clock import Clock
from slurm_commands import LAB, PENDING, RUNNING, Commands, remembered, write_head

from cloudrl.errors import CapacityError, CloudrlError, ConnectionFailed, InputError, Interrupted, SpecError
from cloudrl.protocol.phases import Phase
from cloudrl.providers.slurm import provider
from cloudrl.providers.slurm.access import JobAccess
from cloudrl.providers.slurm.login import Login
from cloudrl.providers.slurm.plan import make_plan
from cloudrl.providers.slurm.provider import SlurmProvider
from cloudrl.providers.slurm.script import to_slurm
from cloudrl.providers.slurm.state import SlurmState
from cloudrl.providers.slurm.watcher import JobWatcher
from cloudrl.spec import Cluster

pytestmark = pytest.mark.io


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
    assert (Path.home() / "script").read_text() == plan.preview() == priced.preview() == to_slurm(LAB)


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
    known = remembered()
    assert known.run_folder.key() == b"the key"
    assert not (tmp_path / "made").exists()


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
    known = remembered()
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

    def start_agent() -> None:
        if clock.now > 60:
            write_head(tmp_path / "runs")

    clock.on_sleep = start_agent
    monkeypatch.setattr(provider, "JobWatcher", functools.partial(JobWatcher, opener=no_way, clock=clock))
    monkeypatch.setattr(provider, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))
    plan = make_plan(LAB.replace(slurm={**LAB.slurm, "run_dir": str(tmp_path / "runs")}))
    with pytest.raises(
        ConnectionFailed, match=r"found in 1\d min \d\d s: no tunnel .*; cluster lab goes on as job 12, RUN"
    ):
        SlurmProvider().up(plan)
    assert 660 < clock.now < 780
