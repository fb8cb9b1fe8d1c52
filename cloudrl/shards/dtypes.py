"""The element types of tensors, by their names in torch, in safetensors and on the command line."""

from __future__ import annotations

from enum import Enum


class DType(str, Enum):
    """An element type; the value is its name in torch, without `torch.`."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"

    @property
    def safetensors(self) -> str:
        """The name in the header of a safetensors file (safetensors 0.8, `Dtype`)."""
        return _TABLE[self][0]

    @property
    def size_bytes(self) -> int:
        """Of one element."""
        return _TABLE[self][1]

    @property
    def is_float(self) -> bool:
        """Whether a cast applies; all else (positions, masks, counters) is kept as it is."""
        return self in _FLOATS


_TABLE: dict[DType, tuple[str, int]] = {
    DType.FLOAT64: ("F64", 8),
    DType.FLOAT32: ("F32", 4),
    DType.BFLOAT16: ("BF16", 2),
    DType.FLOAT16: ("F16", 2),
    DType.INT64: ("I64", 8),
    DType.INT32: ("I32", 4),
    DType.INT16: ("I16", 2),
    DType.INT8: ("I8", 1),
    DType.UINT8: ("U8", 1),
    DType.BOOL: ("BOOL", 1),
}
_FLOATS = frozenset({DType.FLOAT64, DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})

WANTED: dict[str, DType | None] = {
    "bf16": DType.BFLOAT16,
    "fp16": DType.FLOAT16,
    "fp32": DType.FLOAT32,
    "keep": None,
}
"""What `--dtype` can say; None keeps what each tensor has."""
