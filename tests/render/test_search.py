"""Ready-made search servers: what of them is sent, word for word."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloudrl.errors import InputError, SpecError
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.services import Artifact, Service
from cloudrl.providers.dstack.plan import fleet_for
from cloudrl.providers.dstack.task import to_dstack
from cloudrl.providers.slurm.script import to_slurm
from cloudrl.render.agent import AGENT_FILE, RETRIEVER_FILE, build_agent, build_retriever
from cloudrl.render.search import files_of, refuse_other_files, with_search, write_files
from cloudrl.spec import Cluster

PYZ = 'exec python3 "$CLOUDRL_FILES/cloudrl-retriever.pyz"'
BM25 = "python3 -c 'import bm25s' || python3 -m pip install bm25s==0.3.16"


def cluster(*services: Any, **fields: Any) -> Cluster:
    return Cluster.load({"name": "search", "nodes": 2, "gpu": "80GB:8", "services": list(services), **fields})


def test_wiki_18_is_fetched_on_every_node_and_served_when_it_is_there() -> None:
    rendered = with_search(cluster("search:wiki-18"))
    assert rendered.artifacts == (Artifact("search-wiki-18", f"{PYZ} fetch wiki-18 --to ."),)
    serve = f'{PYZ} serve "$CLOUDRL_ARTIFACTS/search-wiki-18" --port "$PORT"'
    assert rendered.services == (Service(8000, serve, "search", ("search-wiki-18",), "/health", 5),)
    assert (rendered.setup, rendered.files) == ((), {})


def test_a_file_of_this_machine_goes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my").mkdir()
    Path("my/passages.jsonl").write_text("{}\n")
    rendered = with_search(cluster("search:./my/passages.jsonl", setup=["a"]))
    build = f'{PYZ} build "$CLOUDRL_FILES"/passages.jsonl --to . --engine bm25'
    assert rendered.artifacts == (Artifact("search-passages-bm25-a8d50eff", build),)
    assert (rendered.setup, rendered.files) == ((BM25,), {"passages.jsonl": b"{}\n"})


def test_jobs_share_an_index_of_the_same_passages_only(tmp_path: Path) -> None:
    """On Slurm they share the data folder: another's build would replace an index under a server that runs."""

    def index(place: object) -> str:
        rendered = with_search(cluster(f"search:{place}"))
        [artifact], [service] = rendered.artifacts, rendered.services
        assert service.needs == (artifact.name,)
        assert f'"$CLOUDRL_ARTIFACTS/{artifact.name}"' in service.command
        return artifact.name

    def sent(folder: str, text: str) -> str:
        path = tmp_path / folder / "passages.jsonl"
        path.parent.mkdir()
        path.write_text(text)
        return f"~/{folder}/passages.jsonl"

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path))
        assert index(sent("a", "x")) == index(sent("b", "x")) != index(sent("c", "y"))
    assert index("/data/a/passages.jsonl") == index("/data/a/passages.jsonl") != index("/data/b/passages.jsonl")


def test_so_does_one_that_comes_with_cloudrl() -> None:
    declared = cluster("search:cloudrl://data/capitals.jsonl")
    rendered = with_search(declared)
    build = f'{PYZ} build "$CLOUDRL_FILES"/capitals.jsonl --to . --engine bm25'
    assert rendered.artifacts == (Artifact("search-capitals-bm25-3005514b", build),)
    assert files_of(declared)["capitals.jsonl"].count(b"; capital: ") == 64


def test_vectors_on_a_gpu_of_a_file_of_the_nodes_at_another_port() -> None:
    search = {"search": "/data/my docs.jsonl", "engine": "flat", "device": "cuda:0", "port": 8123}
    rendered = with_search(cluster(search))
    build = f"{PYZ} build '/data/my docs.jsonl' --to . --engine flat --device cuda:0"
    assert rendered.artifacts == (Artifact("search-my-docs-flat-4c0aba51", build),)
    [service] = rendered.services
    assert (service.port, service.command.endswith(' --port "$PORT" --device cuda:0')) == (8123, True)
    assert (rendered.setup, rendered.files) == ((), {})


