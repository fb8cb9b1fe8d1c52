"""Modules that torch puts around a model or around parts of it, and that its state dict then has in its names.

None of them is part of an architecture, so a name without them is the name that transformers gives. Source: torch 2.13,
torch/_dynamo/eval_frame.py (`_orig_mod`), nn/parallel/distributed.py (`module`), distributed/fsdp/_common_utils.py
(`_fsdp_wrapped_module`, `_flat_param`), distributed/algorithms/_checkpoint/checkpoint_wrapper.py.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from cloudrl.errors import CheckpointError
from cloudrl.shards.shard import Shard

WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_FLAT = ("_flat_param", "flat_param")
ANOTHER_STEP = "If another step was saved otherwise, merge that: cloudrl checkpoints list"
SAVE_THE_MODEL = (
    "Save the state dict of the model inside, with the names that transformers gives it. "
    "No merger can be used for this step: it would write names that no model has, and a model that is loaded from "
    "them has random numbers. Other steps: cloudrl checkpoints list"
)


def unwrapped(parts: Sequence[Shard]) -> tuple[tuple[Shard, ...], tuple[str, ...]]:
    """Take the known wrappers out of the names of all tensors.

    Args:
        parts: Shards with the same names.

    Returns:
        The same shards under the names of the model, and the wrappers that were taken out.

    Raises:
        CheckpointError: The parameters are flattened, or two tensors would get the same name.
    """
    label, names = parts[0].label, parts[0].tensors
    modules: set[str] = set()
    renamed: dict[str, str] = {}
    for name in names:
        components = name.split(".")
        if components[-1] in _FLAT:
            raise CheckpointError(
                f"{label}: {name} has the parameters of a whole module in one row, without their names and shapes. "
                "FSDP saves them so if a run asks it for its local state",
                hint=ANOTHER_STEP,
            )
        kept = [component for component in components if component not in WRAPPERS]
        modules.update(component for component in components if component in WRAPPERS)
        new = ".".join(kept)
        if new in renamed:
            raise CheckpointError(
                f"{label} has two tensors that are both {new} without the wrappers of torch: {renamed[new]} and {name}",
                hint=ANOTHER_STEP,
            )
        renamed[new] = name
    if not modules:
        return tuple(parts), ()
    return _rename(parts, renamed), tuple(sorted(modules))


def _rename(parts: Sequence[Shard], names: Mapping[str, str]) -> tuple[Shard, ...]:
    """The same shards with other names: new -> old. The rows that shards share stay shared."""
    rows: dict[int, Mapping[str, int]] = {}
    for part in parts:
        old = part.tensors.rows
        if id(old) not in rows:
            rows[id(old)] = {new: old[name] for new, name in names.items()}
    return tuple(replace(part, tensors=part.tensors.with_rows(rows[id(part.tensors.rows)])) for part in parts)


def name_around(wanted: str, names: Iterable[str]) -> tuple[str, str] | None:
    """Where a tensor is that a model should have, if it is inside a module of somebody's own.

    Args:
        wanted: Its name in the model.
        names: All that there are.

    Returns:
        Its name in the shards, and the module: a prefix that all names have, or parts that begin with an underscore,
        as torch and others name modules that they put in between. None if there is neither.
    """
    names = set(names)
    prefix = common_prefix(names)
    for at in (index + 1 for index, letter in enumerate(prefix) if letter == "."):
        if prefix[:at] + wanted in names:
            return prefix[:at] + wanted, prefix[: at - 1]
    for name in sorted(names):
        components = name.split(".")
        private = [component for component in components if component.startswith("_")]
        if private and ".".join(component for component in components if component not in private) == wanted:
            return name, ".".join(private)
    return None


def common_prefix(names: Collection[str]) -> str:
    """The modules in which all tensors are, such as `policy.`; empty if they have none in common."""
    first, last = min(names, default="").split("."), max(names, default="").split(".")
    count = 0
    while count < min(len(first), len(last)) - 1 and first[count] == last[count]:
        count += 1
    return "".join(f"{each}." for each in first[:count])
