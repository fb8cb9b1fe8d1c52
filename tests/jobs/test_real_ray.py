"""The same calls against a real Ray: what the stand-in cluster claims, Ray does."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cut_link import CutLink
from patience import SLOWER
from planning import submit

from cloudrl.errors import InputError, JobFailed, Unauthorized
from cloudrl.jobs import JobHandle, Line, Progress, SubmitOptions, find_job
from cloudrl.protocol.backoff import Backoff
from cloudrl.providers.local.plan import free_ports
from cloudrl.spec import HydraText, Job
from cloudrl.transport import Connection, RayClient, inspect_cluster
from cloudrl.transport.log_stream import RayLog, follow_log
from cloudrl.transport.ray_client import PACKAGE_LIMIT_BYTES
from cloudrl.transport.ray_job import JobStatus

pytestmark = pytest.mark.ray
TOKEN = "a-token-for-the-tests-0123456789"
PORTS = (
    "dashboard-agent-listen", "dashboard-agent-grpc", "metrics-export", "node-manager", "object-manager",
    "runtime-env-agent",
)  # fmt: skip

TRAIN = """
import json, os, sys, time
given = dict(argument.split("=", 1) for argument in sys.argv[1:])
print("given", json.dumps(given), flush=True)
print("files", sorted(os.listdir(".")), os.environ["A"], flush=True)
for step in range(1, 4):
    line = f"step:{step} - critic/score/mean:0.{step} - timing_s/step:0.1 - 训练"
    sys.stdout.buffer.write(line.encode() + b"\\n")
    sys.stdout.flush()
    time.sleep(0.3)
sys.stdout.buffer.write(b"\\xff\\xfe and half \\xe4\\xbd"); sys.stdout.flush(); time.sleep(1.5)
sys.stdout.buffer.write(b"\\xa0\\n"); sys.stdout.flush()
if "+wait" in given: time.sleep(600)
if "+fail" in given: raise KeyError("first")
"""


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    """A head of our own, on free ports, in a folder of its own; nothing of it is left afterwards."""
    folder = tempfile.mkdtemp(prefix="cr", dir="/tmp")  # short: Ray's sockets are below it
    gcs, dashboard, *others = free_ports(8, cluster="real")
    own_ports = dict(zip(PORTS, others, strict=True))
    command = [
        *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"),
        *("--num-cpus=4", "--num-gpus=1", "--object-store-memory=100000000", "--disable-usage-stats"),
        *(f"--port={gcs}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1"),
        *("--min-worker-port=0", "--max-worker-port=0", f"--temp-dir={folder}"),
        *(f"--{name}-port={port}" for name, port in own_ports.items()),
    ]
    env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    with Path(folder, "head.log").open("wb") as log:
        head = subprocess.Popen(command, env=env, stdout=log, stderr=log, preexec_fn=_end_with_this_process)  # noqa: PLW1509
    try:
        url = f"http://127.0.0.1:{dashboard}"
        wait_until_ready(RayClient(url, TOKEN), head)
        yield Connection("real", url, TOKEN)
    finally:
        head.terminate()
        with suppress(subprocess.TimeoutExpired):
            head.wait(15 * SLOWER)
        for pid in processes_of(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        head.wait(15 * SLOWER)
        shutil.rmtree(folder, ignore_errors=True)


def _end_with_this_process() -> None:
    """SIGTERM when this process dies, however: `ray start --block` then ends all that it has started."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def wait_until_ready(api: RayClient, head: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 180 * SLOWER
    while True:
        assert head.poll() is None, "ray start ended"
        with suppress(Exception):
            if api.nodes():
                return
        assert time.monotonic() < deadline, "Ray did not come up"
        time.sleep(0.2)


