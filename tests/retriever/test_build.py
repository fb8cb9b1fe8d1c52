"""Builds: the same result whether or not they were killed, and what may stand in their way."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from patience import SLOWER

from cloudrl.errors import InputError
from cloudrl.retriever.build import BuildOptions, build
from cloudrl.retriever.encoder import Encoder
from cloudrl.retriever.lock import contents, locked
from cloudrl.retriever.record import Record, read_record
from cloudrl.retriever.vectors import open_vectors

pytestmark = pytest.mark.io

SLOW_BUILD = """
import sys, time
from pathlib import Path
from cloudrl.retriever import build
build._CHUNK, build._SAVE_EVERY_S = 8, 0.0
def tell(what, done, total):
    print(what, flush=True)
    time.sleep(0.2 * (what == "encoding" and "slow" in sys.argv))
options = build.BuildOptions((Path(sys.argv[1]),), encoder=sys.argv[2])
build.build(options, Path(sys.argv[3]), on_progress=tell, say=lambda text: print(text, flush=True))
"""


def files(folder: Path) -> dict[str, bytes]:
    """All but what holds the time of a file."""
    return {path.name: path.read_bytes() for path in contents(folder) if not path.name.endswith(".offsets")}


def run_build(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SLOW_BUILD, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_build(corpus_path: Path, encoder_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(encoder_path.parent)
    record = build(BuildOptions((corpus_path,), encoder=encoder_path.name), tmp_path / "to")
    assert record.encoder == str(encoder_path)
    assert sorted(files(tmp_path / "to")) == ["corpus.jsonl", "flat.index", "retriever.json"]
    assert (tmp_path / "to/corpus.jsonl").read_bytes() == corpus_path.read_bytes()
    assert read_record(tmp_path / "to") == record
    assert (record.engine, record.passages, record.dim, record.prefixes) == ("flat", 40, 32, "e5")
    texts = [json.loads(line)["contents"] for line in corpus_path.read_text().splitlines()]
    made = Encoder(str(encoder_path)).encode_passages(texts)
    assert np.allclose(open_vectors(tmp_path / "to/flat.index").rows(), made, atol=1e-6)


def test_a_build_that_is_killed_goes_on(
    corpus_path: Path, encoder_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_build(corpus_path, encoder_path, tmp_path / "killed", "slow") as process:
        assert process.stdout is not None
        said = list(itertools.islice(filter("encoding\n".__eq__, process.stdout), 3))
        assert len(said) == 3
        os.kill(process.pid, signal.SIGKILL)
    assert not (tmp_path / "killed/flat.index").exists()
    assert read_record(tmp_path / "killed") is None
    with run_build(corpus_path, encoder_path, tmp_path / "killed") as process:
        told = process.communicate(timeout=60 * SLOWER)[0]
    rows = json.loads((tmp_path / "killed/retriever.json").read_text())
    assert process.returncode == 0
    assert "going on after" in told
    assert "writing the corpus" not in told
    monkeypatch.setattr("cloudrl.retriever.build._CHUNK", 8)  # as in the other process: what is encoded together counts
    build(BuildOptions((corpus_path,), encoder=str(encoder_path)), tmp_path / "whole")
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    assert rows["passages"] == 40


def test_what_is_complete_is_not_built_again(corpus_path: Path, encoder_path: Path, tmp_path: Path) -> None:
    options, said = BuildOptions((corpus_path,), encoder=str(encoder_path)), []
    first = build(options, tmp_path / "to")
    assert build(options, tmp_path / "to", say=said.append) == first
    assert said == [f"{tmp_path / 'to'} is up to date"]


def test_a_folder_with_something_else_in_it(corpus_path: Path, encoder_path: Path, tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "notes").touch()
    with pytest.raises(InputError, match="has other files in it"):
        build(BuildOptions((corpus_path,), encoder=str(encoder_path)), tmp_path / "to")
    (tmp_path / "to" / "notes").unlink()
    build(BuildOptions((corpus_path,), encoder=str(encoder_path)), tmp_path / "to")
    with pytest.raises(InputError, match="has other files in it"):
        build(BuildOptions((corpus_path,), encoder=str(encoder_path), prefixes="none"), tmp_path / "to")


def test_an_unfinished_build_of_other_options(corpus_path: Path, encoder_path: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be loaded"):  # found before anything is begun
        build(BuildOptions((corpus_path,), encoder=str(tmp_path / "missing")), tmp_path / "to")
    (tmp_path / "bad.jsonl").write_text("bad")
    with pytest.raises(InputError, match="not JSON"):
        build(BuildOptions((tmp_path / "bad.jsonl",), encoder=str(encoder_path)), tmp_path / "to")
    with pytest.raises(InputError, match="unfinished build of other sources or options") as raised:
        build(BuildOptions((corpus_path,), encoder=str(encoder_path)), tmp_path / "to")
    assert raised.value.hint.endswith(f"rm -r {tmp_path / 'to'}")


def test_two_builds_into_one_folder(corpus_path: Path, tmp_path: Path) -> None:
    options, folder, said = BuildOptions((corpus_path,), engine="bm25"), tmp_path / "to", queue.SimpleQueue[str]()
    record = build(options, tmp_path / "done")
    with ThreadPoolExecutor() as threads:
        with locked(folder):
            second = threads.submit(build, options, folder, replace=True, say=said.put)
            assert said.get(timeout=60) == f"another build or fetch writes into {folder}; waiting for its end"
            shutil.copytree(tmp_path / "done", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock"))
        assert second.result(timeout=60) == record
    assert said.get_nowait() == f"{folder} is up to date"


def test_what_was_downloaded_is_not_replaced(corpus_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "wiki-18"
    folder.mkdir()
    for name in ("e5_Flat.index", "wiki-18.jsonl"):
        (folder / name).write_text("80 GB")
    Record("flat", "e5_Flat.index", "f", "wiki-18.jsonl", "s", 1, 768, "e5", "e5", "someone/index").write(folder)
    before = sorted(folder.iterdir())
    with pytest.raises(InputError, match="wiki-18 has other files in it"):
        build(BuildOptions((corpus_path,), engine="bm25"), folder, replace=True)
    assert sorted(folder.iterdir()) == [folder / ".lock", *before]


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Lustre, unless it is mounted with `flock`."""

    def flock(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    said = list[str]()
    with locked(tmp_path / "to", said.append):
        assert said == [
            f"the file system of {tmp_path / 'to'} has no locks: only one build or fetch may write there at a time"
        ]


def test_engines_and_sources_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no engine 'x'"):
        build(BuildOptions((tmp_path,), engine="x"), tmp_path / "to")
    with pytest.raises(InputError, match="there is no"):
        build(BuildOptions((tmp_path / "missing",)), tmp_path / "to")
    assert not (tmp_path / "to").exists()
