"""Who made a GPU. The vendor decides which image can run on it."""

from __future__ import annotations

import re

from cloudrl.errors import SpecError
from cloudrl.spec.gpu import Gpu

# gpuhunt 0.1.34, _internal/constraints.py, KNOWN_AMD_GPUS: MI100 to MI355X, and nobody else's name begins so.
_AMD = re.compile(r"mi[0-9]{2,}[a-z]*", re.IGNORECASE)


def vendor_of(gpu: str | None) -> str:
    """The vendor of GPUs as dstack writes them; `nvidia` where nothing says otherwise.

    Raises:
        SpecError: names of different vendors stand together, or the vendor given is not theirs.
    """
    if gpu is None:
        return "nvidia"
    parsed = Gpu.parse(gpu)
    amd = [name for name in parsed.name if _AMD.fullmatch(name)]
    if amd and len(amd) < len(parsed.name):
        other = next(name for name in parsed.name if name not in amd)
        raise SpecError(
            f"{gpu!r} mixes {amd[0]} of AMD with {other}, and no image runs on both",
            hint="All nodes of a cluster run one image; name GPUs of one vendor",
        )
    if amd and parsed.vendor not in (None, "amd"):
        meant = gpu.replace(f"{parsed.vendor}:", "amd:", 1)
        raise SpecError(f"{gpu!r}: {amd[0]} is made by AMD; did you mean {meant!r}?")
    if parsed.vendor == "amd" and parsed.name and not amd:
        raise SpecError(
            f"{gpu!r}: {parsed.name[0]} is not made by AMD",
            hint="For example 'amd:MI300X:8'; or leave the vendor out",
        )
    return "amd" if amd else parsed.vendor or "nvidia"
