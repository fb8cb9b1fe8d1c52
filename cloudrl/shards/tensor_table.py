"""The tensors of one rank's file in arrays, which ranks share where they are equal.

A model may have 37,000 tensors, and a merge has those of 64 ranks in memory. What differs between ranks is in few
values: where the bytes are (`cloudrl.shards.torch_zip.Members`), and in each mesh the rank.
"""

from array import array
from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any

from cloudrl.shards.tensors import Tensor, View
from cloudrl.shards.torch_zip import shared_rows


class TensorTable(Mapping[str, Tensor]):
    """Tensors by name, in the order in which they were given.

    Attributes:
        rows: The row of each name. Two tables with the same names, in the same order, may have it in common.
        kinds: Tensors that differ in more than their place in the file; that of these has no meaning.
        which: The kind of each row.

    Args:
        tensors: The same.
        known: Values that tables share, to be passed for each of them.
    """

    __slots__ = ("_keys", "_offsets", "kinds", "rows", "which")

    def __init__(self, tensors: Mapping[str, Tensor], known: dict[Any, Any]) -> None:
        self.rows = shared_rows(tensors, known)
        numbers: dict[Any, int] = {}
        kinds: list[Tensor] = []
        which, offsets = array("I"), array("Q")
        for tensor in tensors.values():
            view = tensor.view
            # identity is enough, and quick; all of these live as long as `tensors`
            mine = (id(tensor.shape), view.dtype, id(view.shape), id(tensor.mesh), id(tensor.placements))
            if mine not in numbers:
                numbers[mine] = len(kinds)
                kinds.append(Tensor(tensor.shape, View("", view.dtype, 0, view.shape), tensor.mesh, tensor.placements))
            which.append(numbers[mine])
            offsets.append(view.offset)
        self.kinds = tuple(kinds)
        self.which: array[int] = known.setdefault(("kinds", which.tobytes()), which)
        self._offsets: array[int] = known.setdefault(("offsets", offsets.tobytes()), offsets)
        keys = tuple(tensor.view.storage for tensor in tensors.values())
        self._keys: tuple[str, ...] = known.setdefault(("keys", keys), keys)

    def with_rows(self, rows: Mapping[str, int]) -> "TensorTable":
        """The same tensors under other names; `rows` has as many, in the same order."""
        renamed = copy(self)
        renamed.rows = rows
        return renamed

    def view(self, name: str) -> View:
        """Where this rank's part is."""
        row = self.rows[name]
        like = self.kinds[self.which[row]].view
        return View(self._keys[row], like.dtype, self._offsets[row], like.shape)

    def __getitem__(self, name: str) -> Tensor:
        kind = self.kinds[self.which[self.rows[name]]]
        return Tensor(kind.shape, self.view(name), kind.mesh, kind.placements)

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)
