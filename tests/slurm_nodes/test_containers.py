"""Real docker and podman on the nodes, with an image of this machine's own programs."""

from __future__ import annotations

import json
import sys

import pytest

from slurm_nodes.containers import IMAGE, TAR

pytestmark = [pytest.mark.slurm, pytest.mark.root]

VIEW = """import json, os, pathlib, ray, socket
print(json.dumps({
    "host": socket.gethostname(), "ray": ray.__version__, "shared": pathlib.Path("/shared/in").read_text(),
    "gpus": sorted(path.name for path in pathlib.Path("/dev").glob("nvidia[0-9]*")),
    "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
}))
"""
SEEN = ("--rm", "--network=host", "--shm-size=128m", "--volume=/shared:/shared")


def test_docker_on_two_nodes_has_this_python_the_shared_folder_and_the_gpus_it_asks_for(slurm):
    (slurm.shared / "in").write_text("seen")
    srun = ("srun", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=2")
    words = ("docker", "run", *SEEN, "--gpus", '"device=0,1"', IMAGE, sys.executable, "-c", VIEW)
    done = slurm.login.run(*srun, *words, user="alice")
    assert done.returncode == 0, done.stderr
    views = [json.loads(line) for line in done.stdout.splitlines()]
    assert {view.pop("host") for view in views} == {"node0", "node1"}
    assert views[0] == views[1]
    assert (views[0]["shared"], views[0]["gpus"], views[0]["shm"]) == ("seen", ["nvidia0", "nvidia1"], 128 << 20)
    (slurm.shared / "in").unlink()


def test_a_container_outlives_its_job_and_is_seen_to_remain(slurm):
    job = slurm.jobs.sbatch(f"docker run --detach --name=stays {IMAGE} sleep 602")
    slurm.jobs.wait(job, "COMPLETED")
    left = slurm.remains(0)
    assert any("sleep 602" in line for line in left), left
    assert any("/docker/" in line for line in left), left
    assert slurm.nodes[0].run("docker", "rm", "--force", "stays", user="alice").returncode == 0
    assert not slurm.remains()


def test_an_image_that_is_not_there_fails_at_once_since_there_is_no_registry(slurm):
    done = slurm.nodes[0].run("docker", "run", "--rm", "nowhere/nothing", "true", user="alice")
    assert done.returncode == 125
    assert "Unable to find image" in done.stderr


def test_docker_builds_from_the_image(slurm):
    text = f"FROM {IMAGE}\nRUN echo built >/opt/built\n"
    done = slurm.nodes[0].run("docker", "build", "--tag=mine", "-", user="alice", text=text)
    assert done.returncode == 0, done.stdout + done.stderr
    assert slurm.nodes[0].run("docker", "run", "--rm", "mine", "cat", "/opt/built").stdout == "built\n"
    slurm.nodes[0].run("docker", "rmi", "--force", "mine")


def test_podman_runs_as_root_with_the_devices_it_asks_for(slurm):
    words = ("podman", "run", "--rm", "--device=nvidia.com/gpu=3", IMAGE, "sh", "-c", "echo hello; ls /dev")
    done = slurm.nodes[0].run(*words)
    assert done.returncode == 0, done.stderr
    seen = done.stdout.split()
    assert (seen[0], "nvidia3" in seen, "nvidia0" in seen) == ("hello", True, False)


def test_podman_runs_for_a_user_without_root_who_imports_the_image(slurm):
    script = f"podman import --quiet {TAR} {IMAGE}; podman run --rm {IMAGE} id --user; podman rmi --force {IMAGE}"
    job = slurm.jobs.sbatch(script)
    ended = slurm.jobs.wait(job)
    assert ended.state == "COMPLETED", slurm.jobs.output(job)
    assert "\n0\n" in slurm.jobs.output(job)