def test_nodes_that_share_an_index_are_told_of_each_other() -> None:
    [service] = with_search(cluster({"search": "wiki-18", "shards": "nodes"})).services
    sharing = '--peers "$PEERS" --shard "$RANK" --peer-token-file "$CLOUDRL_PEER_TOKEN_FILE"'
    assert service.command == f'{PYZ} serve "$CLOUDRL_ARTIFACTS/search-wiki-18" --port "$PORT" {sharing}'
    assert (service.port, service.peer_port) == (8000, 8100)
    text = to_dstack(cluster({"search": "wiki-18", "shards": "nodes"}))
    words = shlex.split(yaml.safe_load(text)["commands"][-1].replace("\\\n", ""))
    assert AgentOptions.from_argv(words[words.index("run") + 1 :]).services == (service,)


def test_the_web_needs_a_key_and_no_index() -> None:
    with pytest.raises(SpecError, match="search:serpapi needs a key") as failed:
        cluster("search:serpapi")
    assert failed.value.hint == "secrets: [SERPAPI_API_KEY]"
    rendered = with_search(cluster("search:serpapi", secrets=["SERPAPI_API_KEY"]))
    assert rendered.artifacts == ()
    assert rendered.services == (Service(8000, f'{PYZ} serve serpapi --port "$PORT"', "search", (), "/health", 5),)


def test_hnsw_installs_faiss() -> None:
    assert with_search(cluster("search:wiki-18-hnsw")).setup == (
        "python3 -c 'import faiss' || python3 -m pip install faiss-cpu==1.15.1",
    )


def test_what_is_installed_is_what_was_tested(repository: Path) -> None:
    pinned = (repository / "constraints.txt").read_text().splitlines()
    for service in ("search:/x.jsonl", "search:wiki-18-hnsw"):
        [command] = with_search(cluster(service)).setup
        assert command.split()[-1] in pinned


def test_the_task_of_dstack_names_the_files_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text("{}\n")
    declared = cluster("search:./mine.jsonl", "8001:judge", setup=["pip install x"])
    text = to_dstack(declared)
    task = yaml.safe_load(text)
    assert task["files"] == [f"{each}:/opt/cloudrl/{each}" for each in (AGENT_FILE, RETRIEVER_FILE, "mine.jsonl")]
    assert "with cloudrl-node.pyz and cloudrl-retriever.pyz and mine.jsonl beside this file" in text
    words = shlex.split(task["commands"][-1].replace("\\\n", ""))
    options = AgentOptions.from_argv(words[words.index("run") + 1 :])
    rendered = with_search(declared)
    assert (options.services, options.artifacts) == (rendered.services, rendered.artifacts)
    assert options.setup[-2:] == (BM25, "pip install x")


def test_without_a_search_server_nothing_more_is_sent() -> None:
    assert yaml.safe_load(to_dstack(cluster("8000:a")))["files"] == ["cloudrl-node.pyz:/opt/cloudrl/cloudrl-node.pyz"]
    assert "write_files() { :; }" in to_slurm(cluster("8000:a", slurm=SLURM))


SLURM = {"container": "docker", "volumes": ["/shared:/checkpoints"]}


def test_the_script_for_slurm_has_the_files_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text('{"title": "a", "text": "b"}\n')
    script = to_slurm(cluster("search:./mine.jsonl", slurm=SLURM))
    assert (
        "\n# cloudrl-retriever.pyz, mine.jsonl\nwrite_files() { # FOLDER\n  base64 -d <<'FILE' | gzip -d >\"$1\"/"
        in script
    )
    [options] = re.findall(r"^options=\((.*?)^\)", script, re.DOTALL | re.MULTILINE)
    agent = AgentOptions.from_argv(shlex.split(options))
    assert [each.name for each in agent.artifacts] == ["search-mine-bm25-09a05e9b"]


def test_files_are_written_beside_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text("{}\n")
    declared, folder = cluster("search:./mine.jsonl"), tmp_path / "there"
    for _ in range(2):
        refuse_other_files(declared, folder)
        write_files(declared, folder)
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == {
        AGENT_FILE: build_agent(), RETRIEVER_FILE: build_retriever(), "mine.jsonl": b"{}\n",
    }  # fmt: skip
    Path("mine.jsonl").write_text("{} \n")
    with pytest.raises(InputError, match="is there and has another content"):
        refuse_other_files(declared, folder)
    write_files(declared, folder)
    assert (folder / "mine.jsonl").read_text() == "{} \n"


