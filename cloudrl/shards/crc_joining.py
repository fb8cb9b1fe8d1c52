"""The CRC-32 of two pieces together, from those of each: what `crc32_combine` of zlib does, which Python lacks.

A CRC-32 is linear over GF(2): appending zero bytes to the first piece is a matrix of 32 x 32 bits (zlib 1.3, crc32.c).
"""

from functools import cache

_POLYNOMIAL = 0xEDB88320
_BITS = 32
_Matrix = tuple[int, ...]
"""A column for each bit."""


def join_crc32(first: int, second: int, length: int) -> int:
    """The CRC-32 of a piece and the one after it.

    Args:
        first: CRC-32 of the first.
        second: CRC-32 of the second.
        length: Of the second, in bytes.
    """
    exponent = 0
    while length and first:
        if length & 1:
            first = _times(_zeros(exponent), first)
        length >>= 1
        exponent += 1
    return first ^ second


@cache
def _zeros(exponent: int) -> _Matrix:
    """What 2^exponent zero bytes make of a CRC-32."""
    if exponent:
        half = _zeros(exponent - 1)
        return _product(half, half)
    matrix: _Matrix = (_POLYNOMIAL, *(1 << bit for bit in range(_BITS - 1)))  # one zero bit
    for _ in range(3):
        matrix = _product(matrix, matrix)
    return matrix


def _product(one: _Matrix, other: _Matrix) -> _Matrix:
    return tuple(_times(one, column) for column in other)


def _times(matrix: _Matrix, vector: int) -> int:
    total = 0
    for column in matrix:
        if vector & 1:
            total ^= column
        vector >>= 1
        if not vector:
            break
    return total
