"""What a script does, with stand-ins for Slurm's commands and for the agent; on a real Slurm: tests/slurm_nodes."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import other_user
import pytest
from fake_slurm import FakeSlurm
from patience import SLOWER

from cloudrl.node.identity import read_identity
from cloudrl.protocol.options import AgentOptions
from cloudrl.providers.slurm.script import to_slurm
from cloudrl.spec import Cluster

pytestmark = pytest.mark.io

JOB = {"submission_id": "run__TASK__", "argv": ["true"], "runtime_env": {}, "metadata": {}}
AGENT = b"""\
import json, os, pathlib, signal, sys, time
rank = os.environ["CLOUDRL_NODE_RANK"]
words = dict(word.lstrip("-").split("=", 1) for word in sys.argv[2:])
seen = {"env": dict(os.environ), "argv": sys.argv[2:], "key": pathlib.Path(words["key-file"]).read_text()}
run_dir = pathlib.Path(words["run-dir"])
run_dir.mkdir(parents=True)
if "SLOW" not in os.environ: (run_dir / "agent.log").write_text("[10:00:00 rank 0] READY: 2 nodes in 1.0 s\\n")
places = (words["key-file"], os.path.dirname(words["key-file"]))
seen["modes"] = [oct(os.stat(place).st_mode & 0o777) for place in places]
seen["job"] = pathlib.Path(words["job"]).read_text() if "job" in words else None
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
seen["beside"] = sorted(os.listdir(os.path.dirname(sys.argv[0])))
print("agent", rank, "is here", flush=True)
if "SAYS" in os.environ: print(os.environ["SAYS"], flush=True)
home = pathlib.Path(os.environ["HOME"])
(home / f"seen-{rank}.json").write_text(json.dumps(seen))
while "TOGETHER" in os.environ and len([*home.glob("seen-*.json")]) < 2: time.sleep(0.05)
status = os.environ.get(f"STATUS_{rank}")
if status: sys.exit(int(status))
time.sleep(60)
"""


def script(tmp_path: Path, nodes: int = 1, job: bool = True, **section: object) -> str:
    slurm = {"container": "bare", "volumes": [f"{tmp_path}:/checkpoints"], **section}
    return to_slurm(Cluster(name="one", nodes=nodes, slurm=slurm), JOB if job else None, agent=AGENT)


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[FakeSlurm]:
    fake = FakeSlurm(tmp_path, nodes=2)
    yield fake
    for folder in Path("/tmp").glob(f"cr-{fake.job}-*"):
        shutil.rmtree(folder)
        pytest.fail(f"{folder} was left")


def seen(slurm: FakeSlurm, rank: int) -> dict:
    return json.loads((slurm.home / f"seen-{rank}.json").read_text())


def wait_for_agents(slurm: FakeSlurm, *ranks: int) -> None:
    deadline = time.monotonic() + 20 * SLOWER
    while not all((slurm.home / f"seen-{rank}.json").exists() for rank in ranks):
        assert time.monotonic() < deadline, "no agent"
        time.sleep(0.05)


def test_what_a_search_server_needs_is_beside_the_agent_of_every_node(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text('{"title": "a", "text": "b"}\n')
    section = {"container": "bare", "volumes": [f"{tmp_path}:/checkpoints"]}
    cluster = Cluster(name="one", nodes=2, slurm=section, services=["search:./mine.jsonl"])
    code, _ = slurm.run(to_slurm(cluster, agent=AGENT), {"STATUS_0": "0", "TOGETHER": "1"})
    assert code == 0
    for rank in (0, 1):
        assert {"cloudrl-node.pyz", "cloudrl-retriever.pyz", "mine.jsonl"} <= {*seen(slurm, rank)["beside"]}
        assert AgentOptions.from_argv(seen(slurm, rank)["argv"]).services[0].label == "search"
    assert not (slurm.run_dir() / "files").exists()


@pytest.mark.parametrize("status", [0, 1, 4, 9])
def test_the_job_ends_as_its_training_does(slurm, tmp_path, status):
    code, output = slurm.run(script(tmp_path, 2), {"STATUS_0": str(status), "TOGETHER": ""})
    assert code == status, output
    assert "agent 0 is here" in output  # the log of rank 0 is that of the job
    assert (slurm.run_dir() / "nodes/1.log").read_text() == "agent 1 is here\n"
    assert (slurm.run_dir() / "status").read_text() == f"{status}\n"
    assert {each.name for each in slurm.run_dir().iterdir()} == {"head.json", "job.json", "nodes", "status"}
    assert not slurm.requeued


def test_agents_know_who_they_are_and_share_a_key_that_nobody_else_can_read(slurm, tmp_path):
    slurm.run(script(tmp_path, 2), {"STATUS_0": "0", "SLURM_ARRAY_TASK_ID": "7", "SLURM_RESTART_COUNT": "3"})
    head, worker = seen(slurm, 0), seen(slurm, 1)
    for rank, each in enumerate((head, worker)):
        identity = read_identity({**each["env"], "CLOUDRL_NODE_IP": "10.0.0.1"})
        assert (identity.provider, identity.name, identity.run_id) == ("slurm", "one", str(slurm.job))
        assert (identity.rank, identity.nodes, identity.head_ip) == (rank, 2, "0.0.0.0")
        assert each["modes"] == ["0o600", "0o700"]
    assert len(head["key"]) == 64
    assert head["key"] == worker["key"]
    assert json.loads(head["job"])["submission_id"] == "run-7"
    assert worker["job"] is None
    folder = slurm.run_dir(3)
    assert oct(folder.parents[1].stat().st_mode & 0o777) == "0o700"
    assert not (folder / "key").exists()
    assert all(each.stat().st_mode & 0o077 == 0 for each in folder.rglob("*"))
    ports = json.loads((folder / "head.json").read_text())
    options = AgentOptions.from_argv(head["argv"])
    assert (options.ports.agent, options.ports.dashboard) == (ports["agent"], ports["dashboard"])
    assert head["key"] not in "".join(each.read_text(errors="replace") for each in folder.rglob("*") if each.is_file())


def test_no_secret_stands_in_script_log_or_command_line(slurm, tmp_path):
    text = to_slurm(
        Cluster(name="one", slurm={"volumes": [f"{tmp_path}:/checkpoints"]}, secrets=["HF_TOKEN", "WANDB_API_KEY"]),
        agent=AGENT,
    )
    (slurm.home / ".cloudrl/slurm/secrets").mkdir(parents=True)
    (slurm.home / ".cloudrl/slurm/secrets/WANDB_API_KEY").write_text("from the file\n")
    slurm.env["SLURM_JOB_NUM_NODES"] = "1"
    _, output = slurm.run(text, {"HF_TOKEN": "from the shell", "STATUS_0": "0"})
    env = seen(slurm, 0)["env"]
    assert (env["HF_TOKEN"], env["WANDB_API_KEY"]) == ("from the shell", "from the file")
    (slurm.home / ".cloudrl/slurm/secrets/one").mkdir()
    (slurm.home / ".cloudrl/slurm/secrets/one/WANDB_API_KEY").write_text("from the file of the cluster\n")
    slurm.run(text, {"HF_TOKEN": "from the shell", "STATUS_0": "0", "SLURM_RESTART_COUNT": "2"})
    assert seen(slurm, 0)["env"]["WANDB_API_KEY"] == "from the file of the cluster"
    assert "from the" not in output + text + (slurm.folder / "srun").read_text()
    code, output = slurm.run(text, {"STATUS_0": "0", "SLURM_RESTART_COUNT": "1"})
    assert (code, "secret HF_TOKEN is not set" in output) == (4, True)


def test_a_lost_cluster_is_queued_again_and_not_for_ever(slurm, tmp_path):
    for restart in range(4):
        code, output = slurm.run(script(tmp_path, 2), {"STATUS_0": "75", "SLURM_RESTART_COUNT": str(restart)})
        assert (code, slurm.requeued) == (0, True), output
        assert not [*slurm.run_dir(restart).glob("*.sh"), *slurm.run_dir(restart).glob("*.pyz")]
        (slurm.folder / "requeued").unlink()
    code, output = slurm.run(script(tmp_path, 2), {"STATUS_0": "75", "SLURM_RESTART_COUNT": "4"})
    assert (code, slurm.requeued) == (4, False)
    reason = "a node, or Ray on it, was lost 5 times; the job is not queued again"
    assert f"FAILED: {reason}\n" in output
    assert (slurm.run_dir(4) / "nodes/0.failed").read_text() == f"{reason}\n"  # `cloudrl status` shows it


def test_a_loss_after_which_slurm_does_not_queue_it_again_is_told_as_one(slurm, tmp_path):
    code, output = slurm.run(script(tmp_path, 2), {"STATUS_0": "75", "NO_REQUEUE": "1"})
    assert (code, slurm.requeued) == (4, False)
    reason = "a node, or Ray on it, was lost, and Slurm does not queue this job again"
    assert f"FAILED: {reason}\n" in output
    assert "times" not in output
    assert (slurm.run_dir() / "nodes/0.failed").read_text() == f"{reason}\n"


@pytest.mark.parametrize(("preempted", "code"), [("2026-11-22T12:00:00", 0), ("None", 143)])
def test_a_job_that_another_one_preempts_is_queued_again(slurm, tmp_path, preempted, code):
    """Slurm has sent SIGTERM to the steps."""
    ended, output = slurm.run(script(tmp_path, 2), {"STATUS_0": "143", "PREEMPTED": preempted})
    assert (ended, slurm.requeued) == (code, code == 0), output


@pytest.mark.parametrize(("number", "status", "requeued"), [(signal.SIGTERM, 143, False), (signal.SIGUSR1, 0, True)])
def test_a_signal_ends_all_nodes(slurm, tmp_path, number, status, requeued):
    job = slurm.start(script(tmp_path, 2, job=False))
    wait_for_agents(slurm, 0, 1)
    began = time.monotonic()
    os.kill(job.pid, signal.SIGCONT)  # as Slurm does before
    os.kill(job.pid, number)
    output, _ = job.communicate(timeout=30 * SLOWER)
    assert (job.returncode, slurm.requeued) == (status, requeued), output
    assert time.monotonic() - began < 8 * SLOWER


def test_no_signal_is_lost_in_a_trap_for_that_which_slurm_sends_before(tmp_path):
    """bash 5.2 forgets one of two that it has traps for and that come at once, two times in five."""
    assert not re.search(r"^ *trap .*\bCONT\b", script(tmp_path, 2), re.MULTILINE)


def test_a_time_limit_that_comes_before_the_cluster_is_ready_is_no_reason_to_try_again(slurm, tmp_path):
    job = slurm.start(script(tmp_path, 2, job=False), {"SLOW": "1"})
    wait_for_agents(slurm, 0, 1)
    os.kill(job.pid, signal.SIGUSR1)
    output, _ = job.communicate(timeout=30 * SLOWER)
    assert (job.returncode, slurm.requeued) == (4, False), output
    assert "the cluster was not READY in time: raise slurm.time" in output
    assert "raise slurm.time" in (slurm.run_dir() / "nodes/0.failed").read_text()


@pytest.mark.parametrize("said", ["[10:00:00 rank 0] READY: 2 nodes in 1.0 s", ""])
def test_that_a_cluster_was_ready_is_read_in_the_log_of_this_start_too(slurm, tmp_path, said):
    """As where the agent's own log is in a container that could not be asked for it in time."""
    log = tmp_path / "job.log"
    log.write_text("[09:00:00 rank 0] READY: 2 nodes in 1.0 s\n")  # an earlier start of the job
    with log.open("a") as output:
        job = slurm.start(script(tmp_path, 2, job=False), {"SLOW": "1", "SAYS": said}, output=output)
    wait_for_agents(slurm, 0, 1)
    while said and log.read_text().count("READY") < 2:
        time.sleep(0.05)
    os.kill(job.pid, signal.SIGUSR1)
    job.wait(timeout=30 * SLOWER)
    assert (job.returncode, slurm.requeued) == ((0, True) if said else (4, False)), log.read_text()