def test_a_larger_file_of_rows_goes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = b"".join(b'{"text": "%07d"}\n' % number * 40 for number in range(7_000))
    Path("mine.jsonl").write_bytes(rows)
    declared = cluster("search:./mine.jsonl")
    names = ["mine.00.jsonl", "mine.01.jsonl", "mine.02.jsonl"]
    [artifact] = with_search(declared).artifacts
    places = " ".join(f'"$CLOUDRL_FILES"/{name}' for name in names)
    assert artifact.command == f"{PYZ} build {places} --to . --engine bm25"
    assert yaml.safe_load(to_dstack(declared))["files"][2:] == [f"{name}:/opt/cloudrl/{name}" for name in names]
    pieces = [files_of(declared)[name] for name in names]
    assert b"".join(pieces) == rows
    assert all(len(each) <= 2_000_000 and each.endswith(b"}\n") for each in pieces)
    with pytest.raises(SpecError, match=r"mine\.02\.jsonl: .* bytes are too many for a script of Slurm") as failed:
        to_slurm(cluster("search:./mine.jsonl", slurm=SLURM))
    assert "search:/shared/passages.jsonl" in str(failed.value.hint)

    Path("mine.jsonl").write_bytes(rows + b"x" * 2_000_001)
    with pytest.raises(InputError, match=r"search:\./mine\.jsonl has a row of more than 2,000,000 bytes"):
        files_of(declared)


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"search:\./mine\.jsonl cannot be read: No such file"):
        files_of(cluster("search:./mine.jsonl"))
    for name, most in (("mine.jsonl", 32_000_000), ("mine.txt", 2_000_000)):
        with Path(name).open("wb") as file:
            file.truncate(most + 1)
        with pytest.raises(InputError, match=f"{name} has {most + 1:,} bytes; up to {most:,} of .* travel") as failed:
            files_of(cluster(f"search:./{name}"))
        assert "search:/data/" in str(failed.value.hint)
    Path("a.md").mkdir()
    with pytest.raises(InputError, match=r"search:\./a\.md cannot be read: Is a directory"):
        files_of(cluster("search:./a.md"))


@pytest.mark.parametrize("name", ["mine.json", "mine.jsonl.gz", "mine"])
def test_a_file_that_no_node_could_read_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=rf"search:\./{name} does not end in \.jsonl, \.parquet, \.txt, \.md"):
        to_dstack(cluster(f"search:./{name}"))


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ("search:wiki-19", "there is no corpus 'wiki-19'; did you mean 'wiki-18'"),
        ("search:mine.jsonl", "there is no corpus 'mine.jsonl'"),
        ("search:./a b.jsonl", "letters, digits, dots, dashes and _ in the name of a file that is sent"),
        ({"search": "wiki-18", "engine": "bm25"}, "wiki-18 has its own engine"),
        ({"search": "/x", "engine": "lucene"}, "'lucene' is not 'bm25' or 'flat'"),
        ({"search": "/x", "device": "tpu"}, "'tpu' is not a device"),
        ({"search": "/x", "port": 8265}, "port 8265 belongs to Ray's dashboard"),
        ({"search": "/x", "shards": "nodes"}, "search:/x is searched by bm25, nodes can share vectors"),
        ({"search": "wiki-18-hnsw", "shards": "nodes"}, "is searched by faiss, nodes can share vectors"),
        ({"search": "serpapi", "shards": "nodes"}, "is searched by serpapi, nodes can share vectors"),
        ({"search": "/x", "shards": 2}, "2 is not 'nodes'"),
        ({"search": "wiki-18", "shards": "nodes", "port": 8165}, "port 8265 belongs to Ray's dashboard"),
    ],
)
def test_what_is_refused(service: Any, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        cluster(service)


def test_two_search_servers_would_have_one_name() -> None:
    with pytest.raises(SpecError, match="two services are called 'search'"):
        cluster("search:wiki-18", {"search": "/x", "port": 8001})
    with pytest.raises(SpecError, match="two services have port 8100"):
        cluster({"search": "wiki-18", "shards": "nodes"}, "8100:judge")


def test_disk_and_memory_have_room_for_the_index() -> None:
    for services, disk, memory in (([], 500, None), (["search:wiki-18"], 600, "80GB..")):
        made = cluster(*services, models=["Qwen/Qwen2.5-7B-Instruct"])
        resources = yaml.safe_load(to_dstack(made))["resources"]
        assert (resources.get("disk"), resources.get("memory")) == (None, memory)
        assert fleet_for(made).disk == f"{disk}GB.."
    shared = yaml.safe_load(to_dstack(cluster({"search": "wiki-18", "shards": "nodes"}, nodes=4)))["resources"]
    assert shared["memory"] == "32GB.."
