"""Casting the elements of a tensor, bit for bit as torch's `.to(dtype)` does, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudrl.shards.dtypes import DType

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_BLOCK = 1 << 18
"""Elements handled at once: few enough for the cache, enough that threads seldom wait for Python's lock."""

_NUMPY = {DType.FLOAT64: "<f8", DType.FLOAT32: "<f4", DType.FLOAT16: "<f2", DType.BFLOAT16: "<u2"}
_BF16_NAN, _BF16_INFINITY = 0x7FC0, 0x7F80


def cast_bytes(data: bytes | memoryview, stored: DType, wanted: DType) -> bytes:
    """The same numbers in another type; what is no float (or is of the wanted type already) is left alone.

    To bfloat16 it rounds to nearest, ties to even, from what is float32 or was made float32 first; NaN becomes
    0x7FC0 (torch 2.13, c10/util/BFloat16.h, `round_to_nearest_even`).

    Args:
        data: Little-endian elements of type `stored`.
        stored: Their type.
        wanted: The type to return, little-endian.
    """
    return bytes(data) if _is_same(stored, wanted) else Caster(stored, wanted)(data).tobytes()


def result_type(stored: DType, wanted: DType | None) -> DType:
    """The type that a tensor has after a cast to `wanted`; None keeps it."""
    return wanted if wanted is not None and stored.is_float else stored


def _is_same(stored: DType, wanted: DType) -> bool:
    return result_type(stored, wanted) is stored


class Caster:
    """Casts piece after piece with the same scratch memory; one for each thread."""

    def __init__(self, stored: DType, wanted: DType) -> None:
        import numpy as np

        self._stored, self._wanted = stored, wanted
        self._scratch = np.empty(_BLOCK, np.uint32)
        self._out: npt.NDArray[Any] = np.empty(0, _NUMPY[wanted])
        self._saw_nan = False

    def __call__(self, data: bytes | memoryview) -> npt.NDArray[Any]:
        """Cast whole elements. The result is overwritten by the next call."""
        import numpy as np

        source = np.frombuffer(data, _NUMPY[self._stored])
        if self._out.size < source.size:
            self._out = np.empty(source.size, _NUMPY[self._wanted])
        out = self._out[: source.size]
        for start in range(0, source.size, _BLOCK):
            piece = source[start : start + _BLOCK]
            self._cast(self._as_float(piece), out[start : start + _BLOCK])
        return out

    def take_nan(self) -> bool:
        """Whether any element was NaN since this was asked last."""
        saw, self._saw_nan = self._saw_nan, False
        return saw

    def _as_float(self, piece: npt.NDArray[Any]) -> npt.NDArray[Any]:
        import numpy as np

        if self._stored is not DType.BFLOAT16:
            return piece
        return (piece.astype(np.uint32) << 16).view(np.float32)

    def _cast(self, piece: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        import numpy as np

        if self._wanted is DType.BFLOAT16:
            with np.errstate(over="ignore", invalid="ignore"):
                single = piece.astype(np.float32, copy=False)
            self._round(single, out)
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                np.copyto(out, piece, casting="unsafe")
            self._saw_nan = self._saw_nan or has_nan(piece)

    def _round(self, single: npt.NDArray[np.float32], out: npt.NDArray[np.uint16]) -> None:
        """float32 to the upper 16 bits, to nearest, ties to even."""
        import numpy as np

        bits, scratch = single.view(np.uint32), self._scratch[: single.size]
        np.right_shift(bits, 16, out=scratch)
        np.bitwise_and(scratch, 1, out=scratch)
        np.add(scratch, 0x7FFF, out=scratch)
        np.add(scratch, bits, out=scratch)
        np.right_shift(scratch, 16, out=out, casting="unsafe")
        if has_nan(single):
            self._saw_nan = True
            out[np.isnan(single)] = _BF16_NAN


def has_nan(values: npt.NDArray[Any]) -> bool:
    """Whether any is NaN. The sum of squares is a quick screen: it is finite unless something is to be looked at."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        return not np.isfinite(np.dot(values, values)) and bool(np.isnan(values).any())


def holds_nan(data: bytes | memoryview, dtype: DType) -> bool:
    """Whether any of these elements is NaN; never for what is no float."""
    import numpy as np

    if dtype is DType.BFLOAT16:
        bits = np.frombuffer(data, "<u2")
        scratch = np.empty(min(bits.size, _BLOCK), np.uint16)
        for start in range(0, bits.size, _BLOCK):
            piece = bits[start : start + _BLOCK]
            magnitude = np.bitwise_and(piece, 0x7FFF, out=scratch[: piece.size])
            if magnitude.max() > _BF16_INFINITY:
                return True
        return False
    return dtype.is_float and has_nan(np.frombuffer(data, _NUMPY[dtype]))
