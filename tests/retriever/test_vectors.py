"""Files of vectors: what faiss and NumPy write, and what neither has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cloudrl.errors import InputError
from cloudrl.retriever.vectors import create_vectors, fingerprint, is_vector_file, open_vectors

ROWS = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32)


def written(path: Path, rows: np.ndarray = ROWS) -> Path:
    file = create_vectors(path, *rows.shape)
    mapped = file.rows("r+")
    mapped[:] = rows
    mapped.flush()
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    found = open_vectors(written(tmp_path / "flat.index"))
    assert (found.count, found.dim, found.offset_bytes, found.size_bytes) == (50, 7, 45, 1400)
    assert np.array_equal(found.rows(), ROWS)


def test_it_is_what_faiss_writes_and_reads(tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexFlatIP(7)
    index.add(ROWS)
    faiss.write_index(index, str(tmp_path / "theirs.index"))
    assert written(tmp_path / "ours.index").read_bytes() == (tmp_path / "theirs.index").read_bytes()
    assert np.array_equal(open_vectors(tmp_path / "theirs.index").rows(), ROWS)


def test_an_index_that_is_larger_than_the_memory(tmp_path: Path) -> None:
    """As `--from-disk` serves it; the file is sparse."""
    memory = Path("/proc/meminfo").read_text().splitlines()
    total = sum(int(line.split()[1]) * 1024 for line in memory if line.startswith(("MemTotal:", "SwapTotal:")))
    rows = create_vectors(tmp_path / "flat.index", total // (4 * 1024) + 1, 1024).rows()
    assert rows.nbytes > total
    assert not rows[-1].any()
    assert not rows.flags.writeable


def test_numpy_files(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    assert is_vector_file(tmp_path / "rows.npy")
    assert np.array_equal(open_vectors(tmp_path / "rows.npy").rows(), ROWS)


@pytest.mark.parametrize(
    "rows", [ROWS.astype(np.float64), ROWS.T, ROWS[0], ROWS[:0], np.array([[None]])], ids=lambda rows: str(rows.shape)
)
def test_arrays_that_are_no_vectors(rows: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", rows)
    with pytest.raises(InputError, match="vectors are float32 in rows, at least one"):
        open_vectors(tmp_path / "rows.npy")


@pytest.mark.parametrize(
    ("size", "said"), [(1444, "it is truncated"), (1446, "it is too long"), (45, "it is truncated")]
)
def test_a_file_of_another_size_than_its_header_says(size: int, said: str, tmp_path: Path) -> None:
    path = written(tmp_path / "flat.index")
    content = path.read_bytes()
    path.write_bytes((content + b"0")[:size])
    with pytest.raises(InputError, match=said) as raised:
        open_vectors(path)
    assert f"{size:,} bytes" in raised.value.message
    assert "1,445" in raised.value.message


@pytest.mark.parametrize("content", [b"", b"IxFI", b"\x93NUMPY", b"IxFI" + bytes(41), b"hello" * 20])
def test_no_such_file_at_all(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.index").write_bytes(content)
    with pytest.raises(InputError):
        open_vectors(tmp_path / "x.index")


def test_fingerprints_differ_where_files_do(tmp_path: Path) -> None:
    path = written(tmp_path / "flat.index")
    before = fingerprint(path)
    assert fingerprint(written(tmp_path / "same.index")) == before
    content = bytearray(path.read_bytes())
    for position in (0, 45, 800, len(content) - 1):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        assert fingerprint(path) != before
    path.write_bytes(content + b"0")
    assert fingerprint(path) != before
