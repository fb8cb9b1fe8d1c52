"""GPUs by name: how much of their memory PyTorch can use, and which number formats they compute with.

Sources: messages of `torch.OutOfMemoryError` ("GPU 0 has a total capacity of ..."), and the vendors' data sheets; fp8
needs compute capability 8.9 (vLLM 0.24, docs/features/quantization/fp8.md), bf16 needs 8.0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cloudrl.errors import did_you_mean
from cloudrl.spec.gpu import Gpu

_OF_NOMINAL = 0.985
_DRIVER_MIB = 512
"""What a tool reports as the total and PyTorch does not see."""
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)GB")


@dataclass(frozen=True)
class Card:
    """One GPU.

    Attributes:
        name: as it is known; with its size where there are several.
        gib: of memory that PyTorch can use; None if unknown.
        has_bf16, has_fp8: whether it computes with them; None if unknown.
    """

    name: str
    gib: float | None = None
    has_bf16: bool | None = None
    has_fp8: bool | None = None


_OLD = (False, False)
_AMPERE = (True, False)
_NEW = (True, True)
_KNOWN: dict[str, tuple[dict[int, float], tuple[bool, bool]]] = {
    "H100": ({80: 79.1, 94: 93.1, 96: 94.5}, _NEW), "H800": ({80: 79.1}, _NEW), "H20": ({96: 95.07, 141: 139.8}, _NEW),
    "H200": ({141: 139.8}, _NEW), "GH200": ({96: 94.5, 144: 141.0}, _NEW), "B200": ({180: 178.3, 192: 178.3}, _NEW),
    "GB200": ({186: 184.0, 192: 184.0}, _NEW), "B300": ({288: 267.0, 270: 267.0}, _NEW),
    "A100": ({40: 39.4, 80: 79.25}, _AMPERE), "A800": ({40: 39.4, 80: 79.25}, _AMPERE), "A40": ({48: 44.4}, _AMPERE),
    "A6000": ({48: 47.5}, _AMPERE), "A10": ({24: 22.0}, _AMPERE), "A10G": ({24: 22.0}, _AMPERE),
    "A30": ({24: 23.5}, _AMPERE), "RTX3090": ({24: 23.6}, _AMPERE), "RTX3090TI": ({24: 23.6}, _AMPERE),
    "A5000": ({24: 23.5}, _AMPERE), "A4000": ({16: 15.7}, _AMPERE), "RTX3080": ({10: 9.7, 12: 11.7}, _AMPERE),
    "L40S": ({48: 44.4}, _NEW), "L40": ({48: 44.4}, _NEW), "L20": ({48: 44.5}, _NEW), "L4": ({24: 22.0}, _NEW),
    "RTX4090": ({24: 23.6, 48: 47.4}, _NEW), "RTX4080": ({16: 15.7}, _NEW), "RTX6000ADA": ({48: 47.5}, _NEW),
    "RTX5090": ({32: 31.36}, _NEW), "RTXPRO6000": ({96: 94.9}, _NEW), "GB10": ({128: 121.6}, _NEW),
    "V100": ({16: 15.8, 32: 31.7}, _OLD), "P100": ({16: 15.9}, _OLD), "T4": ({16: 14.6}, _OLD),
    "RTX2080TI": ({11: 10.8}, _OLD), "MI250X": ({64: 63.9}, _AMPERE), "MI210": ({64: 63.9}, _AMPERE),
    "MI300X": ({192: 191.5}, _NEW), "MI325X": ({256: 255.5}, _NEW), "MI350X": ({288: 287.5}, _NEW),
    "MI355X": ({288: 287.5}, _NEW),
}  # fmt: skip
"""Name -> GB as it is sold, and GiB that PyTorch can use of it; bf16 and fp8."""
_NOMINAL = {80: 79.1, 24: 22.0, 40: 39.4, 48: 44.4, 96: 94.5, 141: 139.8, 16: 14.6, 32: 31.36}
"""The same where only the size is known: the least of any GPU of that size."""
_PREFIXES = ("NVIDIA", "GEFORCE", "TESLA", "AMD", "INSTINCT", "QUADRO", "GENERATION", "GRAPHICS")


def card_of(gpu: str, memory_mib: int = 0) -> Card:
    """The card of a cluster's GPUs.

    Args:
        gpu: as it was asked for, `80GB..:8` or `H100,A100:80GB:4`, or its full name: `NVIDIA H100 80GB HBM3`.
        memory_mib: of one, as the vendor's tool says; 0 if unknown.

    Returns:
        Of several, the one with the least memory.
    """
    names = _names(gpu)
    size = _size(gpu)
    cards = [_card(name, size) for name in names] or [Card(f"a GPU of {size} GB" if size else "", _nominal(size))]
    least = min(cards, key=lambda card: card.gib if card.gib is not None else float("inf"))
    measured = (memory_mib - _DRIVER_MIB) / 1024 if memory_mib else least.gib
    known = [card for card in cards if card.has_bf16 is not None]
    return Card(
        least.name,
        measured,
        all(card.has_bf16 for card in known) if known else None,
        all(card.has_fp8 for card in known) if known else None,
    )


def vendor_of(gpu: str) -> str | None:
    """Who makes a cluster's GPUs, `nvidia` or `amd` or another; None where a size alone was asked for.

    Args:
        gpu: as `card_of` takes it.
    """
    words = set(re.split(r"[^A-Z]+", gpu.upper()))
    for maker, marks in (("amd", {"AMD", "INSTINCT", "RADEON"}), ("nvidia", {"NVIDIA", "GEFORCE", "TESLA", "QUADRO"})):
        if words & marks:
            return maker
    if " " in gpu.strip() or not gpu:
        return None
    try:
        asked = Gpu.parse(gpu)
    except ValueError:
        return None
    if asked.vendor is not None or asked.maker == "amd":
        return asked.maker
    return "nvidia" if any(_plain(name) in _KNOWN for name in asked.name) else None


def suggestion(gpu: str) -> str:
    """`; did you mean 'H100'?` for the first GPU name that is like one of those above; empty if it is one or like none.

    Args:
        gpu: as `card_of` takes it.
    """
    unknown = [name for name in _names(gpu) if name not in _KNOWN]
    return next(filter(None, (did_you_mean(name, _KNOWN) for name in unknown)), "")


def gpu_of_label(label: str) -> str | None:
    """The GPU that a site's label means, as a cluster names it: `A100:80GB` of `a100_80g`; None for another label.

    Args:
        label: a feature or a type of Slurm's, such as `h100`, `gpu_a100`, `nvidia_h100_80gb_hbm3`.
    """
    if re.search(r"\dg\.\d+gb", label, re.IGNORECASE):  # a slice of a GPU (MIG)
        return None
    words = re.findall(r"[A-Z0-9]+", label.upper())
    name = next((each for each in _names(" ".join(["GPU", *words])) if each in _KNOWN), None)
    if name is None:
        return next((word for word in words if Gpu(name=(word,)).maker == "amd"), None)
    sizes = [int(word.rstrip("GB")) for word in words if re.fullmatch(r"\d+GB?", word)]
    size = next((each for each in sizes if each in _KNOWN[name][0]), None)
    return name if size is None or len(_KNOWN[name][0]) == 1 else f"{name}:{size}GB"


def _names(text: str) -> list[str]:
    """Of the GPUs, as `_KNOWN` writes them."""
    if " " not in text.strip():
        try:
            return [_plain(name) for name in Gpu.parse(text).name] if text else []
        except ValueError:
            return []
    words = re.split(r"[\s-]+", text.upper())
    kept = [word for word in words if word not in _PREFIXES]
    for count in (3, 2, 1):
        for at in range(len(kept) - count + 1):
            if (name := _plain("".join(kept[at : at + count]))) in _KNOWN:
                return [name]
    return []


def _plain(name: str) -> str:
    plain = re.sub(r"[^A-Z0-9]", "", name.upper()).removesuffix("SXM").removesuffix("PCIE")
    return plain if plain in _KNOWN or f"RTX{plain}" not in _KNOWN else f"RTX{plain}"


def _size(text: str) -> int | None:
    """GB of one GPU: what is asked for at least."""
    found = _SIZE.search(text.upper())
    return round(float(found[1])) if found else None


def _card(name: str, size: int | None) -> Card:
    if name not in _KNOWN:
        return Card(name, _nominal(size))
    sizes, (bf16, fp8) = _KNOWN[name]
    at_least = [sold for sold in sizes if size is None or sold >= size] or list(sizes)
    sold = min(at_least)
    suffix = f" of {sold} GB" if len(sizes) > 1 else ""
    return Card(f"{name}{suffix}", sizes[sold], bf16, fp8)


def _nominal(size: int | None) -> float | None:
    if size is None:
        return None
    return _NOMINAL.get(size, round(size * _OF_NOMINAL, 1))
