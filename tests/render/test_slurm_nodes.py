"""The script for sbatch on a real Slurm: real agents and a real Ray; trainings are a stand-in.

That of verl is in `test_slurm_training.py`.
"""

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dstack_hosts.runs import until
from slurm_nodes import SlurmNodes
from slurm_nodes.containers import IMAGE
from slurm_nodes.gpus import Gpus

from cloudrl.providers.slurm.script import to_slurm
from cloudrl.sdk.slurm import slurm_script
from cloudrl.spec import Cluster, Job

pytestmark = [pytest.mark.slurm, pytest.mark.root]

SHOW_ENVIRONMENT = b"import os\nfor name, value in os.environ.items():\n    print(f'{name}={value}', flush=True)\n"
SHOW_JOB = b"""
import json, sys
path = next(word for word in sys.argv if word.startswith("--job=")).partition("=")[2]
print("JOB", json.load(open(path))["submission_id"], flush=True)
"""
STAYS = b"""
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder = pathlib.Path(next(word for word in sys.argv if word.startswith("--run-dir=")).partition("=")[2])
folder.mkdir()
(folder / "agent.log").write_text("here")
print("STAYS", flush=True)
time.sleep(60)
"""
STAND_IN = """
import pathlib, ray, sys, time, zipfile

HERE = pathlib.Path("/checkpoints")
ray.init(log_to_driver=False)
assert sum(node["Alive"] for node in ray.nodes()) == 2
given = dict(word.split("=", 1) for word in sys.argv if "=" in word)
begin = int(given.get("trainer.resume_from_path", "_0").rpartition("_")[2])
for step in range(begin + 1, int(given["trainer.total_training_steps"]) + 1):
    print(f"step:{step} - ", flush=True)
    folder = HERE / f"run/global_step_{step}"
    (folder / "actor/huggingface").mkdir(parents=True)
    (folder / "actor/huggingface/config.json").write_text("{}")
    for kind, rank in [(kind, rank) for kind in ("model", "optim", "extra_state") for rank in (0, 1)]:
        with zipfile.ZipFile(folder / f"actor/{kind}_world_size_2_rank_{rank}.pt", "w") as archive:
            archive.writestr("data.pkl", b"x")
    (folder / "data.pt").write_bytes(b"x")
    (HERE / "run/latest_checkpointed_iteration.txt").write_text(str(step))
    while any(int(each.name[5:]) <= step for each in HERE.glob("hold-*")): time.sleep(0.1)
"""
"""Goes on after the step that it is given, as verl does, on a real Ray of both nodes, and saves what verl saves.

Where there is a file `hold-2`, it goes no further once step 2 is saved.
"""
START_S = 150.0
TRAINING_S = 300.0


def fields(nodes: int, *, image: str | None = None, **section: Any) -> dict[str, Any]:
    here = {
        "container": "bare", "python": sys.executable, "volumes": ["/shared/checkpoints:/checkpoints"],
        "output": "/shared/%x-%j.log", **section,
    }  # fmt: skip
    return {"name": "two", "image": image, "nodes": nodes, "cpu": 4, "memory": "8GB", "slurm": here}


def up(nodes: int, **changes: Any) -> str:
    """A cluster that waits for jobs."""
    return to_slurm(Cluster.load(fields(nodes, **changes)))


def training(nodes: int, steps: int, **changes: Any) -> str:
    """Saves at each step, and can be held after one."""
    cluster, overrides = fields(nodes, **changes), {"trainer.total_training_steps": steps, "trainer.save_freq": 1}
    files = dict.fromkeys(("data.train_files", "data.val_files", "actor_rollout_ref.model.path"), "/nowhere")
    entrypoint = ("python3", "-c", f"exec({STAND_IN!r})")
    job = Job(name="stand-in", device="cpu", entrypoint=entrypoint, overrides=files)
    return slurm_script(job, overrides, cluster=cluster, name="run")


def run_dir(slurm: SlurmNodes, job: int, restart: int = 0) -> Path:
    return slurm.home / f"alice/.cloudrl/slurm/{job}/{restart}"


