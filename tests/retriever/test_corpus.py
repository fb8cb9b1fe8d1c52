"""A corpus is mapped: its lines are found without being parsed, and its identity is that of its content."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import InputError
from cloudrl.retriever import corpus as module
from cloudrl.retriever.corpus import offsets_path, open_corpus

LINE = b'{"id": "7", "contents": "\\"T\\"\\ntext \xc3\xa9"}'


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.sets(st.integers(0, 12)),
    st.integers(1, 40),
)
def test_lines_are_found(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], end: bytes, ends: bool, blanks: set[int], piece: int
) -> None:
    path = tmp_path_factory.mktemp("corpus") / "c.jsonl"
    lines = [json.dumps({"contents": "x" * size}).encode() for size in sizes]
    content = b"".join(end * (number in blanks) + line + end for number, line in enumerate(lines))
    path.write_bytes(content if ends else content.removesuffix(end))
    with mock.patch.object(module, "_PIECE_BYTES", piece):
        found = open_corpus(path)
    assert [found.document(row) for row in range(len(found))] == lines
    assert [found.contents(row) for row in range(len(found))] == ["x" * size for size in sizes]
    assert found.identity.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(LINE + b"\n" + LINE + b"\n")
    read: list[int] = []
    first = open_corpus(path, on_progress=lambda done, _: read.append(done))
    assert read == [2 * len(LINE) + 2]
    again = open_corpus(path, on_progress=lambda done, _: read.append(done))
    assert len(read) == 1
    assert again.identity == first.identity
    assert again.document(1) == LINE


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(LINE + b"\n")
    before = open_corpus(path).identity
    path.write_bytes(LINE.replace(b"7", b"8") + b"\n")
    os.utime(path, ns=(1, 1))
    after = open_corpus(path)
    assert after.identity.sha256 != before.sha256
    assert json.loads(after.document(0))["id"] == "8"


@pytest.mark.parametrize("content", [b"", b"{}", b"x" * 600, b"[1]"])
def test_offsets_that_are_none_are_made_anew(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(LINE + b"\n" + LINE)
    offsets_path(path).write_bytes(content)
    assert len(open_corpus(path)) == 2
    assert len(offsets_path(path).read_bytes()) == 512 + 16


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(LINE)
    with mock.patch.object(module.tempfile, "mkstemp", side_effect=PermissionError):
        assert open_corpus(path).document(0) == LINE
    assert [each.name for each in tmp_path.iterdir()] == ["c.jsonl"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no passages"),
        (b"\n\n", "has no passages"),
        (LINE + b"\n\nhello\n", "line 3: no JSON: expected value, column 1"),
        (LINE + b" \r\n" + LINE[:-1] + b"\n" + LINE, "line 2: no JSON: EOF while parsing an object"),
        (LINE + b'\n{"id": "1", "contents": "a" "b"}\n' + LINE, "line 2: no JSON"),
        (LINE + b'\n{"id": NaN, "contents": "a"}\n' + LINE, "line 2: no JSON"),
        (LINE + b'\n{"id": "1", "contents": "\xff"}\n' + LINE, "line 2: no JSON"),
        (LINE + b'\n{"id": "1", "conte', "line 2: no JSON"),
        (b'{"id": "1", "text": "a"}', "line 1: no object with a text under `contents`"),
        (b'{"id": "1", "contents": 3}', "line 1: no object with a text"),
        (b"[1]", "line 1: no object with a text"),
        (gzip.compress(LINE), "is compressed"),
    ],
)
def test_files_that_are_no_corpus(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=said) as raised:
        open_corpus(tmp_path / "c.jsonl")
    assert raised.value.hint


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no corpus"):
        open_corpus(tmp_path / "c.jsonl")