@pytest.mark.parametrize(("array", "task"), [(0, "_3"), (7, "")])
def test_a_task_of_an_array_means_itself_and_not_the_whole_array(slurm, tmp_path, array, task):
    """The last one's number is that of the array, which scancel and scontrol take for all tasks."""
    env = {"SLURM_ARRAY_JOB_ID": str(slurm.job - array), "SLURM_ARRAY_TASK_ID": "3", "STATUS_0": "75"}
    code, output = slurm.run(script(tmp_path, 2), env)
    assert code == 0, output
    assert (slurm.folder / "requeued").read_text() == f"{slurm.job}{task}\n"
    assert (slurm.folder / "scancel").read_text() == f"--quiet --signal=TERM {slurm.job}{task}\n"


def test_a_node_that_never_has_an_agent_ends_the_job_with_its_reason(slurm, tmp_path):
    began = time.monotonic()
    code, output = slurm.run(script(tmp_path, 2, node_setup=['[ "$rank" = 0 ] || fail "no module rocm"']))
    assert code == 4
    assert "rank 1, node1: no module rocm" in output
    assert time.monotonic() - began < 15 * SLOWER


@pytest.mark.parametrize(
    ("commands", "code"),
    [(["true", "false"], 4), (["if true; then\n  ls /no/such/folder\nfi # it's not"], 4), (["echo $nobody"], 0)],
)
def test_a_node_set_up_that_fails_ends_the_job_and_names_the_command(slurm, tmp_path, commands, code):
    ended, output = slurm.run(script(tmp_path, node_setup=commands), {"STATUS_0": "0"})
    assert ended == code, output
    assert (f"node_setup: {commands[-1]}" in output) == (code != 0)


