"""Of how many elements each flat parameter of FSDP1 is made, which its optimizer state does not say.

FSDP1 with `use_orig_params=False`, verl's default, makes one flat parameter of each unit, and cuts it into chunks of
one size: the last ones are padded with zeros. Units are the root and each wrapped layer, and with LoRA each trained
matrix (verl 0.9.1, utils/fsdp_utils.py, `get_fsdp_wrap_policy`); a parameter belongs to the innermost unit around it.
Which lists of layers are wrapped is found by trying: numbers and sizes of the chunks must be those of the optimizer.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from cloudrl.shards.shard import Shard

_ITEM = re.compile(r"(.*?)\.\d+\.")
"""Up to an item of the outermost list of modules."""
_ADAPTED = ".lora_"
_MOST_LISTS = 8


def unit_lengths(parts: Sequence[Shard], chunks: Mapping[int, int], units: int) -> dict[int, int] | None:
    """The true length of each flat parameter, without padding.

    Args:
        parts: The model shard of each rank.
        chunks: Number of a flat parameter in the optimizer -> elements that each rank has of it.
        units: How many flat parameters the optimizer was made for.

    Returns:
        By the same numbers; None if nothing that fits is found, or several things.
    """
    found: set[tuple[int, ...]] = set()
    for lengths in _candidates(parts, units):
        if all(-(-lengths[number] // len(parts)) == chunk for number, chunk in chunks.items()):
            found.add(tuple(lengths[number] for number in chunks))
    return dict(zip(chunks, found.pop(), strict=True)) if len(found) == 1 else None


def _candidates(parts: Sequence[Shard], units: int) -> Iterator[list[int]]:
    """Lengths of all units, for each choice of wrapped lists that makes so many units."""
    tensors = parts[0].tensors
    sizes = {name: math.prod(tensors[name].shape) for name in tensors if tensors[name].mesh is not None}
    lists = sorted({match[1] for name in sizes if (match := _ITEM.match(name))})
    doubled = _doubled(parts, [name for name in sizes if len(tensors[name].shape) > 1 and not _ITEM.match(name)])
    for count in range(len(lists), -1, -1) if len(lists) <= _MOST_LISTS else ():
        for wrapped in combinations(lists, count):
            for left_out in (doubled, set[str]()) if doubled else (doubled,):
                lengths = _lengths({name: size for name, size in sizes.items() if name not in left_out}, wrapped)
                if len(lengths) == units:
                    yield lengths


def _lengths(sizes: Mapping[str, int], wrapped: Collection[str]) -> list[int]:
    """Of the units in the order of `parameters()`: the outer one before those within it."""
    lengths = {"": 0}
    for name, size in sizes.items():
        unit = ""
        if (match := _ITEM.match(name)) and match[1] in wrapped:
            unit = match[0]
            lengths.setdefault(unit, 0)
        if _ADAPTED in name:
            unit = name.rpartition(".")[0]
        lengths[unit] = lengths.get(unit, 0) + size
    return [length for length in lengths.values() if length]


def _doubled(parts: Sequence[Shard], names: Sequence[str]) -> set[str]:
    """Those that hold the same as an earlier one: tied, so that the flat parameter has them once."""
    first: dict[Any, str] = {}
    for name in names:
        first.setdefault((parts[0].tensors[name].shape, *(_content(part, name) for part in parts)), name)
    return set(names) - set(first.values())


def _content(part: Shard, name: str) -> tuple[int, int, int]:
    view = part.tensors.view(name)
    member = part.member(view)
    return view.offset, member.size_bytes, member.crc32
