"""GPUs and CPUs of a node: `80GB..:8`, `A100,H100:80GB:4`, `amd:MI300X:8`, `x86:8..`.

The spelling is dstack 0.22.5's (core/models/resources.py: GPUSpec.parse, CPUSpec.parse; gpuhunt: AcceleratorVendor,
CPUArchitecture). Parts stand between colons in any order; a part is known by its form.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cloudrl.errors import SpecError, did_you_mean
from cloudrl.spec.quoting import quoted
from cloudrl.spec.sizes import CountRange, size_range

VENDORS = ("nvidia", "amd", "google", "intel", "tenstorrent")
_VENDOR_ALIASES = {"tpu": "google", "tt": "tenstorrent"}
_ARCH_ALIASES = {"amd64": "x86", "x86_64": "x86", "x64": "x86", "arm64": "arm", "aarch64": "arm"}
# gpuhunt 0.1.34, _internal/constraints.py, KNOWN_AMD_GPUS: MI100 to MI355X, and no other vendor's name begins so.
_AMD = re.compile(r"mi[0-9]{2,}[a-z]*", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
# No GPU is named like `H100x8`; dstack would take it for a name and find no offer.
_COUNT_IN_NAME = re.compile(r"([A-Za-z].*[0-9]|[0-9]+GB)[x*]([0-9]{1,2})|([0-9]{1,2})[x*]([A-Za-z].*|[0-9]+GB)")
_GPU_EXAMPLES = "For example '80GB..:8', 'H100:8', 'A100,H100:80GB:4', '24GB..40GB:2' or 'amd:MI300X:8'"
_CPU_EXAMPLES = "For example '32', '8..' or 'x86:8..'"


@dataclass(frozen=True)
class Gpu:
    """GPUs of one node. A part that is not given is None or empty and leaves the choice to the provider."""

    vendor: str | None = None
    name: tuple[str, ...] = ()
    memory: str | None = None
    """Of each GPU."""
    count: CountRange | None = None
    """Of each node; not given means one or more."""

    @classmethod
    def parse(cls, value: object) -> Gpu:
        """Read the short form, or a plain count.

        Raises:
            SpecError: A part is empty, stands twice, or is not a vendor, name, memory size or count.
        """
        return cls(**_parts(value, _gpu_part, _GPU_EXAMPLES))

    @classmethod
    def exact_count(cls, value: object) -> int | None:
        """How many GPUs of each node the short form asks for; None where it leaves that open, and for None."""
        count = cls.parse(value).count if value is not None else None
        return count.exact if count is not None else None

    def __str__(self) -> str:
        return _joined(self.vendor, ",".join(self.name), self.memory, self.count)

    @property
    def maker(self) -> str:
        """Who made the GPUs, which decides which image runs on them; `nvidia` where nothing says otherwise."""
        return "amd" if any(map(_AMD.fullmatch, self.name)) else self.vendor or "nvidia"


def image_gpu(value: object) -> str:
    """GPUs on which one image can run, in their usual spelling.

    Raises:
        SpecError: Names of different makers stand together, or the vendor given is not theirs.
    """
    gpu = Gpu.parse(value)
    if gpu.name and len({bool(_AMD.fullmatch(name)) for name in gpu.name}) > 1:
        raise SpecError(
            f"{quoted(value)} mixes GPUs of AMD with others, and no image runs on both",
            hint="All nodes of a cluster run one image; name GPUs of one vendor",
        )
    if gpu.name and gpu.vendor is not None and (gpu.vendor == "amd") != (Gpu(name=gpu.name).maker == "amd"):
        raise SpecError(
            f"{quoted(value)}: {gpu.name[0]} is not made by {gpu.vendor}",
            hint="For example 'amd:MI300X:8'; or leave the vendor out",
        )
    return str(gpu)


def cpu(value: object) -> str:
    """CPU cores of a node, `32`, `8..` or `x86:8..`, in their usual spelling.

    Raises:
        SpecError: A part is empty, stands twice, or is neither an architecture nor a count.
    """
    parts = _parts(value, _cpu_part, _CPU_EXAMPLES)
    return _joined(parts.get("architecture"), parts.get("count"))


def _joined(*parts: object) -> str:
    return ":".join(str(part) for part in parts if part)


def _parts(value: object, read: Callable[[str], tuple[str, Any]], examples: str) -> dict[str, Any]:
    """Kind -> part, as `read` makes it of one; a message about a part names the whole, too."""
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise SpecError(f"{quoted(value)} is neither text nor a count", hint=examples)
    if not str(value).strip():
        raise SpecError(f"{quoted(value)} is empty", hint=examples)
    parts: dict[str, Any] = {}
    for part in str(value).replace(" ", "").split(":"):
        if not part:
            raise SpecError(f"{quoted(value)} has an empty part beside a colon", hint=examples)
        try:
            kind, made = read(part)
        except SpecError as error:
            within = "" if str(value) == part else f"{quoted(value)}: "
            raise SpecError(within + error.message, hint=error.hint) from None
        if kind in parts:
            raise SpecError(f"{quoted(value)} gives the {kind} twice", hint=examples)
        parts[kind] = made
    return parts


def _gpu_part(part: str) -> tuple[str, Any]:
    if match := _COUNT_IN_NAME.fullmatch(part):
        meant = f"{match[1]}:{match[2]}" if match[1] else f"{match[4]}:{match[3]}"
        raise SpecError(f"{quoted(part)} is not the name of a GPU; did you mean {meant!r}?", hint=_GPU_EXAMPLES)
    vendor = _VENDOR_ALIASES.get(part.lower(), part.lower())
    if vendor in VENDORS:
        return "vendor", vendor
    if part[0].isalpha():
        return "name", _names(part)
    if any(character.isalpha() for character in part):
        return "memory", size_range(part)
    return "count", CountRange.parse(part)


def _cpu_part(part: str) -> tuple[str, Any]:
    arch = part.lower()
    if not part[0].isalpha() or ".." in part:
        return "count", CountRange.parse(part)
    if arch not in ("x86", "arm"):
        alias = _ARCH_ALIASES.get(arch)
        meant = f"; did you mean {alias!r}?" if alias else did_you_mean(arch, ("x86", "arm"))
        raise SpecError(f"{quoted(part)} is not an architecture{meant}", hint=_CPU_EXAMPLES)
    return "architecture", arch


def _names(part: str) -> tuple[str, ...]:
    names = tuple(part.split(","))
    for name in names:
        if not _NAME.fullmatch(name):
            raise SpecError(f"{quoted(part)} is not the name of a GPU", hint=_GPU_EXAMPLES)
        if name.lower() in VENDORS:
            raise SpecError(
                f"{quoted(part)}: {name!r} is a vendor; it stands alone, before a colon", hint=_GPU_EXAMPLES
            )
    return names