def test_what_a_signal_interrupts_is_no_failure(slurm, tmp_path):
    wait = 'touch "$HOME/waits"; until [ -n "$stopped" ]; do sleep 0.1; done; false'
    job = slurm.start(script(tmp_path, node_setup=[wait]))
    deadline = time.monotonic() + 20 * SLOWER
    while not (slurm.home / "waits").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(job.pid, signal.SIGTERM)
    output, _ = job.communicate(timeout=30 * SLOWER)
    assert (job.returncode, "FAILED" in output) == (143, False), output


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_head_that_never_has_an_agent_ends_the_job(slurm, tmp_path, nodes):
    slurm.env["SLURM_JOB_NUM_NODES"] = str(nodes)
    code, output = slurm.run(
        script(tmp_path, 2, node_setup=['until [ -n "$stopped" ]; do sleep 0.1; done'], join_timeout="2s")
    )
    assert code == 4, output
    assert "FAILED: rank 0 has no agent after 2 s" in output
    assert (slurm.run_dir() / "status").read_text() == "4\n"


def test_the_loss_of_an_agent_that_the_head_does_not_notice_ends_the_job(slurm, tmp_path):
    code, output = slurm.run(script(tmp_path, 2), {"STATUS_1": "1"})
    assert code == 4, output


@pytest.mark.parametrize(("vendor", "device"), [("amd", "/dev/kfd"), ("nvidia", "/dev/nvidiactl")])
def test_a_missing_device_is_named(slurm, tmp_path, vendor, device):
    if Path(device).exists():
        pytest.skip("this machine has one")
    section = {"container": "bare", "volumes": [f"{tmp_path}:/checkpoints"]}
    code, output = slurm.run(to_slurm(Cluster(name="one", gpu=f"{vendor}:8", slurm=section), agent=AGENT))
    assert code == 4
    assert f"there is no {device} on this node" in output