@pytest.fixture(autouse=True)
def folders(slurm: SlurmNodes) -> Iterator[None]:
    """What jobs write: gone with each test."""
    yield
    slurm.restore()
    slurm.login.run("rm", "-rf", "/home/alice/.cloudrl", "/home/alice/.cache", "/shared/checkpoints")
    for log in slurm.shared.glob("two-*.log"):
        log.unlink()


def wait_for_step(slurm: SlurmNodes, job: int, step: int) -> None:
    tracker = slurm.shared / "checkpoints/run/latest_checkpointed_iteration.txt"
    is_saved = lambda: tracker.exists() and int(tracker.read_text() or 0) >= step  # noqa: E731
    until(is_saved, TRAINING_S, lambda: slurm.jobs.output(job))


def first_step(output: str, start: int) -> int:
    """The first step that a start of the job has trained."""
    return int(re.findall(r"\bstep:(\d+) - ", output.partition(f"start {start} on")[2])[0])


def test_a_training_in_docker_outlives_a_lost_node_and_its_time_limit(slurm):
    steps = 3  # one a start
    checkpoints = slurm.shared / "checkpoints"
    slurm.login.run("mkdir", "/shared/checkpoints", user="alice")
    (checkpoints / "hold-1").touch()
    job = slurm.jobs.sbatch(training(2, steps, container="docker", image=IMAGE), "--time=30", cwd="/shared")
    wait_for_step(slurm, job, 1)
    slurm.nodes[1].power_off()
    slurm.jobs.wait(job, "PENDING")
    (checkpoints / "hold-1").rename(checkpoints / "hold-2")
    slurm.jobs.release_now(job)

    wait_for_step(slurm, job, 2)
    slurm.jobs.limit_soon(job)  # USR1 is due two minutes before that; Slurm looks every 30 s
    slurm.jobs.wait(job, "PENDING", timeout_s=180)
    assert "the time limit is near: queued again" in slurm.jobs.output(job)
    (checkpoints / "hold-2").unlink()
    slurm.login.run("scontrol", "update", f"JobId={job}", "TimeLimit=30")
    slurm.jobs.release_now(job)

    ended = slurm.jobs.wait(job, timeout_s=TRAINING_S)
    output = slurm.jobs.output(job)
    seen = (ended.state, ended.exit_code, ended.restarts, ended.nodes)
    last = " | ".join(output.splitlines()[-15:])  # in one line: of a test that fails elsewhere that may be all one sees
    assert seen == ("COMPLETED", 0, 2, ("node0", "node2")), f"{seen}: {last}"
    assert (first_step(output, 1), first_step(output, 2)) == (2, 3)
    record = json.loads((checkpoints / ".cloudrl/jobs/run.json").read_text())
    story = [(each["submission_id"], each["from_step"], each["verdict"]) for each in record["attempts"]]
    lost, going_on = "infrastructure", "succeeded"
    assert story == [("run", 0, lost), ("run-2", 1, lost), ("run-3", 2, going_on)], f"{story}: {last}"
    assert record["outcome"]["result"] == "succeeded"
    assert output.rstrip().endswith("ended with status 0")
    assert (checkpoints / f"run/global_step_{steps}").is_dir()
    assert (run_dir(slurm, job, 2) / "status").read_text() == "0\n"
    for rank in (0, 1):
        assert (run_dir(slurm, job, 2) / f"nodes/{rank}/agent.log").is_file()

    slurm.restore()
    # its next job removes what had no time to end: without power, or 5 s after Slurm's signal
    script = to_slurm(Cluster.load(fields(1, container="docker", image=IMAGE)), agent=SHOW_ENVIRONMENT)
    for next_job in [slurm.jobs.sbatch(script, f"--nodelist={node.name}", cwd="/shared") for node in slurm.nodes]:
        slurm.jobs.wait(next_job)
    assert not slurm.remains()


