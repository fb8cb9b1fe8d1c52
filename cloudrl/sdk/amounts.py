"""Money and bytes as people write them."""

from __future__ import annotations


def money(dollars: float) -> str:
    """`$1,234.50`."""
    return f"${dollars:,.2f}"


def gigabytes(size_bytes: int) -> str:
    """A size for reading: `12.4 GB`, `250 MB`, `3.1 kB`, `17 B`."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size_bytes >= unit:
            value = size_bytes / unit
            return f"{value:.1f} {name}" if value < 100 else f"{value:.0f} {name}"
    return f"{size_bytes} B"
