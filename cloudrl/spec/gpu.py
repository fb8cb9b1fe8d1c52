"""GPUs and CPUs as dstack writes them: `80GB:8`, `A100,H100:80GB:4`, `amd:MI300X:8`, `x86:8..`.

Source of the rules: dstack 0.22.5, core/models/resources.py (GPUSpec.parse, CPUSpec.parse) and gpuhunt
(AcceleratorVendor, CPUArchitecture). Parts stand between colons in any order; a part is told by its look.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from cloudrl.errors import SpecError
from cloudrl.spec.nearest import did_you_mean
from cloudrl.spec.sizes import CountRange, SizeRange

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", SizeRange, CountRange)

VENDORS = ("nvidia", "amd", "google", "intel", "tenstorrent")
_VENDOR_ALIASES = {"tpu": "google", "tt": "tenstorrent"}
_ARCH_ALIASES = {"amd64": "x86", "x86_64": "x86", "x64": "x86", "arm64": "arm", "aarch64": "arm"}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
# No GPU is named like `H100x8`; dstack would take it for a name and find no offer.
_COUNT_IN_NAME = re.compile(
    r"([A-Za-z].*[0-9]|[0-9]+GB)[x*]([0-9]{1,2})|([0-9]{1,2})[x*]([A-Za-z].*|[0-9]+GB)"
)
_GPU_EXAMPLES = "For example '80GB:8', 'H100:8', 'A100,H100:80GB:4', '24GB..40GB:2' or 'amd:MI300X:8'"
_CPU_EXAMPLES = "For example '32', '8..' or 'x86:8..'"


@dataclass(frozen=True)
class Gpu:
    """GPUs of one node. A part that is not given is None or empty and leaves the choice to dstack."""

    vendor: str | None = None
    name: tuple[str, ...] = ()
    memory: SizeRange | None = None
    """Of each GPU."""
    count: CountRange | None = None
    """Of each node; not given means one or more."""

    @classmethod
    def parse(cls, value: object) -> Gpu:
        """Read dstack's shorthand, or a plain count.

        Raises:
            SpecError: A part is empty, stands twice, or is no vendor, name, memory size or count.
        """
        parts = _parts(value, _GPU_EXAMPLES)
        found: dict[str, str] = {}
        for part in parts:
            kind = _kind_of_gpu_part(part)
            if kind in found:
                raise SpecError(
                    f"{value!r} gives the {kind} twice: {found[kind]!r} and {part!r}", hint=_GPU_EXAMPLES
                )
            found[kind] = part
        _refuse_count_in_name(value, parts)
        return cls(
            vendor=_vendor(found["vendor"]) if "vendor" in found else None,
            name=_names(value, found["name"]) if "name" in found else (),
            memory=_part(value, found["memory"], SizeRange.parse) if "memory" in found else None,
            count=_part(value, found["count"], CountRange.parse) if "count" in found else None,
        )

    def __str__(self) -> str:
        parts = [self.vendor, ",".join(self.name), self.memory, self.count]
        return ":".join(str(part) for part in parts if part)


@dataclass(frozen=True)
class Cpu:
    """CPU cores of one node, and their architecture (`x86` or `arm`)."""

    arch: str | None = None
    count: CountRange | None = None

    @classmethod
    def parse(cls, value: object) -> Cpu:
        """Read `32`, `8..` or `x86:8..`.

        Raises:
            SpecError: A part is empty, stands twice, or is neither an architecture nor a count.
        """
        arch: str | None = None
        count: CountRange | None = None
        for part in _parts(value, _CPU_EXAMPLES):
            if part[0].isdigit() or ".." in part:
                if count is not None:
                    raise SpecError(f"{value!r} gives the count twice", hint=_CPU_EXAMPLES)
                count = _part(value, part, CountRange.parse)
            else:
                if arch is not None:
                    raise SpecError(f"{value!r} gives the architecture twice", hint=_CPU_EXAMPLES)
                arch = _arch(value, part)
        return cls(arch, count)

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.arch, self.count) if part)


def _parts(value: object, examples: str) -> list[str]:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise SpecError(f"{value!r} is neither text nor a count", hint=examples)
    parts = value.replace(" ", "").split(":")
    if not value.strip():
        raise SpecError(f"{value!r} is empty", hint=examples)
    if not all(parts):
        raise SpecError(f"{value!r} has an empty part beside a colon", hint=examples)
    return parts


def _kind_of_gpu_part(part: str) -> str:
    if part.lower() in VENDORS or part.lower() in _VENDOR_ALIASES:
        return "vendor"
    if part[0].isalpha():
        return "name"
    return "memory" if any(character.isalpha() for character in part) else "count"


def _vendor(part: str) -> str:
    return _VENDOR_ALIASES.get(part.lower(), part.lower())


def _names(value: object, part: str) -> tuple[str, ...]:
    names = tuple(part.split(","))
    for name in names:
        if not _NAME.fullmatch(name):
            raise SpecError(f"{_within(value, name)}{name!r} is not the name of a GPU", hint=_GPU_EXAMPLES)
        if name.lower() in VENDORS:
            raise SpecError(
                f"{value!r}: {name!r} is a vendor; it stands alone, before a colon", hint=_GPU_EXAMPLES
            )
    return names


def _refuse_count_in_name(value: object, parts: list[str]) -> None:
    for part in parts:
        if match := _COUNT_IN_NAME.fullmatch(part):
            meant = f"{match[1]}:{match[2]}" if match[1] else f"{match[4]}:{match[3]}"
            problem = f"{part!r} is not the name of a GPU; did you mean {meant!r}?"
            raise SpecError(_within(value, part) + problem, hint=_GPU_EXAMPLES)


def _part(value: object, part: str, parse: Callable[[object], T]) -> T:
    try:
        return parse(part)
    except SpecError as error:
        raise SpecError(_within(value, part) + error.message, hint=error.hint) from None


def _within(value: object, part: str) -> str:
    return "" if str(value) == part else f"{value!r}: "


def _arch(value: object, part: str) -> str:
    arch = part.lower()
    if arch not in ("x86", "arm"):
        meant = (
            f"; did you mean {_ARCH_ALIASES[arch]!r}?"
            if arch in _ARCH_ALIASES
            else did_you_mean(arch, ("x86", "arm"))
        )
        raise SpecError(f"{_within(value, part)}{part!r} is not an architecture{meant}", hint=_CPU_EXAMPLES)
    return arch
