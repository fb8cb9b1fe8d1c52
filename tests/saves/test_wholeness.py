"""Which files of a checkpoint count as whole, by what is read of their ends."""

import json
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_step import FIXTURE, smallest_zip

from cloudrl.saves.wholeness import (
    CUT,
    EMPTY,
    NOT_JSON,
    UNREADABLE,
    Evidence,
    Inspector,
    LookedAt,
    describe,
    read_parts,
)

SHARD = "model_world_size_2_rank_0.pt"


def look(folder: Path, name: str, content: bytes, inspector: Inspector | None = None) -> Evidence:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return (inspector or Inspector()).look(str(path), name, path.stat())


def safetensors(data: bytes = b"12345678", **header: object) -> bytes:
    text = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, **header}).encode()
    return struct.pack("<Q", len(text)) + text + data


SHARD_BYTES = (FIXTURE / SHARD).read_bytes()
PICKLE = b"\x80\x02X\x0c\x00\x00\x00__0_0.distcpX\x0d\x00\x00\x00__12_1.distcp."


@pytest.mark.parametrize(
    ("name", "content", "damage"),
    [
        (SHARD, SHARD_BYTES, ""),
        (SHARD, b"", EMPTY),
        (SHARD, SHARD_BYTES[: len(SHARD_BYTES) // 2], CUT),
        (SHARD, SHARD_BYTES[:-1], CUT),
        (SHARD, SHARD_BYTES[:4096] + bytes(len(SHARD_BYTES) - 4096), CUT),
        (SHARD, bytes(4096) + SHARD_BYTES[4096:], CUT),
        (SHARD, SHARD_BYTES + bytes(4096), CUT),
        (SHARD, b"x", CUT),
        ("optim_world_size_2_rank_1.pt", b"", EMPTY),
        ("extra_state_world_size_2_rank_1.pt", smallest_zip()[:-30], CUT),
        ("data.pt", b"", EMPTY),
        ("data_3.pt", smallest_zip()[:-30], CUT),
        ("data.pt", b"not a zip file, as torch has written them before 1.6", ""),
        ("huggingface/config.json", b"{}", ""),
        ("huggingface/config.json", b"", EMPTY),
        ("huggingface/config.json", b'{"architectures": [', NOT_JSON),
        ("huggingface/config.json", bytes(2000), NOT_JSON),
        ("huggingface/config.json", b"null", NOT_JSON),
        ("huggingface/config.json", b"[]", NOT_JSON),
        ("huggingface/config.json", b"\xff\xfe{", NOT_JSON),
        ("huggingface/config.json", b"\xef\xbb\xbf{}", ""),
        ("huggingface/config.json", b"[" * 100_000, NOT_JSON),
        ("huggingface/tokenizer.json", b'{"model": "' + b"x" * (1 << 20) + b'"}\n', ""),
        ("huggingface/tokenizer.json", b'{"model": "' + b"x" * (1 << 20), NOT_JSON),
        ("fsdp_config.json", b"", EMPTY),
        ("lora_train_meta.json", b"{", NOT_JSON),
        ("model/huggingface/model-00001-of-00002.safetensors", safetensors(), ""),
        ("huggingface/model.safetensors", safetensors(b"1234567"), CUT),
        ("huggingface/model.safetensors", safetensors(b"123456789"), CUT),
        ("huggingface/model.safetensors", safetensors(__metadata__={"format": "pt"}), ""),
        ("huggingface/model.safetensors", safetensors(b="1")[:40], CUT),
        ("huggingface/model.safetensors", bytes(4096), CUT),
        ("huggingface/model.safetensors", b"1234", CUT),
        ("huggingface/model.safetensors", struct.pack("<Q", 1 << 62) + bytes(100), CUT),
        ("huggingface/model.safetensors.index.json", b"{", NOT_JSON),
        ("huggingface/pytorch_model.bin", smallest_zip()[:-1], CUT),
        ("lora_adapter/adapter_model.safetensors", b"", EMPTY),
        ("model/dist_ckpt/common.pt", smallest_zip()[:-1], CUT),
        ("model/dist_ckpt/metadata.json", b"", EMPTY),
        ("model/dist_ckpt/__0_1.distcp", smallest_zip() * 2, ""),
        ("model/dist_ckpt/__0_1.distcp", (smallest_zip() * 2)[:-9], CUT),
        ("optimizer/dist_ckpt/__0_1.distcp", b"short", CUT),
        ("model/dist_ckpt/.metadata", PICKLE[:-1], CUT),
        ("model/dist_ckpt/.metadata", bytes(100), CUT),
        ("model/dist_ckpt/.metadata", b"", EMPTY),
    ],
)  # fmt: skip
def test_a_file(tmp_path: Path, name: str, content: bytes, damage: str) -> None:
    assert look(tmp_path, name, content) == Evidence(damage)


@pytest.mark.parametrize(
    "name", ["notes.json", "config.json", "backup/model_world_size_2_rank_0.pt", "mine/huggingface/config.json", "a.pt"]
)
def test_what_the_user_keeps_beside_it_is_not_judged(tmp_path: Path, name: str) -> None:
    assert look(tmp_path, name, b"") == Evidence()


def test_parts_from_a_node_are_numbers() -> None:
    assert read_parts("0_0 12_1 ../../x \x1b[2J 1_x") == ("0_0", "12_1")
    assert read_parts({"0_0": 1}) == read_parts(None) == ()


def test_metadata_names_its_parts(tmp_path: Path) -> None:
    assert look(tmp_path, "dist_ckpt/.metadata", PICKLE) == Evidence("", ("0_0", "12_1"))


@given(cut=st.integers(0, len(SHARD_BYTES) - 1))
def test_a_shard_that_is_cut_anywhere(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    assert look(tmp_path_factory.getbasetemp(), SHARD, SHARD_BYTES[:cut]).damage == (CUT if cut else EMPTY)


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, opened: Callable[[], int]) -> None:
    inspector = Inspector()
    for _ in range(3):
        path, before = tmp_path / SHARD, opened()
        path.write_bytes(SHARD_BYTES)
        date = path.stat()
        assert inspector.look(str(path), SHARD, path.stat()).damage == ""
        assert inspector.look(str(path), SHARD, path.stat()).damage == ""
        assert opened() == before + 1
        path.write_bytes(SHARD_BYTES[:-100] + bytes(100))  # of the same size and date
        os.utime(path, ns=(date.st_atime_ns, date.st_mtime_ns))
        assert inspector.look(str(path), SHARD, path.stat()).damage == CUT


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a file was opened by its descriptor."""
    calls = []
    real = os.open

    def count(*args: object, **named: object) -> int:
        calls.append(args)
        return real(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", count)
    return lambda: len(calls)


def test_what_cannot_be_read_is_a_doubt(tmp_path: Path) -> None:
    path = tmp_path / SHARD
    path.write_bytes(SHARD_BYTES)
    info = path.stat()
    path.rename(tmp_path / "elsewhere")
    assert Inspector().look(str(path), SHARD, info) == Evidence(), "a job has pruned it just now"
    path.symlink_to(tmp_path / "elsewhere")
    assert Inspector().look(str(path), SHARD, info) == Evidence(UNREADABLE), "no link where none are followed"
    assert Inspector(follow_links=True).look(str(path), SHARD, info) == Evidence()
    path.unlink()
    os.mkfifo(path)
    assert Inspector().look(str(path), SHARD, info) == Evidence(), "it does not wait for a writer"


@pytest.mark.parametrize(
    ("damage", "size", "recorded", "text"),
    [
        ("", 100, None, ""),
        ("", 100, 100, ""),
        ("", 0, 0, ""),
        (EMPTY, 0, None, "is empty"),
        ("", 0, 100, "is empty"),
        (CUT, 13_400_000, 26_700_000, "is cut: 13.4 of 26.7 MB"),
        ("", 900_000, 26_700_000, "is cut: 900 kB of 26.7 MB"),
        ("", 26_669_485, 26_669_486, "is cut: 26669485 of 26669486 bytes"),
        ("", 30_000_000, 20_000_000, "has 30.0 MB, and had 20.0 MB when its save was recorded"),
        (CUT, 13_400_000, None, "is cut: its end is missing after 13.4 MB"),
        (NOT_JSON, 10, None, "is not a JSON object"),
        (UNREADABLE, 10, None, "cannot be read"),
        ("a code of a later release", 10, None, "is damaged"),
    ],
)
def test_how_it_reads(damage: str, size: int, recorded: int | None, text: str) -> None:
    assert describe(damage, size, recorded) == text


@pytest.mark.parametrize("each_s", [0.0, 0.01])
def test_many_files_on_a_fast_volume_and_on_a_slow_one(tmp_path: Path, each_s: float) -> None:
    names = [f"model_world_size_200_rank_{rank}.pt" for rank in range(200)]
    files = []
    for rank, name in enumerate(names):
        path = tmp_path / name
        path.write_bytes(smallest_zip() if rank % 3 else b"")
        files.append(LookedAt(str(path), name, path.stat()))
    passed = iter(range(1000))
    threads = set()

    class Noting(Inspector):
        def look(self, *file: Any) -> Evidence:
            threads.add(threading.get_ident())
            return super().look(*file)

    inspector = Noting(clock=lambda: next(passed) * each_s * 32)
    assert [each.damage for each in inspector.look_into(files)] == ["" if rank % 3 else EMPTY for rank in range(200)]
    assert (threads == {threading.get_ident()}) == (each_s == 0)
    assert inspector.look_into([]) == []
