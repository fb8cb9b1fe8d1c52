"""`cloudrl retriever`: from files to answers, as it is typed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny_encoder import make_encoder
from typed_command import Run

from cloudrl.retriever.client import RetrieverClient

pytestmark = pytest.mark.io

TOKEN = "s3cret"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the command has built from notes."""
    folder = tmp_path_factory.mktemp("retriever")
    make_encoder(folder / "tiny-e5")
    (folder / "notes").mkdir()
    for name, text in {"france": "paris is the capital", "peru": "lima is the capital", "army": "rome army"}.items():
        (folder / "notes" / f"{name}.txt").write_text(text)
    command = ["build", folder / "notes", "--to", folder / "index", "--encoder", folder / "tiny-e5", "--json"]
    said = json.loads(subprocess.check_output([sys.executable, "-m", "cloudrl.cli.main", "retriever", *command]))
    assert (said["passages"], said["dim"], said["folder"]) == (3, 32, str(folder / "index"))
    return folder / "index"


@contextmanager
def starting(index: Path, *options: object, **variables: str) -> Iterator[Callable[[], str]]:
    """A server as it is typed, and what waits for its address; it ends well, and at once, when it is told to."""
    command = [sys.executable, "-m", "cloudrl.cli.main", "retriever", "serve", index, "--port", "0", "--topk", "2"]
    env = {**os.environ, **variables}
    with subprocess.Popen([*map(str, [*command, *options])], stderr=subprocess.PIPE, text=True, env=env) as process:

        def address() -> str:
            assert process.stderr is not None
            said: list[str] = []
            while not said or "ready: " not in said[-1]:
                said.append(process.stderr.readline())
                assert said[-1], said
            return re.findall(r"POST (http://[0-9.:]+)/retrieve", said[-1])[0]

        yield address
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=60)
        assert (process.returncode, "Traceback" in rest) == (0, False)


@pytest.fixture(scope="module")
def url(index: Path) -> Iterator[str]:
    with starting(index, CLOUDRL_RETRIEVER_TOKEN=TOKEN) as address:
        yield address()


@pytest.mark.slow  # as in tests/providers/test_local_search.py, where agents start the servers
def test_two_nodes_that_share_an_index(index: Path, url: str, run: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        peers = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in (one, two))
    (tmp_path / "token").write_text("between nodes")
    options = ["--peers", peers, "--peer-token-file", tmp_path / "token"]
    with starting(index, *options, "--shard", "0") as first:
        variables = {"PEERS": peers, "SHARD": "1", "PEER_TOKEN_FILE": str(tmp_path / "token")}
        with starting(index, **{f"CLOUDRL_RETRIEVER_{name}": value for name, value in variables.items()}) as second:
            queries = ["capital of france", "rome", "army of peru"]
            whole = RetrieverClient(url, TOKEN).retrieve(queries, 3)
            urls = [first(), second()]
            for each in urls:
                assert RetrieverClient(each).retrieve(queries, 3) == whole
                assert set(RetrieverClient(each).health()["nodes"].values()) == {""}
        run("retriever", "ask", "rome", "--url", urls[0]).ended(5, "answers 503", "does not answer")


def test_nodes_that_cannot_share(index: Path, run: Run, tmp_path: Path) -> None:
    serve = ["retriever", "serve", str(index), "--port", "0"]
    run(*serve, "--shard", "0").ended(2, "--peers, --shard and --peer-token-file together", "--peers 10.0.0.1:8100")
    (tmp_path / "token").touch()
    peers = ["--peers", "127.0.0.1:9,127.0.0.1:8", "--shard", "0", "--peer-token-file", str(tmp_path / "token")]
    run(*serve, *peers).ended(2, "is empty", "openssl rand")


def test_asking(url: str, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    done = run("retriever", "ask", "capital of france", "--url", url, "--token-file", str(tmp_path / "token"))
    assert done.out.splitlines()[0].split() == ["score", "id", "passage"]
    assert len(done.out.splitlines()) == 3
    monkeypatch.setenv("CLOUDRL_RETRIEVER_TOKEN", TOKEN)
    asked = run("retriever", "ask", "a", "b", "--topk", "1", "--json", "--url", f"{url}/retrieve")
    [one, two] = json.loads(asked.out)
    assert (one["query"], two["query"]) == ("a", "b")
    assert one["found"][0]["document"].keys() == {"id", "contents"}
    assert RetrieverClient(url, TOKEN).health()["index"]["passages"] == 3


def test_measuring(url: str, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLOUDRL_RETRIEVER_TOKEN", TOKEN)
    (tmp_path / "queries").write_text("one\n\ntwo\n")
    words = ["retriever", "bench", "--url", url, "--clients", "4", "--seconds", "0.3"]
    said = json.loads(run(*words, "--queries", str(tmp_path / "queries"), "--json").out)
    assert said["queries"] >= 4
    assert said["failures"] == {}
    assert 0 < said["p50_ms"] <= said["p99_ms"]
    assert said["server"]["requests"]["answered"] >= said["queries"]
    assert " queries/s with 4 clients, median " in run(*words).out


def test_a_token_that_is_refused(url: str, run: Run, tmp_path: Path) -> None:
    run("retriever", "ask", "a", "--url", url).ended(5, "refuses the token", "--token-file FILE")
    run("retriever", "bench", "--url", url).ended(5, "refuses the token", "--token-file FILE")
    (tmp_path / "empty").touch()
    run("retriever", "ask", "a", "--token-file", str(tmp_path / "empty")).ended(2, "is empty", "openssl rand")
    run("retriever", "ask", "a", "--token-file", str(tmp_path / "none")).ended(2, "No such file")


def test_nobody_answers(run: Run) -> None:
    run("retriever", "ask", "a", "--url", "http://127.0.0.1:9").ended(5, "no retrieval server answers at", "serve DIR")
    run("retriever", "bench", "--url", "http://127.0.0.1:9").ended(5, "no retrieval server answers at")


def test_what_cannot_be_served(index: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERPAPI_API_KEY", raising=False)
    run("retriever", "serve", "--port", "0").ended(2, "there is nothing to serve", "Name a folder")
    run("retriever", "serve", "--engine", "serpapi", "--port", "0").ended(2, "SERPAPI_API_KEY", "--secret")
    run("retriever", "serve", "x", "--engine", "serpapi", "--port", "0").ended(2, "searches the web: no index")
    run("retriever", "serve", str(tmp_path), "--port", "0").ended(
        2, "has no finished index", "cloudrl retriever build --help"
    )
    open_to_all = ("retriever", "serve", str(index), "--port", "0", "--host", "0.0.0.0")
    run(*open_to_all).ended(2, "there is no token", "--token-file FILE")
    run("retriever", "serve", str(index), "--port", "0", "--device", "cuda:9").ended(2, "--device cpu")


def test_what_cannot_be_built(run: Run, tmp_path: Path) -> None:
    run("retriever", "build", str(tmp_path), "--to", str(tmp_path / "to")).ended(2, "no file ends in .jsonl")
    run("retriever", "fetch", "wiki-19", "--to", str(tmp_path / "to")).ended(2, "Known: wiki-18")