def test_the_log_of_an_agent_in_docker_is_kept_however_long_it_takes_to_end(slurm):
    """Its node's folder, which the container has bound, is removed before Slurm could kill who would do so later."""
    script = to_slurm(Cluster.load(fields(1, container="docker", image=IMAGE)), agent=STAYS)
    job = slurm.jobs.sbatch(script.replace("sleep 4; rm", "sleep 1; rm"), cwd="/shared")
    slurm.jobs.wait_for(job, "STAYS", START_S)
    assert slurm.login.run("scancel", str(job), user="alice").returncode == 0
    slurm.jobs.wait(job, "CANCELLED", timeout_s=30)
    log = run_dir(slurm, job) / "nodes/0/agent.log"
    until(log.exists, 15, lambda: slurm.jobs.output(job))


def test_two_jobs_on_two_nodes_know_nothing_of_each_other(slurm):
    first, second = (slurm.jobs.sbatch(up(2, nodelist="node0,node1"), cwd="/shared") for _ in range(2))
    for job in (first, second):
        slurm.jobs.wait_for(job, "READY: 2 nodes", START_S)
    heads = [json.loads((run_dir(slurm, job) / "head.json").read_text()) for job in (first, second)]
    ports = [each[name] for each in heads for name in ("agent", "gcs", "dashboard", "client")]
    assert len(set(ports)) == 8
    for node in slurm.nodes:
        assert (
            "Permission denied"
            in node.run("cat", str(Path("/home/alice/.cloudrl/slurm", str(first), "0/key")), user="bob").stderr
        )
    assert slurm.login.run("scancel", str(first), user="alice").returncode == 0
    began = time.monotonic()
    slurm.jobs.wait(first, "CANCELLED", timeout_s=15)
    of_first = lambda: [each for each in slurm.remains(0) if f"cr-{first}-" in each]  # noqa: E731
    while of_first():
        assert time.monotonic() - began < 15, of_first()
        time.sleep(0.2)
    time.sleep(3)  # a second agent that missed its head would end now
    assert slurm.jobs.show(second).state == "RUNNING"
    assert slurm.login.run("scancel", str(second), user="alice").returncode == 0
    slurm.jobs.wait(second, "CANCELLED", timeout_s=15)
    assert not slurm.remains(15)


def fails_within_seconds(slurm: SlurmNodes, script: str, reason: str) -> None:
    """A job ends, and the first lines of its log say why."""
    began = time.monotonic()
    job = slurm.jobs.sbatch(script, cwd="/shared")
    ended = slurm.jobs.wait(job, timeout_s=30)
    assert (ended.state, ended.exit_code) == ("FAILED", 4)
    first = slurm.jobs.output(job).splitlines()[:6]
    assert any(reason in line for line in first), first
    assert time.monotonic() - began < 30
    assert not slurm.remains()


def test_a_missing_python_is_named_within_seconds(slurm):
    fails_within_seconds(slurm, up(2, python="/shared/no/python"), "there is no /shared/no/python on this node")


@pytest.mark.parametrize("container", ["docker", "podman"])
def test_a_missing_image_is_named_within_seconds(slurm, container):
    fails_within_seconds(slurm, up(2, container=container, image="nowhere/nothing:1"), "no image nowhere/nothing:1")


def test_a_missing_device_is_named_within_seconds(slurm):
    script = to_slurm(Cluster.load({**fields(2), "gpu": "MI300X:2"}))
    fails_within_seconds(slurm, script, "there is no /dev/kfd on this node")


@pytest.mark.parametrize("folder", ["/tmp", "/shared/full"])
def test_a_full_disk_is_named_within_seconds(slurm, folder):
    """Of one node, or the one that all share."""
    for node in slurm.nodes[:2]:
        node.run("mkdir", "-p", folder)
        node.run("mount", "-t", "tmpfs", "-o", "size=400k,mode=1777", "full", folder)
    try:
        shared = {"run_dir": "/shared/full/runs"} if folder != "/tmp" else {}
        reason = "no room in /tmp/cr-" if folder == "/tmp" else "the agent cannot be written to /shared/full/runs"
        fails_within_seconds(slurm, up(2, nodelist="node0,node1", **shared), reason)
    finally:
        for node in slurm.nodes[:2]:
            node.run("umount", folder)
        slurm.login.run("rm", "-rf", "/shared/full")


