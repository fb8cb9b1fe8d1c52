"""Why an image is broken, when a module of it cannot be imported, and what to do about that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Tuple

if TYPE_CHECKING:
    from cloudrl.node.subcommands import ChildResult

_REMEDIES = {
    "MKL_THREADING_LAYER": "numpy's MKL clashes with libgomp: add the set-up command `pip install -U numpy`, "
    "or env MKL_SERVICE_FORCE_INTEL=1 (vllm issue 10759)",
    "libcudart": "the image's CUDA libraries do not fit its torch: take the image of this verl release",
    "undefined symbol": "a package was compiled for another torch: take the image of this verl release",
}
"""By words of the error, which are its code, too."""


def explain(result: ChildResult, log: str) -> Tuple[str, str]:
    """Reason and code of a failed import, by what the child has left and the last lines that it wrote.

    MKL ends the process itself, so that its words stand in the log alone.
    """
    for mark, remedy in _REMEDIES.items():
        if mark in f"{result.reason}\n{log}":
            return f"{result.reason} -> {remedy}", mark
    return result.reason, result.code
