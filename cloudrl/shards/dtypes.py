"""The element types of tensors, by their names in torch, in safetensors and on the command line."""

from __future__ import annotations

from enum import Enum


class DType(Enum):
    """An element type; the value is its name in torch, without `torch.`.

    In the order in which they lie in a safetensors file: larger ones first, so that all are aligned (safetensors 0.8,
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