@pytest.mark.parametrize(
    ("silent", "reason"),
    [(1, "rank 1 did not join within 20 s"), (0, "rank 0 has no agent after 20 s")],
    ids=["worker", "head"],
)
def test_an_agent_that_never_comes_up_ends_the_job(slurm, silent, reason):
    setup = [f'[ "$rank" != {silent} ] || {{ sleep 600 & wait $!; }}']
    job = slurm.jobs.sbatch(up(2, node_setup=setup, join_timeout="20s"), cwd="/shared")
    ended = slurm.jobs.wait(job, timeout_s=START_S)
    assert (ended.state, ended.exit_code) == ("FAILED", 4)
    assert reason in slurm.jobs.output(job)
    assert not slurm.remains()


def test_each_task_of_an_array_is_a_run_of_its_own(slurm):
    """Without Ray: the agent's file is one that shows which job it was given, and where."""
    script = slurm_script("grpo-tiny", {}, cluster=fields(1, output="/shared/two-%j.log"), name="run")
    agent = to_slurm(Cluster.load(fields(1)), agent=SHOW_JOB).partition("\nwrite_agent() {")[2]
    script = script.partition("\nwrite_agent() {")[0] + "\nwrite_agent() {" + agent
    first = slurm.jobs.sbatch(script, "--array=0-1", cwd="/shared")
    after = slurm.jobs.sbatch(script, f"--dependency=afterany:{first}", cwd="/shared")
    slurm.jobs.wait(after)
    shown = sorted(
        line for log in slurm.shared.glob("two-*.log") for line in log.read_text().splitlines() if "JOB" in line
    )
    assert shown == ["JOB run", "JOB run-0", "JOB run-1"]


@pytest.mark.parametrize(
    ("gpus", "variable"), [(Gpus(8, "amd", "mi300x"), "HIP_VISIBLE_DEVICES"), (Gpus(8), "CUDA_VISIBLE_DEVICES")]
)
@pytest.mark.parametrize("container", ["bare", "docker"])
def test_verl_accepts_the_variables_that_are_left_of_all_that_slurm_sets(gpus, variable, container, monkeypatch):
    """Two of eight GPUs on a site that sets the variables of all vendors; in docker the device options do the rest."""
    from verl.single_controller.base.worker import Worker

    section = fields(1, image=IMAGE, container=container, python=sys.executable)
    script = to_slurm(Cluster.load({**section, "gpu": f"{gpus.vendor}:2"}), agent=SHOW_ENVIRONMENT)
    with SlurmNodes(1, gpus=gpus, containers=container == "docker") as site:
        job = site.jobs.sbatch(script, cwd="/shared")
        site.jobs.wait(job)
        shown = re.findall(r"^((?:HIP|CUDA|ROCR)_VISIBLE_DEVICES)=(.*)$", site.jobs.output(job), re.MULTILINE)
    env = dict(shown)
    expected = {} if (container, gpus.vendor) == ("docker", "nvidia") else {variable: "0,1"}
    assert env == expected
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    Worker._setup_env_cuda_visible_devices(object())  # type: ignore[arg-type]
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == ("0,1" if env else None)


def test_a_cancelled_job_in_podman_leaves_no_container(slurm):
    script = up(2, container="podman", image=IMAGE, run_dir="/shared/root")  # whose home is on each node
    job = slurm.jobs.sbatch(script, cwd="/shared", user="root")
    slurm.jobs.wait_for(job, "READY: 2 nodes", START_S)
    assert any("podman" in words[0] for words in slurm.nodes[1].processes())
    slurm.login.run("scancel", str(job))
    slurm.jobs.wait(job, "CANCELLED", timeout_s=15)
    assert not slurm.remains(15)
    slurm.login.run("rm", "-rf", "/shared/root")


@pytest.mark.parametrize("comment", ['it\'s "quoted"', "a\\b", "$(id) `id` $HOME", "# none", "a  b", "é"])
def test_slurm_reads_a_value_as_it_was_given(slurm, comment):
    job = slurm.jobs.sbatch(up(1, comment=comment), "--hold", cwd="/shared")
    shown = slurm.login.run("squeue", "--noheader", f"--jobs={job}", "--Format=Comment:99").stdout
    assert shown.rstrip() == comment