def processes_of(folder: str) -> list[int]:
    """Processes that carry the folder in their command line, and no others."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if folder.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folder")
    (folder / "train.py").write_text(TRAIN)
    (folder / "sub dir").mkdir()
    (folder / "sub dir/你.txt").write_text("x")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "__pycache__").mkdir()
    return folder


def options(folder: Path, **changes: Any) -> SubmitOptions:
    overrides = {
        "data.train_files": "/d/train.parquet",
        "data.val_files": "/d/test.parquet",
        "actor_rollout_ref.model.path": "/m",
        "trainer.default_local_dir": "/c/run",
        "+note": HydraText('it\'s $(id) `id` "x"\n; end'),
        **changes.pop("overrides", {}),
    }
    return SubmitOptions(
        **{"overrides": overrides, "env": {"A": "1 2"}, "working_dir": str(folder), "steps": 3, **changes}
    )


JOB = Job(name="fake-train", entrypoint=["python3", "train.py"], device="cpu")


@pytest.fixture(scope="module")
def job(connection: Connection, folder: Path) -> JobHandle:
    """One for all tests that only look at it."""
    return submit(connection, JOB, options(folder, submission_id="mine-1"))


def test_a_cluster_without_an_agent(connection: Connection):
    look = inspect_cluster(connection)
    assert (look.nodes, look.gpus_per_node, look.checkpoint_dir, look.id) == (1, 1, "", "")
    assert RayClient(connection.ray_url, TOKEN).version()["ray_version"].startswith("2.")


def test_from_submit_to_the_end(connection: Connection, job: JobHandle):
    events = list(job.follow(lines=True))
    text = "\n".join(event.text for event in events if isinstance(event, Line))
    assert 'it\'s $(id) `id` \\"x\\"\\n; end' in text
    assert "files ['run.sh', 'sub dir', 'train.py'] 1 2" in text
    assert text.endswith("\ufffd\ufffd and half 你")
    assert [event for event in events if isinstance(event, Progress)][-1] == Progress(
        3, 3, {"reward": 0.3}, pytest.approx(0.1), 0.0
    )
    assert text.count("step:2") == 1
    assert events[-1].succeeded
    assert list(find_job(connection, job.submission_id).logs()) == text.split("\n")
    listed = {each.submission_id: each.status for each in connection.ray().list_jobs()}
    assert listed[job.submission_id] == "SUCCEEDED"


def test_a_log_taken_up_in_the_middle_of_a_character(connection: Connection, job: JobHandle):
    job.wait()
    source = RayLog(RayClient(connection.ray_url, TOKEN), job.submission_id, poll_s=(0.1, 0.1))
    whole = b"".join(follow_log(lambda: source, lambda: True))
    middle = whole.index("训".encode()) + 1
    stream = source.read(middle, follow=True)
    got = b""
    while len(got) < len(whole) - middle:
        got += next(stream)
    stream.close()
    assert whole[:middle] + got == whole
    assert b"".join(source.read(middle, follow=False)) == whole[middle:]


def test_through_a_tunnel_that_keeps_breaking(connection: Connection, job: JobHandle):
    with CutLink(int(connection.ray_url.rsplit(":", 1)[1])) as link:
        link.cut_at = list(range(300, 4300, 500))
        through = replace(job, connection=replace(connection, ray_url=link.url))
        backoff = Backoff(first_s=0.01, longest_s=0.05)
        followed = [event.text for event in through.follow(lines=True, backoff=backoff) if isinstance(event, Line)]
        assert len(link.cut_at) < 4, "at least five breaks"
    assert followed == list(job.logs())


def test_why_the_bytes_are_read_and_not_the_text(connection: Connection, job: JobHandle):
    """Ray's endpoint for logs gives nothing at all of a log that holds one byte which is not an UTF-8."""
    job.wait()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = httpx2.get(f"{connection.ray_url}/api/jobs/{job.submission_id}/logs", headers=headers, trust_env=False)
    assert answer.status_code == 500
    assert "UnicodeDecodeError" in answer.text


def test_a_failed_job(connection: Connection, folder: Path):
    job = submit(connection, JOB, options(folder, overrides={"+fail": 1}))
    with pytest.raises(JobFailed, match="ended as FAILED: KeyError: 'first' \\(rank 0, driver\\)"):
        job.result()
    assert job.status().driver_exit_code == 1


def test_stopping_a_job(connection: Connection, folder: Path):
    job = submit(connection, JOB, options(folder, overrides={"+wait": 1}))
    for event in job.follow(lines=True):
        if isinstance(event, Progress):
            break
    assert job.status().status is JobStatus.RUNNING
    assert job.cancel() is True
    assert job.wait(timeout_s=180.0) is JobStatus.STOPPED
    assert job.cancel() is False


def test_a_job_whose_package_is_gone(connection: Connection, folder: Path):
    job = submit(connection, JOB, options(folder, working_dir="gcs://_ray_pkg_0123456789abcdef.zip"))
    with pytest.raises(JobFailed, match="Failed to download runtime_env file package"):
        job.result()


def test_an_id_is_taken(connection: Connection, folder: Path, job: JobHandle):
    assert job.submission_id == "mine-1"
    api = RayClient(connection.ray_url, TOKEN)
    with pytest.raises(InputError, match="submission id 'mine-1' is taken"):
        submit(connection, JOB, options(folder, submission_id="mine-1"))
    with pytest.raises(InputError, match="submission id 'mine-1' is taken"):
        api.submit_job({"entrypoint": "true", "submission_id": "mine-1"})


def test_a_package_is_stored_byte_for_byte_and_once(connection: Connection, folder: Path):
    api, name, content = RayClient(connection.ray_url, TOKEN), "_ray_pkg_one.zip", b"0123456789" * 9
    assert api.package_exists("_ray_pkg_never.zip") is False
    api.put_package(name, [content[:10], content[10:]], len(content))
    assert api.package_exists(name) is True


def test_the_limit_is_the_servers(connection: Connection):
    api = RayClient(connection.ray_url, TOKEN)
    piece = bytes(2**20)
    with pytest.raises(InputError, match=rf"Maximum request body size {PACKAGE_LIMIT_BYTES} exceeded"):
        api.put_package("_ray_pkg_big.zip", (piece for _ in range(101)), 101 * 2**20)


def test_refused_requests(connection: Connection):
    api = RayClient(connection.ray_url, TOKEN)
    for call in (api.get_job, api.stop_job):
        with pytest.raises(InputError, match="knows no job 'no/such job'"):
            call("no/such job")
    with pytest.raises(InputError, match="got an unexpected keyword argument 'surprise'"):
        api.submit_job({"entrypoint": "true", "surprise": 1})


@pytest.mark.parametrize("token", ["wrong", None])
def test_a_wrong_token(connection: Connection, token: str | None):
    api = RayClient(connection.ray_url, token)
    for call in (api.version, api.list_jobs, api.nodes, lambda: api.put_package("_ray_pkg_x.zip", [b""], 0)):
        with pytest.raises(Unauthorized):
            call()
