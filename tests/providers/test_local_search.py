"""A ready-made search server on each node of this machine: real agents and servers, a stand-in for Ray."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from node_harness import processes_with, until
from tiny_encoder import make_encoder, write_corpus

from cloudrl.errors import ClusterFailed, InputError
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.retriever.build import BuildOptions, build
from cloudrl.retriever.opening import Source, open_retriever
from cloudrl.transport import inspect_cluster

if TYPE_CHECKING:
    from conftest import Home

pytestmark = pytest.mark.agents
provider = LocalProvider()
ENV = {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each.endswith("site-packages"))}
"""The packages that verl's images have."""


@pytest.fixture(autouse=True)
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"title": "Canada", "text": "The capital is Ottawa."}, {"title": "France", "text": "The capital is Paris."}]
    Path("corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "corpus.jsonl"


def _ask(port: int, query: str) -> str:
    body = json.dumps({"queries": [query], "topk": 1, "return_scores": True}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/retrieve", body)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["result"][0][0]["document"]["contents"])


def _ids(port: int, queries: list[str], topk: int) -> list[list[str]]:
    body = json.dumps({"queries": queries, "topk": topk, "return_scores": True}).encode()
    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{port}/retrieve", body), timeout=60
    ) as answer:
        return [[each["document"]["id"] for each in found] for found in json.load(answer)["result"]]


def _health(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as answer:
        return dict(json.load(answer))


def test_each_node_has_its_own_server_which_is_started_again(home: Home, corpus: Path) -> None:
    plan = home.plan(nodes=2, services=["search:./corpus.jsonl"], env=ENV)
    assert f"build {corpus} --to . --engine bm25" in plan.render()
    connection = provider.up(plan, timeout_s=120)
    assert inspect_cluster(connection).services == ("search",)
    first, second = plan.state.service_ports
    assert [_ask(port, "capital of Canada") for port in (first, second)] == ['"Canada"\nThe capital is Ottawa.'] * 2
    assert _ask(second, "France") == '"France"\nThe capital is Paris.'
    assert [_health(port)["queries"] for port in (first, second)] == [1, 2]

    # jobs find the server of their own node
    for rank, port in enumerate(plan.state.service_ports):
        found = processes_with("CLOUDRL_SERVICE_SEARCH", f"127.0.0.1:{port}")
        assert [
            line for line in found.values() if "fake_ray.py" in line and f"{plan.state.ray_temp_dir}/{rank}" in line
        ]

    os.kill(_health(second)["pid"], signal.SIGKILL)
    until(lambda: provider.status("one").nodes[1].services["search"] == "started again, 1 of 5", "it is noticed")
    until(lambda: provider.status("one").nodes[1].services["search"] == "ready", "it is ready again")
    assert _ask(second, "France") == '"France"\nThe capital is Paris.'
    assert provider.status("one").is_ready
    provider.down("one")


def test_nodes_share_an_index_and_answer_as_one_that_has_it_all(home: Home, tmp_path: Path) -> None:
    """The seed's set-up where no node has the memory for all vectors."""
    make_encoder(tmp_path / "tiny-e5")
    write_corpus(tmp_path / "passages.jsonl", 41)
    options = BuildOptions((tmp_path / "passages.jsonl",), encoder=str(tmp_path / "tiny-e5"), prefixes="e5")
    build(options, tmp_path / "index")
    queries = ["capital of france", "the river", "rome 7", "history of the army"]
    whole = open_retriever(Source(tmp_path / "index")).search(queries, 7)

    shared = {"search": str(tmp_path / "index"), "engine": "flat", "shards": "nodes"}
    plan = home.plan(nodes=2, services=[shared], env=ENV)
    connection = provider.up(plan, timeout_s=240)
    first, first_peer, second, second_peer = plan.state.service_ports
    for port, peer in ((first, second_peer), (second, first_peer)):
        assert _ids(port, queries, 7) == [[json.loads(each.document)["id"] for each in found] for found in whole]
        assert _health(port)["nodes"] == {f"{plan.state.ip}:{peer}": ""}
    parts = [_health(port)["shard"] for port in (first, second)]
    assert parts == [{"number": 0, "of": 2, "passages": 20}, {"number": 1, "of": 2, "passages": 21}]
    for port in (first_peer, second_peer):
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(f"http://{plan.state.ip}:{port}/shard", timeout=60)
        refused.value.close()

    # a node that is lost is not answered for, and comes back
    os.kill(_health(second)["pid"], signal.SIGKILL)
    until(lambda: provider.status("one").nodes[1].services["search"] == "started again, 1 of 5", "it is noticed")
    with pytest.raises(urllib.error.HTTPError, match="503") as lost:
        _ids(first, queries, 7)
    lost.value.close()
    until(lambda: provider.status("one").nodes[1].services["search"] == "ready", "it is ready again", timeout_s=90)
    assert _ids(first, queries, 7) == _ids(second, queries, 7)
    assert inspect_cluster(connection).services == ("search",)
    provider.down("one")


def test_passages_that_cannot_be_read_are_named(home: Home, corpus: Path) -> None:
    corpus.write_text("no json\n")
    plan = home.plan(nodes=2, services=["search:./corpus.jsonl"], env=ENV)
    with pytest.raises(
        ClusterFailed, match=r"artifact: artifact search-corpus-bm25-[0-9a-f]{8}: error: .*corpus\.jsonl"
    ):
        provider.up(plan, timeout_s=120)


def test_passages_that_are_not_there_are_refused_before_anything_starts(home: Home) -> None:
    with pytest.raises(InputError, match=r"there is no \./none\.jsonl"):
        home.plan(services=["search:./none.jsonl"])
