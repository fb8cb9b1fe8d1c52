"""One rank's optimizer file, opened: the tensors of its state by parameter, and where their bytes are."""

from collections.abc import Iterator, Mapping
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.shards.pickled import PickledObject
from cloudrl.shards.shard import Shard, check_tensor, read_state, saved_as
from cloudrl.shards.source import ShardSource
from cloudrl.shards.tensor_table import TensorTable
from cloudrl.shards.tensors import Tensor, Unreadable, View, read_tensor
from cloudrl.shards.torch_zip import open_archive

STATE, GROUPS = "state", "param_groups"
"""The two parts of an optimizer's state dict (torch 2.13, optim/optimizer.py, `Optimizer.state_dict`)."""


def open_optimizer(source: ShardSource, rank: int, known: dict[Any, Any]) -> tuple[Shard, int]:
    """Read directory and pickle of an optimizer file. No tensor data are read.

    Args:
        source: The file.
        rank: Whose it is.
        known: Values that ranks share, to be passed for each of them.

    Returns:
        The tensors, named `3.exp_avg` by number of the parameter and name of the state, and how many parameters the
        optimizer was made for.

    Raises:
        CheckpointError: It is cut off, damaged, of another rank, or not the state of an optimizer of torch.
    """
    archive = open_archive(source, known=known)
    world_size = saved_as(archive, "optim", rank)
    content = read_state(archive, known)
    try:
        tensors, count = dict(_tensors(content)), _parameters(content)
    except Unreadable as why:
        raise CheckpointError(
            f"{source.label}: {why}, which cloudrl cannot cut",
            hint="AdamW of torch.optim, and others whose state are tensors of each parameter, can be cut.",
        ) from why
    for name, tensor in tensors.items():
        check_tensor(archive, rank, name, tensor)
    return Shard(rank, world_size, archive, TensorTable(tensors, known)), count


def state_values(content: Any) -> Iterator[tuple[str, dict[Any, Any], Any]]:
    """Each value of each parameter's state: its name, and the dict and the key that have it.

    Raises:
        Unreadable: It is not the state dict of an optimizer.
    """
    state = content.get(STATE) if isinstance(content, dict) else None
    if not isinstance(state, dict):
        raise Unreadable(f"an optimizer without {STATE!r}")
    for number, values in state.items():
        if type(number) is not int or not isinstance(values, dict):
            raise Unreadable(f"an optimizer whose {STATE!r} is not by number of the parameter")
        for key in values:
            yield f"{number}.{key}", values, key


def _tensors(content: Any) -> Iterator[tuple[str, Tensor]]:
    for name, values, key in state_values(content):
        value = values[key]
        if isinstance(value, View | Tensor | PickledObject):
            try:
                yield name, read_tensor(value)
            except Unreadable as why:
                raise Unreadable(f"{name} is {why}") from why
        elif isinstance(value, dict | list | tuple):
            raise Unreadable(f"{name} is a {type(value).__name__}")


def _parameters(content: Mapping[str, Any]) -> int:
    groups = content.get(GROUPS)
    if not isinstance(groups, list) or not all(
        isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups
    ):
        raise Unreadable(f"an optimizer without {GROUPS!r}")
    return sum(len(group["params"]) for group in groups)
