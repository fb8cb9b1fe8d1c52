"""A checkpoint whose shards are on the disks of two hosts, on the way home. Commands as a user types them."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dstack_hosts.runs import until
from dstack_hosts.user import User
from spread_checkpoint import spread

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.sources import LocalSource

pytestmark = [pytest.mark.dstack, pytest.mark.ray]

WRITE = Path(__file__).parents[1] / "make_sharded.py"
CUT_S = 5.0
# Stops in the middle until the cable is out; what comes then has to wait for it.
MERGE = """
import sys, time, pathlib, cloudrl
cluster, target, is_cut = sys.argv[1:]
def on_progress(done_bytes, total_bytes):
    if done_bytes > total_bytes // 3 and not pathlib.Path(is_cut).exists():
        print("a third", flush=True)
        while not pathlib.Path(is_cut).exists():
            time.sleep(0.1)
cloudrl.attach(cluster, on="dstack").checkpoints().select(6, run="home").merge(target, on_progress=on_progress)
print("merged", flush=True)
"""


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def expected(user: User, first: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, bytes]]:
    """What a merge of one folder gives; the same step is on the disks of the cluster, a rank on each."""
    whole = tmp_path_factory.mktemp("whole") / "home"
    subprocess.run([sys.executable, WRITE, whole, "2", "6"], check=True, timeout=120)
    folders = [host.path("/var/lib/cloudrl/checkpoints") for host in user.hosts_of(first)]
    spread(whole, folders, driver=1)
    Checkpoints(LocalSource(whole)).latest().merge(whole.with_name("model"))
    yield content(whole.with_name("model"))
    for folder in folders:
        shutil.rmtree(folder / "home")


def test_through_the_tunnel(user: User, first: str, expected: dict[str, bytes], tmp_path: Path) -> None:
    listed = user.types("cloudrl", "checkpoints", "list", "-c", first).stdout
    [line] = [line for line in listed.splitlines() if line.startswith("home")]
    assert "complete" in line
    user.types("cloudrl", "checkpoints", "verify", "6", "-c", first, "--name", "home")
    target = user.lab.home / "through"
    user.types("cloudrl", "checkpoints", "merge", "6", "-c", first, "--name", "home", "--to", str(target))
    assert content(target) == expected


def test_on_the_head(user: User, first: str, expected: dict[str, bytes]) -> None:
    words = ("--name", "home", "--to", "/checkpoints/merged", "--on-head")
    user.types("cloudrl", "checkpoints", "merge", "6", "-c", first, *words)
    target = user.hosts_of(first)[0].path("/var/lib/cloudrl/checkpoints/merged")
    assert content(target) == expected
    shutil.rmtree(target)


def test_a_node_that_is_cut_off_in_the_middle(user: User, first: str, expected: dict[str, bytes]) -> None:
    target, is_cut = user.lab.home / "cut", user.lab.home / "is-cut"
    worker = user.hosts_of(first)[1]
    client = user.lab.popen("python3", "-c", MERGE, first, str(target), str(is_cut))
    until(lambda: "a third" in client.output or client.returncode is not None, 90, lambda: client.output)
    worker.cut()
    is_cut.touch()
    time.sleep(CUT_S)  # of the real clock: it is the network that is tested
    assert not target.exists()
    worker.restore()
    done = client.finish(90)
    assert "merged" in done.stdout
    assert content(target) == expected
