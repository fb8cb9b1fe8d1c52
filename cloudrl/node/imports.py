"""A child that imports what a job will import, so that a broken image is seen before the job is."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Optional, Sequence

_REMEDIES = {
    "MKL_THREADING_LAYER": "numpy's MKL clashes with libgomp: add the set-up command `pip install -U numpy`, "
    "or env MKL_SERVICE_FORCE_INTEL=1 (vllm issue 10759)",
    "libcudart": "the image's CUDA libraries do not fit its torch: take the image of this verl release",
    "undefined symbol": "a package was compiled for another torch: take the image of this verl release",
}
_RAISED = re.compile(
    r"^(?:import \S+: )?(?:\w+\.)*(\w*(?:Error|Exception|Exit|Interrupt))(?::|$)", re.MULTILINE
)


def remedy(text: str) -> str:
    """What to do about an import error, or an empty string when nothing is known."""
    return next((advice for mark, advice in _REMEDIES.items() if mark in text), "")


def reason(tail: str) -> str:
    """Why the child failed, by its last lines, and what to do about it."""
    said = f"the image is broken: {tail.splitlines()[-1] if tail else 'an import crashed'}"
    advice = remedy(tail)
    return f"{said} -> {advice}" if advice else said


def code(tail: str, status: Optional[int]) -> str:
    """What came in its way, without words: the mark of a remedy, the last error's class, or the exit status."""
    mark = next((mark for mark in _REMEDIES if mark in tail), None)
    return mark or next(reversed(_RAISED.findall(tail)), f"exit {status}")


def main(modules: Sequence[str]) -> int:
    """Import all modules in this one process, in order; 0 when all came."""
    for name in modules:
        try:
            importlib.import_module(name)
        except (ImportError, OSError, RuntimeError, ValueError, AttributeError) as error:
            print(f"import {name}: {type(error).__name__}: {error}", file=sys.stderr)
            return 1
    return 0
