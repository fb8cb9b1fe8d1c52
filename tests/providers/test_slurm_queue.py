"""Slurm's own answers about jobs, as 22.05 gives them, by stand-ins of its commands on PATH."""

import functools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from slurm_commands import LAB, PENDING, RUNNING, Commands, a_state, remembered, set_up_nothing

from cloudrl.errors import CloudrlError, ConnectionFailed, InputError
from cloudrl.plugins import providers
from cloudrl.protocol.phases import Phase
from cloudrl.providers import registry
from cloudrl.providers.slurm import login, queue
from cloudrl.providers.slurm.login import Login
from cloudrl.providers.slurm.plan import make_plan
from cloudrl.providers.slurm.provider import SlurmProvider
from cloudrl.providers.slurm.queue import JobState
from cloudrl.transport import command

pytestmark = pytest.mark.io


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
    """A site may want a comment of its own, and every other job of the user is not ours."""
    jobs = ["13|RUNNING|None|N/A|alice|1|node2|mine|", "14|RUNNING|None|N/A|alice|2|node[3-4]|own|account 7"]
    commands(sbatch="exit 0", scontrol="exit 0", squeue="; ".join(f"echo '{each}'" for each in [RUNNING, *jobs]))
    a_state("own", 14).write()
    replace(a_state("mine", 13, host="me@elsewhere"), is_over=True).write()
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
    a_state(host="me@login").write()
    plan = make_plan(LAB).priced()
    (Path.home() / "queued").unlink()
    with pytest.raises(error, match=said):
        SlurmProvider().up(plan)
    assert not (Path.home() / "queued").exists()
    known = remembered()
    assert known.job_id == 12


def test_where_slurm_is_installed_and_not_set_up_there_is_no_cluster(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands(squeue="exit 1", sbatch="exit 1")
    set_up_nothing(monkeypatch)
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
        assert (found.name, found.phase, found.facts.nodes) == ("lab", Phase.PENDING, 2)
        assert found.reason == "Resources: no such nodes are free; expected to start 2026-11-23T08:30:00"
        assert found.logs_command == "tail -n +1 -f /home/alice/lab-12.log"


def test_a_login_node_is_not_asked_for_clusters_whose_end_was_seen(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody would have to type a second factor for it."""
    set_up_nothing(monkeypatch)
    over = RUNNING.replace("RUNNING", "CANCELLED")
    ssh = 'case "$*" in *"-O check"*) exit ;; esac; echo >>$HOME/asked; for command; do :; done; exec sh -c "$command"'
    commands(ssh=ssh, squeue=f"case $* in *--me*) exit ;; esac; echo '{over}'")
    a_state(host="me@login").write()
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
    set_up_nothing(monkeypatch)
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
        a_state(name, host=host).write()
    found = registry.find()
    assert [each.name for each in found.clusters] == ["lab"]
    assert [(where, why.message) for where, why in found.errors.items()] == [
        ("slurm (me@down)", "ssh to me@down: Permission denied (password).")
    ]
    assert "cloudrl status NAME" in str(found.errors["slurm (me@down)"])
    assert "BatchMode=no" not in (Path.home() / "asked").read_text()
    a_state(host="me@login").end()
    with pytest.raises(ConnectionFailed, match="Permission denied") as error:
        registry.find().refuse_silent()
    assert "ssh me@down squeue" in str(error.value)
    assert "BatchMode=no" in (Path.home() / "asked").read_text()


def test_a_new_job_of_a_name_counts_and_not_the_one_that_has_ended(commands: Commands) -> None:
    replace(a_state("lab", 11), is_over=True).write()
    commands(sbatch="exit 1", squeue=f"echo '{PENDING}'", scontrol="exit 0")
    assert SlurmProvider().status("lab").phase is Phase.PENDING
    known = remembered()
    assert (known.job_id, known.is_over) == (12, False)
