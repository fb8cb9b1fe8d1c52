"""The values of the tensors in fixtures/megatron: bits that follow from the name, none of them NaN or zero."""

import math
import zlib
from collections.abc import Sequence

import numpy as np

_KEPT = {"bf16": ("<u2", 0x81FF, 0x3C00), "fp16": ("<u2", 0x87FF, 0x2000), "fp32": ("<u4", 0x81FFFFFF, 0x3C000000)}


def values(name: str, shape: Sequence[int], dtype: str) -> bytes:
    """The bytes of a tensor of this name."""
    bits, mask, exponent = _KEPT[dtype]
    raw = np.random.PCG64(zlib.crc32(name.encode())).random_raw(math.prod(shape))
    value: bytes = (raw.astype(bits) & np.asarray(mask, bits) | np.asarray(exponent, bits)).astype(bits).tobytes()
    return value
