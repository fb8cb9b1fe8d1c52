"""Agents come up: READY with one, two and three nodes, with data and models on each."""

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from node_harness import IP, KEY, MARK, Image, Nodes, make_image, marked, processes_with, until

from cloudrl.protocol.tokens import derive
from cloudrl.saves.survey import cluster_inventory

pytestmark = pytest.mark.agents


def _old_python() -> str | None:
    """A Python 3.9, the oldest that the agent is for."""
    kept = sorted(Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob("versions/3.9.*/bin/python3.9"))
    return str(kept[-1]) if kept else shutil.which("python3.9")


@pytest.mark.skipif(_old_python() is None, reason="no Python 3.9 on this machine")
def test_ready_under_the_oldest_python(nodes: Callable[..., Nodes], tmp_path: Path) -> None:
    cluster = nodes(2)
    old = make_image(tmp_path / "old", str(_old_python()))
    for rank in (0, 1):
        cluster.start_one(rank, "--data=addition", image=old)
    cluster.ready()
    assert cluster[0].status()["nodes"][0]["python_version"].startswith("3.9.")
    assert "Traceback" not in cluster[0].text() + cluster[1].text()


# -- one cluster with all that can be asked for -------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, image: Image) -> Iterator[Nodes]:
    """Three nodes; rank 1 shares its folder of models with rank 0, rank 2 does not."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    asked = ["--setup=echo this is rank $CLOUDRL_NODE_RANK", "--setup=echo done", "--import-check=json,re"]
    with marked("start"):
        made = Nodes(folder, image, 3, run_id="run-7")
        for rank in range(3):
            hub = {"HF_HOME": str(folder / f"hub-{rank // 2}")}
            made.start_one(rank, *asked, "--data=addition", f"--model={folder / 'model'}", **hub)
        try:
            yield made.ready()
        finally:
            made.end()


def test_status(cluster: Nodes) -> None:
    status = cluster[0].status()
    facts = status["facts"]
    of_the_cluster = {
        "name": "test", "id": "run-7", "provider": "local", "nodes": 3, "gpu_nodes": 3, "gpus_per_node": 1,
        "cpus_per_node": 8, "device": "cpu", "ray_version": "2.60.0", "checkpoint_dir": str(cluster.checkpoints),
        "shared_checkpoints": True,
    }  # fmt: skip
    assert facts.items() >= of_the_cluster.items()
    assert (status["phase"], status["failure"]) == ("ready", None)
    assert status["ready_at"] > status["started_at"]
    # it tells a client that the dashboard it reached is this cluster's
    assert facts["ray_session"].startswith("session_")
    assert facts["models"] == {str(cluster.folder / "model"): str(cluster.folder / "model")}
    assert set(facts["data"]["addition"]) == {"train", "test"}
    assert {"CLOUDRL_RUN_ID", "HF_HOME"} <= set(facts["variables"])


def test_every_node_is_there(cluster: Nodes) -> None:
    rows: list[dict[str, Any]] = cluster[0].status()["nodes"]
    assert [row["phase"] for row in rows] == ["ready"] * 3
    assert [row["rank"] for row in rows] == [0, 1, 2]
    assert [row["agent_port"] for row in rows] == cluster.agent_ports
    assert all(row["ray_up"] and row["fetched"] and row["seen_s_ago"] < 5 for row in rows)
    steps = {"setup", "preflight", "ray", "fetch", "files", "barrier"}
    until(lambda: all(set(n["seconds"]) == steps for n in cluster[0].status()["nodes"]), "the last heartbeats")


def test_one_ready_line_in_all(cluster: Nodes) -> None:
    [line] = [line for line in cluster.texts().splitlines() if "READY" in line]
    assert "rank 0] READY: 3 nodes in " in line
    assert f"dashboard on 127.0.0.1:{cluster.dashboard_port}" in line


def test_every_node_has_the_same_data(cluster: Nodes) -> None:
    for file in ("train.parquet", "test.parquet"):
        first, *others = [(node.run_dir / "data" / "addition" / file).read_bytes() for node in cluster.started.values()]
        assert len(first) > 1000
        assert others == [first, first]
    assert not list(cluster.folder.glob("node-*/data/addition/*.part"))


def test_only_rank_0_prepares_and_only_one_fetches_into_a_shared_folder(cluster: Nodes) -> None:
    made = {
        node.rank: sorted(each.name.split("-")[0] for each in node.run_dir.glob("*-*.log"))
        for node in cluster.started.values()
    }
    assert made == {0: ["data", "model"], 1: [], 2: ["model"]}


def test_only_the_markers_of_a_shared_checkpoint_folder_stay(cluster: Nodes) -> None:
    left = list(cluster.folder.rglob("*cloudrl-marker*"))
    assert {path.parent for path in left} == {cluster.checkpoints}
    assert {path.name.rpartition("-")[2] for path in left} == {"0", "1", "2"}
    facts = cluster[0].status()["facts"]
    assert [facts[name] for name in ("shared_checkpoints", "places_controllers", "places_training")] == [True] * 3


def test_the_set_up_ran_on_every_node_before_ray(cluster: Nodes) -> None:
    for node in cluster.started.values():
        assert (node.run_dir / "setup.log").read_text() == f"this is rank {node.rank}\ndone\n"
        assert node.text().count("set-up: ") == 2


def test_what_ray_was_asked(cluster: Nodes) -> None:
    asked = [json.loads((cluster.control / f"starts-{rank}").read_text()) for rank in range(3)]
    assert [each["node-ip-address"] for each in asked] == [IP] * 3
    assert asked[0]["dashboard-host"] == "127.0.0.1"
    assert [each.get("address") for each in asked] == [None, *[f"{IP}:{cluster.gcs_port}"] * 2]
    assert [each["num-gpus"] for each in asked] == ["1"] * 3


def test_secrets_show_nowhere(cluster: Nodes) -> None:
    tokens = derive(KEY)
    for node in cluster.started.values():
        kept = {"ray-token": tokens.ray, "peer-token": tokens.peers}
        for name, token in kept.items():
            assert stat.S_IMODE((node.run_dir / name).stat().st_mode) == 0o600
            assert (node.run_dir / name).read_text() == token
        shown = [path for path in node.run_dir.rglob("*") if path.is_file() and path.name not in kept]
        for text in (path.read_bytes() for path in shown):
            assert not any(token.encode() in text for token in astuple(tokens))
    lines = " ".join(processes_with(MARK, "start").values())
    assert "fake_ray.py" in lines
    assert not any(token in lines for token in astuple(tokens))


def test_ray_runs_in_the_nodes_own_folder(cluster: Nodes) -> None:
    rays = [pid for pid, line in processes_with(MARK, "start").items() if "fake_ray.py" in line]
    folders = {Path("/proc", str(pid), "cwd").resolve() for pid in rays}
    assert folders == {node.run_dir for node in cluster.started.values()}


def test_logs_of_jobs_come_from_the_head(cluster: Nodes) -> None:
    assert cluster[0].agent.job_log("job1", 7) == (b"step 2\n", 14)
    assert cluster[0].agent.job_log("job2") is None


def test_checkpoints_come_through_the_head(cluster: Nodes) -> None:
    role = cluster.checkpoints / "run" / "global_step_3" / "actor"
    role.mkdir(parents=True)
    (role / "model_world_size_1_rank_0.pt").write_bytes(b"12345")
    for rank in range(3):
        [run] = cluster[0].agent.inventory(rank)["locations"][0]["runs"]
        [file] = run["steps"][0]["roles"][0]["files"]
        assert (run["run"], file["path"], file["size_bytes"]) == ("run", "model_world_size_1_rank_0.pt", 5)
    places = [cluster[0].agent.inventory(rank, without=())["locations"][0] for rank in range(3)]
    assert ["runs" in place for place in places] == [True, False, False], "the nodes share the folder: one lists it"
    assert [place["same_as"]["rank"] for place in places[1:]] == [0, 0]
    found = cluster_inventory(cluster[0].agent.status().nodes, cluster[0].agent.inventory)
    (location,) = found.checkpoints[0].locations
    assert (location.ranks, found.silent) == ((0, 1, 2), ())


def test_the_agent_listens_on_its_own_address_and_loopback_only(nodes: Callable[..., Nodes]) -> None:
    alone = nodes(1)
    alone.start_one(0, CLOUDRL_NODE_IP="127.0.0.9", CLOUDRL_HEAD_IP="127.0.0.9")
    alone.ready()
    port = f":{alone.agent_ports[0]:04X}"
    listening = [
        words[1]
        for file in ("tcp", "tcp6")
        for words in map(str.split, Path("/proc/net", file).read_text().splitlines()[1:])
        if words[3] == "0A" and words[1].endswith(port)
    ]
    assert sorted(listening) == [f"0100007F{port}", f"0900007F{port}"]


def test_what_preflight_warns_of_is_in_the_report(nodes: Callable[..., Nodes], tmp_path: Path) -> None:
    old = make_image(tmp_path / "old")
    old.have("ray", "2.51.0")
    cluster = nodes(1)
    cluster.start_one(0, image=old)
    [warning] = cluster.ready()[0].agent.status().nodes[0].warnings
    assert warning.text.startswith("Ray 2.51.0 has no token authentication")
    assert f"{warning}\n" in cluster[0].text()
