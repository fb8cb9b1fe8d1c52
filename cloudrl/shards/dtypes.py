"""The element types of tensors, by their names in torch, in safetensors and on the command line, and how they are cast.

A cast is bit for bit that of torch's `.to(dtype)`, without torch.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


_BLOCK = 1 << 18
"""Elements handled at once: few enough for the cache, enough that threads seldom wait for Python's lock."""

_BF16_NAN, _BF16_INFINITY = 0x7FC0, 0x7F80
_FP16_SIGN, _FP16_QUIET, _FP16_INFINITY = 0x8000, 0x7E00, 0x7C00


class DType(Enum):
    """An element type; the value is its name in torch, without `torch.`.

    In the order in which they are in a safetensors file: larger ones first, so that all are aligned (safetensors 0.8,
    tensor.rs, `prepare`).

    Attributes:
        safetensors: The name in the header of a safetensors file (safetensors 0.8, `Dtype`).
        size_bytes: Of one element.
        storage: The class of its storages, as a pickle of torch names it.
    """

    FLOAT64 = "float64", "F64", 8, "torch.DoubleStorage"
    INT64 = "int64", "I64", 8, "torch.LongStorage"
    FLOAT32 = "float32", "F32", 4, "torch.FloatStorage"
    INT32 = "int32", "I32", 4, "torch.IntStorage"
    BFLOAT16 = "bfloat16", "BF16", 2, "torch.BFloat16Storage"
    FLOAT16 = "float16", "F16", 2, "torch.HalfStorage"
    INT16 = "int16", "I16", 2, "torch.ShortStorage"
    UINT8 = "uint8", "U8", 1, "torch.ByteStorage"
    INT8 = "int8", "I8", 1, "torch.CharStorage"
    BOOL = "bool", "BOOL", 1, "torch.BoolStorage"

    _value_: str
    safetensors: str
    size_bytes: int
    storage: str

    def __new__(cls, value: str, safetensors: str, size_bytes: int, storage: str) -> DType:
        """A member whose value is its first column alone; the others are attributes."""
        member = object.__new__(cls)
        member._value_, member.safetensors = value, safetensors
        member.size_bytes, member.storage = size_bytes, storage
        return member

    @property
    def is_float(self) -> bool:
        """Whether a cast applies; all else (positions, masks, counters) is kept as it is."""
        return "float" in self.value


WANTED: dict[str, DType | None] = {"bf16": DType.BFLOAT16, "fp16": DType.FLOAT16, "fp32": DType.FLOAT32, "keep": None}
"""What `--dtype` can say; None keeps what each tensor has."""
_NUMPY = {DType.FLOAT64: "<f8", DType.FLOAT32: "<f4", DType.FLOAT16: "<f2", DType.BFLOAT16: "<u2"}


def result_type(stored: DType, wanted: DType | None) -> DType:
    """The type that a tensor has after a cast to `wanted`; None keeps it, and what is not a float is never cast."""
    return wanted if wanted is not None and stored.is_float else stored


def cast_bytes(data: bytes | memoryview, stored: DType, wanted: DType) -> bytes:
    """The same numbers in another type (`result_type`).

    To bfloat16 it rounds to nearest, ties to even, from what is float32 or was made float32 first; NaN becomes
    0x7FC0 (torch 2.13, c10/util/BFloat16.h, `round_to_nearest_even`; its code for vectors writes 0xFFFF). In float16 a
    NaN keeps what bits there is room for, and is a quiet one, as in torch.

    Args:
        data: Little-endian elements of type `stored`.
        stored: Their type.
        wanted: The type to return, little-endian.
    """
    wanted = result_type(stored, wanted)
    return bytes(data) if wanted is stored else Caster(stored, wanted)(data)[0].tobytes()


class Caster:
    """Casts piece after piece with the same scratch memory; one for each thread."""

    def __init__(self, stored: DType, wanted: DType) -> None:
        import numpy as np

        self._stored, self._wanted = stored, wanted
        self._scratch = np.empty(_BLOCK, np.uint32)
        self._out: npt.NDArray[Any] = np.empty(0, _NUMPY[wanted])

    def __call__(self, data: bytes | memoryview) -> tuple[memoryview, bool]:
        """Cast whole elements, and say whether one of them is NaN. The result is overwritten by the next call."""
        import numpy as np

        source = np.frombuffer(data, _NUMPY[self._stored])
        if self._out.size < source.size:
            self._out = np.empty(source.size, _NUMPY[self._wanted])
        out, saw_nan = self._out[: source.size], False
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, source.size, _BLOCK):
                piece = source[start : start + _BLOCK]
                if self._stored is DType.BFLOAT16:
                    piece = (piece.astype(np.uint32) << 16).view(np.float32)
                saw_nan = self._cast(piece, out[start : start + _BLOCK]) or saw_nan
        return out.data, saw_nan

    def _cast(self, piece: npt.NDArray[Any], out: npt.NDArray[Any]) -> bool:
        """Cast a block; whether one of its elements is NaN."""
        import numpy as np

        if self._wanted is not DType.BFLOAT16:
            np.copyto(out, piece, casting="unsafe")
            has_nan = _has_nan(piece)
            if has_nan and self._wanted is DType.FLOAT16:
                nan = np.isnan(piece)
                bits = piece[nan].astype(np.float32).view(np.uint32)
                out.view(np.uint16)[nan] = (bits >> 16 & _FP16_SIGN) | (bits >> 13 & 0x3FF) | _FP16_QUIET
            return has_nan
        single = piece.astype(np.float32, copy=False)
        self._round(single, out)
        if not _has_nan(single):
            return False
        out[np.isnan(single)] = _BF16_NAN
        return True

    def _round(self, single: npt.NDArray[np.float32], out: npt.NDArray[np.uint16]) -> None:
        """float32 to the upper 16 bits, to nearest, ties to even."""
        import numpy as np

        bits, scratch = single.view(np.uint32), self._scratch[: single.size]
        np.right_shift(bits, 16, out=scratch)
        np.bitwise_and(scratch, 1, out=scratch)
        np.add(scratch, 0x7FFF, out=scratch)
        np.add(scratch, bits, out=scratch)
        np.right_shift(scratch, 16, out=out, casting="unsafe")


def _has_nan(values: npt.NDArray[Any]) -> bool:
    """Whether any is NaN. The sum of squares is a quick screen: it is finite unless something is to be looked at."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        return not np.isfinite(np.dot(values, values)) and bool(np.isnan(values).any())


def holds_infinity(data: bytes | memoryview) -> bool:
    """Whether any of these elements of type float16 is infinite."""
    import numpy as np

    return bool(((np.frombuffer(data, "<u2") & 0x7FFF) == _FP16_INFINITY).any())


def holds_nan(data: bytes | memoryview, dtype: DType) -> bool:
    """Whether any of these elements is NaN; never for what is not a float."""
    import numpy as np

    if dtype is not DType.BFLOAT16:
        return dtype.is_float and _has_nan(np.frombuffer(data, _NUMPY[dtype]))
    bits = np.frombuffer(data, "<u2")
    scratch = np.empty(min(bits.size, _BLOCK), np.uint16)
    for start in range(0, bits.size, _BLOCK):
        piece = bits[start : start + _BLOCK]
        magnitude = np.bitwise_and(piece, 0x7FFF, out=scratch[: piece.size])
        if magnitude.max() > _BF16_INFINITY:
            return True
    return False
