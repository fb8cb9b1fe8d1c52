"""Adds what an adapter has learned to the elements of a tensor, piece by piece: W + scale x (B @ A), in float32.

A piece needs the rows of B that are its own, and A. Of A one expert's is in memory, of B a window: some of its rows, or
those of some experts. peft has the experts of B interleaved, so a window of experts is cut out of all rows, and B is
read once for each. With the 128 experts of Qwen3-30B-A3B and rank 32 that adds a fifth to what is read.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from cloudrl.shards.dtypes import Caster, DType
from cloudrl.shards.plan import Output, Update
from cloudrl.shards.torch_zip import damaged

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

_READ_ELEMENTS = 1 << 18
_WINDOW_ELEMENTS = 1 << 21
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


class Window(NamedTuple):
    """A part of the second half of an adapter, by its first expert and the first row of each of its experts."""

    update: Update
    expert: int
    row: int


class Updates:
    """The halves of the adapters at work; threads share it.

    Args:
        at_once: How many windows are kept: one for each thread.
        window_elements: The most that a window may have, unless a row of one expert has more.
    """

    def __init__(self, at_once: int, window_elements: int = _WINDOW_ELEMENTS) -> None:
        _load_numpy()
        self._at_once, self._most = at_once, window_elements
        self._lock = threading.Lock()
        self._windows: OrderedDict[Window, Floats] = OrderedDict()
        self._checked: set[tuple[int, str]] = set()

    def second_half(self, update: Update, expert: int, row: int) -> tuple[Window, Floats]:
        """The window of B that has this row of this expert, as [experts, rows, rank].

        Raises:
            CheckpointError: It cannot be read, or is damaged.
        """
        experts = max(1, self._most // (update.rows * update.rank))
        rows = max(1, min(update.rows, self._most // update.rank))
        window = Window(update, expert // experts * experts, row // rows * rows)
        with self._lock:
            if window not in self._windows:
                self._check(update.a)
                self._check(update.b)
                while len(self._windows) >= self._at_once:
                    self._windows.popitem(last=False)
                self._windows[window] = _read_window(window, experts, rows)
            self._windows.move_to_end(window)
            return window, self._windows[window]

    def _check(self, half: Output) -> None:
        """The CRC-32 of its storages, each once."""
        for piece in half.pieces:
            key = (id(piece.shard), piece.view.storage)
            if key in self._checked:
                continue
            self._checked.add(key)
            source, member = piece.shard.archive.source, piece.shard.member(piece.view)
            if piece.shard.archive.has_crcs and (crc := source.crc32(member.offset, member.size_bytes)) != member.crc32:
                raise damaged(source, f"data/{piece.view.storage}", member.crc32, crc)


def _load_numpy() -> None:
    """With one thread to multiply with: at these sizes more of them wait for each other, several times as long.

    OpenBLAS reads the variable when it is loaded, so it is as before for all that comes later.
    """
    if "numpy" not in sys.modules and _BLAS_THREADS not in os.environ:
        os.environ[_BLAS_THREADS] = "1"
        try:
            import numpy as np  # noqa: F401
        finally:
            del os.environ[_BLAS_THREADS]


class Adder:
    """What one thread adds with, and the half of the expert that it is at."""

    def __init__(self, updates: Updates) -> None:
        self._updates = updates
        self._key: tuple[Update, int] | None = None
        self._a: Floats

    def add(self, update: Update, first: int, values: Floats) -> None:
        """Add to elements of a tensor, `first` and those after it.

        Raises:
            CheckpointError: The adapter cannot be read, or is damaged.
        """
        import numpy as np

        columns = update.columns
        row, end_row = first // columns, -(-(first + values.size) // columns)
        while row < end_row:
            expert, top = divmod(row, update.rows)
            window, b = self._updates.second_half(update, expert, top)
            bottom = min(window.row + b.shape[1], top + end_row - row)
            delta = b[expert - window.expert, top - window.row : bottom - window.row] @ self._first_half(update, expert)
            delta *= np.float32(update.scale)
            start = row * columns
            skipped, stop = max(0, first - start), min(delta.size, first + values.size - start)
            values[start + skipped - first : start + stop - first] += delta.ravel()[skipped:stop]
            row += bottom - top

    def _first_half(self, update: Update, expert: int) -> Floats:
        if self._key != (update, expert):
            each = update.rank * update.columns
            self._a = read_floats(update.a, expert * each, each).reshape(update.rank, update.columns)
            self._key = (update, expert)
        return self._a


def _read_window(window: Window, experts: int, rows: int) -> Floats:
    """At most so many experts, and rows of each."""
    import numpy as np

    update, first = window.update, window.expert
    last, end = min(first + experts, update.experts), min(window.row + rows, update.rows)
    width = update.rank * update.experts
    values = np.empty((last - first, end - window.row, update.rank), np.float32)
    step = max(1, _READ_ELEMENTS // width)
    for row in range(window.row, end, step):
        count = min(step, end - row)
        strip = read_floats(update.b, row * width, count * width).reshape(count, update.rank, update.experts)
        at = row - window.row
        values[:, at : at + count] = strip[:, :, first:last].transpose(2, 0, 1)
    return values


def read_floats(half: Output, first: int, count: int) -> Floats:
    """Elements of a tensor that is in the shards in pieces, as float32."""
    import numpy as np

    values = np.empty(count, np.float32)
    for piece in half.pieces:
        start, stop = max(first, piece.start), min(first + count, piece.start + piece.run)
        dtype = piece.view.dtype
        for at in range(start, stop, _READ_ELEMENTS):
            length = min(_READ_ELEMENTS, stop - at)
            offset = piece.shard.offset(piece.view) + (at - piece.start) * dtype.size_bytes
            data = piece.shard.archive.source.read(offset, length * dtype.size_bytes)
            values[at - first : at - first + length] = as_floats(data, dtype)
    return values


def as_floats(data: bytes | memoryview, dtype: DType) -> Floats:
    """The same numbers as float32, in memory of their own."""
    import numpy as np

    if dtype is DType.FLOAT32:
        return np.frombuffer(data, "<f4").copy()
    return np.frombuffer(Caster(dtype, DType.FLOAT32)(data)[0], np.float32)
