"""`cloudrl-retriever.pyz` as nodes run it: one file, without cloudrl, whose last line says what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cloudrl.render.agent import RETRIEVER_FILE, build_retriever
from cloudrl.retriever.main import Log

pytestmark = pytest.mark.io

PASSAGES = {"Canada": "The capital of Canada is Ottawa.", "France": "The capital of France is Paris."}
Program = Callable[..., subprocess.CompletedProcess[str]]


def write_passages(path: Path, passages: dict[str, str]) -> Path:
    path.write_text("".join(json.dumps({"title": title, "text": text}) + "\n" for title, text in passages.items()))
    return path


@pytest.fixture
def program(tmp_path: Path) -> Program:
    (tmp_path / RETRIEVER_FILE).write_bytes(build_retriever())

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, RETRIEVER_FILE, *words], cwd=tmp_path, env={**os.environ, **env},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    return run


@contextmanager
def serving(folder: Path, place: str, port: int, **env: str) -> Iterator[str]:
    command = [sys.executable, RETRIEVER_FILE, "serve", place, f"--port={port}"]
    with subprocess.Popen(command, cwd=folder, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            lines = iter(server.stdout.readline, "")
            yield next(line for line in lines if line.startswith("ready: ")).split()[1]
        finally:
            server.terminate()


def ask(url: str, query: str) -> str:
    body = json.dumps({"queries": [query], "topk": 1, "return_scores": True}).encode()
    request = urllib.request.Request(f"{url}/retrieve", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["result"][0][0]["document"]["contents"])


def test_it_holds_what_it_needs_and_is_small(program: Program) -> None:
    assert len(build_retriever()) < 200_000
    done = program("build", "--help")
    assert done.returncode == 0
    assert "usage: cloudrl-retriever.pyz build" in done.stdout


def test_it_builds_and_serves_and_builds_again_when_the_passages_have_changed(program: Program, tmp_path: Path) -> None:
    passages = write_passages(tmp_path / "mine.jsonl", PASSAGES)
    words = ("build", "mine.jsonl", "--to=index", "--engine=bm25")
    assert program(*words).returncode == 0
    made = (tmp_path / "index/retriever.json").stat().st_mtime_ns
    assert program(*words).stdout == "index is up to date\n"
    assert (tmp_path / "index/retriever.json").stat().st_mtime_ns == made
    write_passages(passages, {**PASSAGES, "Spain": "The capital of Spain is Madrid."})
    assert program(*words).returncode == 0
    for _ in range(2):
        assert program("build", "index", "--to=linked").returncode == 0
    with serving(tmp_path, "linked", 0) as url:
        assert ask(url, "capital of Spain") == '"Spain"\nThe capital of Spain is Madrid.'
        with urllib.request.urlopen(f"{url}/health", timeout=60) as answer:
            assert json.load(answer)["ready"] is True


def test_the_server_asks_for_the_token_of_its_environment(program: Program, tmp_path: Path) -> None:
    write_passages(tmp_path / "mine.jsonl", PASSAGES)
    assert program("build", "mine.jsonl", "--to=index", "--engine=bm25").returncode == 0
    with serving(tmp_path, "index", 0, CLOUDRL_RETRIEVER_TOKEN="s3cret") as url:
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            ask(url, "capital of France")
        refused.value.close()
        with urllib.request.urlopen(f"{url}/health", timeout=60) as answer:
            assert json.load(answer) == {"ready": True}, "which is what the agent asks"


def test_what_was_sent_along_is_not_built_again_in_another_folder(program: Program, tmp_path: Path) -> None:
    for folder, said in (("first", ""), ("second", "index is up to date\n")):
        (tmp_path / folder).mkdir()
        passages = write_passages(tmp_path / folder / "mine.jsonl", PASSAGES)
        done = program("build", str(passages), "--to=index", "--engine=bm25", CLOUDRL_FILES=str(passages.parent))
        assert (done.returncode, done.stdout) == (0, said)


@pytest.mark.parametrize(
    ("words", "code", "last"),
    [
        (["build", "none.jsonl", "--to=index"], 2, "error: there is no none.jsonl"),
        (["build", "mine.jsonl", "--to=full"], 2, "error: full has other files in it -> Name a new folder: --to DIR"),
        (["serve", "index", "--port=0"], 2, "error: there is no index"),
        (["fetch", "wiki-18", "--to=index"], 75, "cannot be downloaded from http://127.0.0.1:1: "),
    ],
)
def test_the_last_line_says_what_is_wrong(
    program: Program, tmp_path: Path, words: list[str], code: int, last: str
) -> None:
    write_passages(tmp_path / "mine.jsonl", PASSAGES)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/of").touch()
    engine = ["--engine=bm25"] if words[0] == "build" else []
    done = program(*words, *engine, HF_ENDPOINT="http://127.0.0.1:1")
    assert (done.returncode, done.stderr) == (code, "")
    assert last in done.stdout.splitlines()[-1]


def test_a_full_disk_is_said_in_one_line(program: Program, tmp_path: Path) -> None:
    write_passages(tmp_path / "mine.jsonl", PASSAGES)
    build = f"exec {sys.executable} {RETRIEVER_FILE} build mine.jsonl --to index --engine bm25"
    limited = f"ulimit -f 0; trap '' XFSZ; {build}"
    done = subprocess.run(
        ["bash", "-c", limited], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (1, "error: [Errno 27] File too large\n")


def test_progress_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    log = Log(clock=lambda: now[0])
    for now[0] in (10.0, 30.0, 40.0, 60.0):
        log.progress("downloading part_aa", int(now[0]) * 10**9, 100 * 10**9)
    assert capsys.readouterr().out.splitlines() == [
        "downloading part_aa: 30 % of 100 GB", "downloading part_aa: 60 % of 100 GB",
    ]  # fmt: skip
