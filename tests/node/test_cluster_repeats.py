"""What a retry may cure is retried, what comes back ends the run, and a crash of the agent is judged like all else."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from node_harness import Maker, Nodes, Scenarios, make_image, until

pytestmark = pytest.mark.agents

scenario = Scenarios()

PLAIN_PATH = "/usr/bin:/bin"
"""Without the `ray` of whoever runs the tests."""


@scenario
def a_run_that_was_ready_in_between_is_not_ended(nodes: Maker) -> None:
    cluster = nodes(2)
    for rank_1, codes in (("2", [1, 1]), ("8", [143, 1]), ("2", [1, 1]), ("2", [0, 0])):
        cluster.start_one(0)
        cluster.start_one(1, f"--cpus-per-node={rank_1}")
        if rank_1 == "8":
            cluster.ready()
            until(
                lambda: "preflight" not in next(cluster.checkpoints.glob(".cloudrl/attempts/*")).read_text(),
                "what has passed is forgotten",
            )
            cluster[0].process.terminate()
        assert cluster.exit_codes() == codes


@scenario
def a_ray_that_comes_up_in_no_attempt_ends_the_run_at_the_fifth(nodes: Maker) -> None:
    """Rank 0 is on another machine each time; rank 1 remembers, and what it remembers travels."""
    cluster = nodes(2)
    (cluster.control / "hold-1").touch()
    for number in range(1, 6):
        cluster.start_one(0, f"--checkpoints={cluster.folder}/spare-{number}")
        cluster.start_one(1, "--ray-timeout-s=1")
        reason = "rank 1, ray: Ray is not up 1 s after `ray start`"
        assert cluster.failed(int(number < 5)) == reason + ("" if number < 5 else "; 5 attempts ended like this")


@scenario
def a_node_whose_agent_never_runs_ends_the_run_after_five_starts(nodes: Maker) -> None:
    """Rank 0 is killed each time, as dstack ends what is left of an attempt."""
    cluster = nodes(2)

    def counted(times: int) -> bool:
        records = (cluster.checkpoints / ".cloudrl" / "starts").glob("*.json")
        return any(json.loads(path.read_text())["times"] == times for path in records)

    for times in range(1, 6):
        rank_0 = cluster.start_one(0)
        until(lambda times=times: counted(times), "it is counted")  # type: ignore[misc]
        os.kill(rank_0.pid, signal.SIGKILL)
        rank_0.exit_code()
    cluster.start_one(0)
    assert cluster.failed(0).startswith(
        "rank 0, join: 5 starts in a row ended before the agent of rank 1 ran: an image"
    )


@scenario
def a_start_to_which_all_ranks_come_is_not_counted(nodes: Maker) -> None:
    cluster = nodes(2).start().ready()
    assert not list((cluster.checkpoints / ".cloudrl" / "starts").glob("*"))


# -- threads that fetch ---------------------------------------------------------------------------------------------


@scenario
def a_thread_of_the_head_that_meets_something_else(nodes: Maker) -> None:
    """Here its own log cannot be opened. Before, this was a line on the screen, and READY without the files."""
    cluster = nodes(1)
    folder = cluster.folder / "node-0" / "model-tiny-qwen2.log"
    folder.mkdir(parents=True)
    reason = f"rank 0, model: IsADirectoryError: [Errno 21] Is a directory: '{folder}'"
    assert cluster.start("--model=tiny-qwen2").failed() == reason
    assert "READY" not in cluster[0].text()
    assert "Traceback (most recent call last):" in cluster[0].text()


def _with_data(cluster: Nodes) -> None:
    """Rank 0 has prepared its data, and rank 1 is not there yet."""
    cluster.start_one(0, "--data=addition")
    until(lambda: cluster[0].phase() and cluster[0].status()["facts"]["data"], "the data")


@scenario
def a_copy_that_breaks_is_tried_once_more(nodes: Maker) -> None:
    cluster = nodes(2)
    _with_data(cluster)
    file = cluster[0].run_dir / "data" / "addition" / "train.parquet"
    good = file.read_bytes()
    file.write_bytes(good[:-1])
    cluster.start_one(1, "--data=addition")
    until(lambda: "one more try" in cluster[1].text(), "the first try has failed")
    file.write_bytes(good)
    cluster.ready()
    assert (cluster[1].run_dir / "data" / "addition" / "train.parquet").read_bytes() == good


@scenario
def a_copy_that_breaks_twice_may_be_retried_with_the_run(nodes: Maker) -> None:
    cluster = nodes(2)
    _with_data(cluster)
    (cluster[0].run_dir / "data" / "addition" / "train.parquet").write_bytes(b"damaged")
    cluster.start_one(1, "--data=addition")
    reason = cluster.failed()
    assert reason.startswith("rank 1, pull: addition/train.parquet could not be copied from rank 0: ")
    assert "its SHA-256 is not the announced one" in reason
    assert not any(node.failure().permanent for node in cluster.started.values())


@scenario
def a_copy_for_which_there_is_no_place_comes_back(nodes: Maker) -> None:
    cluster = nodes(2)
    _with_data(cluster)
    (cluster.folder / "node-1" / "data").mkdir(parents=True)
    (cluster.folder / "node-1" / "data" / "addition").touch()
    cluster.start_one(1, "--data=addition")
    reason = cluster.failed()
    assert reason.startswith("rank 1, data: ")
    assert "File exists" in reason
    assert cluster[0].failure().permanent is True


HUB = """
import os
def snapshot_download(name, **more):
    counter = os.environ["HUB_COUNTER"]
    with open(counter, "a") as file:
        file.write("x")
    raise {"refused": ConnectionRefusedError, "timed out": TimeoutError}[os.environ["HUB_SAYS"]](os.environ["HUB_SAYS"])
