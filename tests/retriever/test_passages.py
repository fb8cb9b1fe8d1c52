"""Files of all kinds become the lines of a corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloudrl.errors import InputError
from cloudrl.retriever.passages import find_files, read_passages


def read(*places: Path, words: int = 100) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read_passages(find_files(places), words)]


def test_passages_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [b'{"id":"x", "contents": "\\"T\\"\\nt\\u00e9xt", "more": [1]}', b'{"contents": "b","id": 7}']
    path.write_bytes(b"\xef\xbb\xbf" + lines[0] + b"\r\n\n" + lines[1])
    assert list(read_passages([path])) == lines


def test_other_rows_are_put_into_the_form(tmp_path: Path) -> None:
    rows = [{"title": "T", "text": "é"}, {"text": "b", "id": 7}, {"contents": "c"}, {"text": " "}, {"text": "d"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pq.write_table(pa.table({"title": ["T", None], "text": ["e", "f"]}), tmp_path / "b.parquet")
    assert read(tmp_path) == [
        {"id": "0", "contents": '"T"\né'},
        {"id": "7", "contents": "b"},
        {"id": "1", "contents": "c"},
        {"id": "2", "contents": "d"},
        {"id": "3", "contents": '"T"\ne'},
        {"id": "4", "contents": "f"},
    ]


def test_texts_are_cut_into_passages(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "guide.md").write_text("intro\n\n## Getting  started ##\n\none two\nthree four five\n")
    (tmp_path / "notes.txt").write_text("# six\nseven")
    (tmp_path / "empty.txt").touch()
    (tmp_path / ".hidden.txt").write_text("no")
    (tmp_path / "picture.png").write_bytes(b"\xff")
    assert read(tmp_path, words=4) == [
        {"id": "notes.txt-0", "contents": '"notes"\n# six seven'},
        {"id": "sub/guide.md-0", "contents": '"Getting  started"\nintro ## Getting started'},
        {"id": "sub/guide.md-1", "contents": '"Getting  started"\n## one two three'},
        {"id": "sub/guide.md-2", "contents": '"Getting  started"\nfour five'},
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b"{}\n", "line 1: no text under `contents` or `text`, only "),
        ("a.jsonl", b'{"id": 1, "contents": 2}', "line 1: no text under"),
        ("a.jsonl", b'{"text": "a"}\n[1]', "line 2: a row should be an object"),
        ("a.jsonl", b'{"text": "a"}\n{"text', "line 2: not JSON"),
        ("a.jsonl", b'{"text": "\xff"}', "line 1: not JSON"),
        ("a.jsonl", b'{"id": 1, "contents": "a"}\n{"id": NaN, "contents": "b"}', "line 2: no JSON"),
        ("a.parquet", b"hello", "cannot be read as parquet"),
        ("a.txt", b"\xff", "is not UTF-8"),
        ("a.csv", b"a", "does not end in .jsonl, .parquet, .txt, .md"),
    ],
)
def test_files_that_cannot_be_read(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said) as raised:
        read(tmp_path / name)
    assert str(tmp_path / name) in raised.value.message


def test_no_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file ends in"):
        find_files([tmp_path])
    with pytest.raises(InputError, match="there is no"):
        find_files([tmp_path / "missing"])
