"""The real Slurm on nodes that are namespaces: what a job and a user see, and what a job leaves."""

from __future__ import annotations

import contextlib
import json
import sys

import pytest
from child_processes import until

from slurm_nodes import Gpus, SlurmNodes
from slurm_nodes.fixtures import start_or_skip

pytestmark = [pytest.mark.slurm, pytest.mark.root]

VIEW = """import json, os, pathlib, socket
print(json.dumps({
    "host": socket.gethostname(), "rank": os.environ["SLURM_PROCID"], "user": os.getuid(),
    "cuda": os.environ.get("CUDA_VISIBLE_DEVICES"), "rocr": os.environ.get("ROCR_VISIBLE_DEVICES"),
    "devices": sorted(path.name for path in pathlib.Path("/dev").glob("nvidia[0-9]*")),
    "address": socket.gethostbyname(socket.gethostname()), "processes": len(list(pathlib.Path("/proc").glob("[0-9]*"))),
}))
pathlib.Path("/shared", socket.gethostname()).write_text("seen by all")
pathlib.Path("/tmp/own").write_text(socket.gethostname())
assert pathlib.Path("/tmp/own").read_text() == socket.gethostname()
os.unlink("/tmp/own")
"""
# Says so when it is told to end, and ends; what it waits for would go on without it.
TRAPS = """
trap 'echo told; exit 99' USR1
trap 'echo ended; exit 143' TERM
echo restart $SLURM_RESTART_COUNT on $SLURMD_NODENAME
sleep 600 & wait
"""


def test_two_nodes_see_two_hosts_and_their_gpus(slurm):
    words = ("srun", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=2", sys.executable, "-c", VIEW)
    done = slurm.login.run(*words, user="alice", cwd="/shared")
    assert done.returncode == 0, done.stderr
    first, second = sorted(map(json.loads, done.stdout.splitlines()), key=lambda view: view["rank"])
    assert (first["host"], second["host"]) == ("node0", "node1")
    assert first["address"] != second["address"]
    for view in (first, second):
        assert (view["cuda"], view["rocr"]) == ("0,1", "0,1")  # a site whose gres.conf says nothing of the vendor
        assert view["devices"] == [f"nvidia{number}" for number in range(8)]
        assert view["user"] == 3001
        assert view["processes"] < 10  # its own node's
        assert (slurm.shared / view["host"]).read_text() == "seen by all"
        (slurm.shared / view["host"]).unlink()


def test_a_batch_job_ends_with_its_exit_code_and_accounting_knows_it(slurm):
    job = slurm.jobs.sbatch("echo one; srun hostname; exit 7", "--nodes=2", "--ntasks=2")
    ended = slurm.jobs.wait(job)
    assert (ended.state, ended.exit_code, ended.nodes) == ("FAILED", 7, ("node0", "node1"))
    assert sorted(slurm.jobs.output(job).split()) == ["node0", "node1", "one"]
    known = slurm.login.run("sacct", "-c", "-n", "-P", "-o", "state,exitcode", "-j", str(job), user="alice")
    assert known.stdout.split() == ["FAILED|7:0"], known.stderr


def test_a_cancelled_job_leaves_no_process_not_even_a_daemon(slurm):
    job = slurm.jobs.sbatch(f"setsid --fork sleep 601\n{TRAPS}", "--signal=B:TERM")
    slurm.jobs.wait_for(job, "restart")
    assert ("sleep", "601") in slurm.nodes[0].processes()
    assert slurm.login.run("scancel", str(job), user="bob").returncode != 0  # it is not bob's
    assert slurm.login.run("scancel", str(job), user="alice").returncode == 0
    slurm.jobs.wait(job, "CANCELLED")
    assert not slurm.remains()


def test_a_job_is_told_before_its_time_is_up_and_may_be_requeued(slurm):
    job = slurm.jobs.sbatch(
        TRAPS.replace("exit 99", "scontrol requeue $SLURM_JOB_ID; sleep 60"),
        "--time=1", "--signal=B:USR1@58", "--requeue", "--open-mode=append",
    )  # fmt: skip
    slurm.jobs.wait_for(job, "told")
    slurm.jobs.wait(job, "PENDING")
    slurm.jobs.release_now(job)
    slurm.jobs.wait_for(job, "restart 1 on")


def test_a_node_without_power_is_lost_and_its_job_is_requeued_on_another(slurm):
    job = slurm.jobs.sbatch(TRAPS, "--requeue", "--open-mode=append")
    slurm.jobs.wait_for(job, "on node0")
    slurm.nodes[0].power_off()
    slurm.wait_states({"node0": "down*"})
    slurm.jobs.wait(job, "PENDING")
    slurm.jobs.release_now(job)
    slurm.jobs.wait_for(job, "restart 1 on node1")
    slurm.nodes[0].power_on()
    slurm.wait_states({"node0": "idle"})


def test_a_drained_node_takes_no_job(slurm):
    slurm.drain(slurm.nodes[0])
    job = slurm.jobs.sbatch("echo on $SLURMD_NODENAME")
    slurm.jobs.wait(job, "COMPLETED")
    assert slurm.jobs.output(job) == "on node1\n"


def test_users_log_in_over_ssh_and_do_not_see_each_others_homes(slurm):
    done = slurm.laptop.run(
        "ssh", "alice@login", "sinfo -h -o %D; umask 077; echo secret >token; id -un; hostname; pwd"
    )
    assert done.stdout.split() == ["3", "alice", "login", "/home/alice"], done.stderr
    assert (slurm.home / "alice/token").read_text() == "secret\n"
    for node in (slurm.login, slurm.nodes[0]):
        assert "Permission denied" in node.run("cat", "/home/alice/token", user="bob").stderr
        assert node.run("cat", "/home/alice/token", user="alice").stdout == "secret\n"
    (slurm.home / "alice/token").unlink()


def test_another_site_has_a_database_other_gpus_open_nodes_and_cannot_track_daemons():
    gpus = Gpus(4, "amd", "mi300x", flagged=True)
    site = SlurmNodes(1, gpus=gpus, accounting=True, node_ssh=True, track="linuxproc")
    with contextlib.ExitStack() as stack:
        stack.callback(start_or_skip(site).stop)
        command = (
            "ls /dev/kfd /dev/dri; env | grep -E 'VISIBLE|ORDINAL|AFFINITY'; setsid --fork sleep 606 >/dev/null 2>&1"
        )
        done = site.login.run("srun", "--gpus=mi300x:2", "sh", "-c", command, user="bob")
        seen = done.stdout.split()
        assert {"/dev/kfd", "renderD131", "ROCR_VISIBLE_DEVICES=0,1"} < set(seen), done.stderr
        assert not [line for line in seen if line.startswith(("CUDA", "GPU", "ZE"))]
        assert ("sleep", "606") in site.nodes[0].processes()
        jump = site.laptop.run("ssh", "-J", "alice@login", "alice@node0", "hostname")
        assert jump.stdout == "node0\n", jump.stderr
        job = site.jobs.sbatch("exit 3")
        site.jobs.wait(job, "FAILED")
        words = ("sacct", "-n", "-P", "-X", "-o", "state,exitcode", "-j", str(job))
        # the controller tells the database a moment later
        until(lambda: site.login.run(*words, user="alice").stdout == "FAILED|3:0\n", "its end is in the database")
