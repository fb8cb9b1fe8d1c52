"""Files of vectors: faiss's flat index and NumPy's .npy, mapped from the disk as they are."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from cloudrl.errors import InputError

Floats = npt.NDArray[np.float32]

# faiss 1.15, impl/index_write.cpp: fourcc, d, ntotal, two unused fields, is_trained, metric type, number of floats
_FAISS = struct.Struct("<4siqqqBiQ")
_FLAT_IP, _INNER_PRODUCT, _UNUSED = b"IxFI", 0, 1 << 20
_NPY = b"\x93NUMPY"
_PIECES, _PIECE_BYTES = 64, 4096


@dataclass(frozen=True)
class VectorFile:
    """`count` vectors of `dim` float32 numbers in a file, row after row from `offset_bytes` on."""

    path: Path
    count: int
    dim: int
    offset_bytes: int

    @property
    def size_bytes(self) -> int:
        """Of the vectors alone."""
        return self.count * self.dim * 4

    def rows(self, mode: Any = "r") -> Floats:
        """The vectors, mapped; for "r+" as `mode` they can be written. They may be larger than the memory."""
        return np.memmap(self.path, np.float32, mode, self.offset_bytes, (self.count, self.dim))


def is_vector_file(path: Path) -> bool:
    """Whether `open_vectors` knows the format."""
    with path.open("rb") as file:
        return file.read(6).startswith((_FLAT_IP, _NPY))


def open_vectors(path: Path) -> VectorFile:
    """Read the header.

    Raises:
        InputError: the file has another format, or is shorter than its header says.
    """
    with path.open("rb") as file:
        head = file.read(_FAISS.size)
        if head.startswith(_FLAT_IP):
            header = _faiss_header(path, head)
        elif head.startswith(_NPY):
            header = _npy_header(path, file)
        else:
            raise InputError(
                f"{path} is neither a flat index of faiss (inner product) nor a .npy file",
                hint="For other indexes of faiss: --engine faiss",
            )
    size, wanted = path.stat().st_size, header.offset_bytes + header.size_bytes
    if size != wanted:
        raise InputError(
            f"{path} has {size:,} bytes, but its header says {header.count:,} vectors of {header.dim}, which take "
            f"{wanted:,}: it is {'truncated' if size < wanted else 'too long'}",
            hint="Copy, download or build it again",
        )
    return header


def _faiss_header(path: Path, head: bytes) -> VectorFile:
    if len(head) < _FAISS.size:
        raise InputError(f"{path} ends in its header: it is truncated", hint="Copy, download or build it again")
    _, dim, count, _, _, _, metric, floats = _FAISS.unpack(head)
    if metric != _INNER_PRODUCT or dim < 1 or count < 1 or floats != dim * count:
        raise InputError(f"{path} has a header that contradicts itself: {count} vectors of {dim}, {floats} numbers")
    return VectorFile(path, count, dim, _FAISS.size)


def _npy_header(path: Path, file: BinaryIO) -> VectorFile:
    file.seek(0)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(file)
    except ValueError as error:
        raise InputError(f"{path} cannot be read as .npy: {error}") from error
    if len(shape) != 2 or 0 in shape or is_fortran or dtype != np.dtype("<f4"):
        raise InputError(f"{path} holds {dtype} of shape {shape}; vectors are float32 in rows, at least one")
    return VectorFile(path, *shape, offset_bytes=file.tell())


def create_vectors(path: Path, count: int, dim: int) -> VectorFile:
    """A new file in faiss's format with room for all vectors, all zero; takes no room on the disk yet."""
    with path.open("wb") as file:
        file.write(_FAISS.pack(_FLAT_IP, dim, count, _UNUSED, _UNUSED, 1, _INNER_PRODUCT, count * dim))
        file.truncate(_FAISS.size + count * dim * 4)
    return VectorFile(path, count, dim, _FAISS.size)


def fingerprint(path: Path) -> str:
    """Tells files apart without reading tens of GB: a hash of the size and of 64 pieces spread over the file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = path.stat().st_size
        digest.update(str(size).encode())
        last = max(0, size - _PIECE_BYTES)
        for start in sorted({last * piece // (_PIECES - 1) for piece in range(_PIECES)}):
            file.seek(start)
            digest.update(file.read(_PIECE_BYTES))
    return digest.hexdigest()[:16]