"""


@scenario
def a_hub_that_cannot_be_reached(nodes: Maker) -> None:
    """Each attempt tries twice. Two attempts that end alike end the run, two that do not end nothing."""
    cluster = nodes(1)
    image = make_image(cluster.folder / "with-hub")
    image.have("huggingface_hub", "1.0.0")
    image.module("huggingface_hub", HUB)
    counter = cluster.folder / "counter"
    names = {"refused": "ConnectionRefusedError", "timed out": "TimeoutError"}
    for tries, (says, code) in enumerate([("refused", 1), ("timed out", 1), ("timed out", 0)], start=1):
        cluster.start_one(
            0, "--model=owner/name", image=image, HUB_COUNTER=str(counter), HUB_SAYS=says, HF_HOME="/nowhere"
        )
        assert cluster.failed(code) == f"rank 0, model: model owner/name: {names[says]}: {says}"
        assert cluster[0].outcome()["failure"]["transient"] is True
        assert len(counter.read_text()) == 2 * tries


# -- the agent and its machine --------------------------------------------------------------------------------------


def _comes_back(cluster: Nodes, reason: str, *words: str, **how: Any) -> None:
    """A failure of preflight, which is permanent: the second one would end the run."""
    cluster.start_one(0, *words, **how)
    assert cluster.failed().startswith(f"rank 0, preflight: {reason}")
    assert cluster[0].failure().permanent
    assert "Traceback" not in cluster[0].text()


@scenario
def an_image_without_the_program_ray(nodes: Maker) -> None:
    """The package is there, and what pip puts beside Python is not."""
    cluster = nodes(1)
    bare = make_image(cluster.folder / "bare")
    (bare.python.parent / "ray").unlink()
    _comes_back(cluster, "there is no program `ray` on this node", image=bare, PATH=PLAIN_PATH)


@scenario
def a_program_ray_that_cannot_be_started(nodes: Maker) -> None:
    cluster = nodes(1)
    broken = make_image(cluster.folder / "broken")
    ray = broken.python.parent / "ray"
    ray.write_text("#!/no/such/python\n")
    reason = f"`{ray}` cannot be started: [Errno 2] No such file or directory: "
    _comes_back(cluster, reason, image=broken, PATH=PLAIN_PATH)


@scenario
def a_driver_that_is_broken(nodes: Maker) -> None:
    cluster = nodes(1)
    driver = cluster.folder / "driver" / "nvidia-smi"
    driver.parent.mkdir()
    driver.write_text("#!/bin/sh\necho 'Driver/library version mismatch' >&2\nexit 18\n")
    driver.chmod(0o755)
    reason = "0 GPUs found, 1 declared: nvidia-smi ended with status 18: Driver/library version mismatch"
    _comes_back(cluster, reason, "--device=gpu", "--cpus-per-node=8", PATH=f"{driver.parent}:{PLAIN_PATH}")


@scenario
def a_folder_of_its_own_that_cannot_be_written(nodes: Maker) -> None:
    cluster = nodes(1)
    (cluster.folder / "node-0" / "ray-token").mkdir(parents=True)
    _comes_back(cluster, "this node's own folders: [Errno 21]")


@scenario
def a_mistake_of_the_agent_itself(nodes: Maker) -> None:
    """An invalid port is not expected anywhere; on the last rank."""
    cluster = nodes(2)
    for code in (1, 0):
        cluster.start_one(0)
        cluster.start_one(1, "--agent-port=99999")
        assert cluster.failed(code).startswith("rank 1, agent: the agent itself failed: OverflowError: ")
        for node in cluster.started.values():
            assert "Traceback (most recent call last):" in node.text()


@scenario
def logs_that_cannot_be_kept_leave_nothing_else_behind(nodes: Maker) -> None:
    cluster = nodes(1).start().ready()
    (cluster.checkpoints / ".cloudrl").touch()  # where a folder is to be made
    cluster[0].process.terminate()
    assert cluster[0].exit_code() == 143
    assert not cluster[0].temp_dir.exists()
    assert "warning: logs cannot be kept in" in cluster[0].text()
    assert "Traceback" not in cluster[0].text()


@scenario
def orphans_that_end_are_collected(nodes: Maker) -> None:
    """Below the agent everything that loses its parent becomes its child; each would keep its number for ever."""
    cluster = nodes(1)
    gate = cluster.folder / "gate"
    cluster.start(f"--setup=(while ! test -e {gate}; do sleep 0.05; done) & echo $!").ready()
    orphan = int((cluster[0].run_dir / "setup.log").read_text())
    assert orphan in cluster.processes()
    gate.touch()
    until(lambda: orphan not in cluster.processes(), "it has ended")
    until(lambda: not Path("/proc", str(orphan)).exists(), "and was collected", timeout_s=5)
    assert cluster[0].phase() == "ready"


test_scenario = scenario.test()