def test_it_says_what_it_is_when_it_is_no_job(slurm, tmp_path):
    slurm.env["SLURM_JOB_ID"] = ""
    code, output = slurm.run(script(tmp_path))
    assert (code, "sbatch" in output) == (2, True)


@pytest.mark.root
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_run_folder_of_another_user_is_refused(slurm, tmp_path, kind):
    place = tmp_path / "runs"
    if kind == "folder":
        place.mkdir()
    else:
        place.symlink_to(slurm.home)
    before = slurm.home.stat().st_mode
    os.chown(place, other_user.UID, other_user.UID, follow_symlinks=False)
    code, output = slurm.run(script(tmp_path, run_dir=str(place)), {"STATUS_0": "0"})
    assert (code, f"{place} belongs to another user" in output) == (4, True), output
    assert slurm.home.stat().st_mode == before


@pytest.mark.root
def test_a_node_folder_of_another_user_is_refused(slurm, tmp_path):
    folder = Path(f"/tmp/cr-{slurm.job}-0-0")
    assert other_user.run('mkdir -m 777 "$1"', folder).returncode == 0
    code, output = slurm.run(script(tmp_path), {"STATUS_0": "0"})
    assert not list(folder.iterdir())
    folder.rmdir()
    assert (code, f"{folder} cannot be made" in output) == (4, True), output


def test_a_node_has_its_folder_where_the_section_says(slurm, tmp_path):
    """One that a killed step has left there goes, too."""
    (slurm.folder / f"state-{slurm.job + 1}").write_text("COMPLETED")
    left = Path(f"/dev/shm/cr-{slurm.job + 1}-0-0")
    left.mkdir()
    code, output = slurm.run(script(tmp_path, tmp_dir="/dev/shm"), {"STATUS_0": "0"})
    assert code == 0, output
    options = AgentOptions.from_argv(seen(slurm, 0)["argv"])
    assert options.ray_temp_dir == Path(f"/dev/shm/cr-{slurm.job}-0-0/ray")
    assert not left.exists()
    assert not options.ray_temp_dir.parent.exists()


@pytest.mark.parametrize(("state", "stays"), [("COMPLETED", False), ("RUNNING", True), ("squeue: error: down", True)])
def test_what_a_killed_step_has_left_goes_once_its_job_is_over(slurm, tmp_path, state, stays):
    (slurm.folder / f"state-{slurm.job + 1}").write_text(state)
    other = Path(f"/tmp/cr-{slurm.job + 1}-0-0")
    earlier = Path(f"/tmp/cr-{slurm.job}-0-1")
    for folder in (other, earlier):
        folder.mkdir()
    slurm.run(script(tmp_path, 2), {"STATUS_0": "0", "SLURM_RESTART_COUNT": "1"})
    assert (other.exists(), earlier.exists()) == (stays, False)
    if stays:
        other.rmdir()
