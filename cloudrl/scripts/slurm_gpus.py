"""The GPUs that options of sbatch and srun ask for: how many of each node, and which."""

import re
from collections.abc import Mapping

from cloudrl.verl.memory.cards import gpu_of_label

_TYPE = r"(?:(?P<kind>[A-Za-z][\w.-]*):)?"
_GRES = re.compile(r"(?:gres[:/])?gpu(?:[:/](?P<kind>[A-Za-z][\w.-]*))?(?:[:=](?P<count>\d+))?(\(.*\))?")
_GPUS = re.compile(rf"{_TYPE}(?P<count>\d+)")
Options = Mapping[str, str | None]
GPU_OPTIONS = ("gres", "gpus-per-node", "gpus", "gpus-per-task")
"""Options that ask for GPUs, as `counted_gpus` reads them."""


def counted_gpus(options: Options) -> tuple[str | None, int | None]:
    """Type, by the site's own name, and number of each node's GPUs; None for what is not said."""
    nodes = first_number(options.get("nodes")) or 1
    if match := _GPUS.fullmatch(options.get("gpus-per-node") or ""):
        return match["kind"], int(match["count"])
    for part in (options.get("gres") or "").split(","):
        if match := _GRES.fullmatch(part.strip()):
            return match["kind"], int(match["count"] or 1)
    if match := _GPUS.fullmatch(options.get("gpus") or ""):
        return match["kind"], max(1, int(match["count"]) // nodes)
    if match := _GPUS.fullmatch(options.get("gpus-per-task") or ""):
        return match["kind"], int(match["count"]) * (first_number(options.get("ntasks-per-node")) or 1)
    return None, None


def named_gpus(options: Options) -> str | None:
    """The GPUs by name, `A100,H100` or `A100:80GB`, as the type or else the constraint says; None if neither does."""
    kind, _ = counted_gpus(options)
    if kind is not None and (named := gpu_of_label(kind)):
        return named
    return _of_features(options.get("constraint") or "")


def _of_features(constraint: str) -> str | None:
    """GPUs among the features of a constraint: `[a100|h100]`, `h100&ib`, `a100*2` (sbatch(1), --constraint).

    All features of one constraint name the same kind of node, so that a size counts for the GPU beside it, and
    alternatives are a list.
    """
    features = re.findall(r"[A-Za-z0-9][\w.-]*", re.sub(r"\*\d+", "", constraint))
    named = list(dict.fromkeys(found for each in features if (found := gpu_of_label(each))))
    if not named:
        return None
    names = list(dict.fromkeys(each.partition(":")[0] for each in named))
    if len(names) == 1:
        sized = {found for each in features if ":" in (found := gpu_of_label(f"{names[0]}_{_digits(each)}") or "")}
        return sized.pop() if len(sized) == 1 else names[0]
    sizes = {each.partition(":")[2] for each in named}
    return ",".join(names) + (f":{size}" if len(sizes) == 1 and (size := sizes.pop()) else "")


def _digits(feature: str) -> str:
    """The size in a feature such as `80gb`, `gpu80` or `a100-80g`, as `80GB`."""
    match = re.search(r"(?:^|[-_]|gpu|vram|mem)(\d{2,3})g?b?$", feature, re.IGNORECASE)
    return f"{match[1]}GB" if match else ""


def first_number(value: str | None) -> int | None:
    """The first number of an option's value, `4` of `4-8`."""
    match = re.match(r"\d+", value or "")
    return int(match[0]) if match else None
