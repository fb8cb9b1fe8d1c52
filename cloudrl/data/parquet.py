"""Rows into a parquet file. Standard library only at import time: writing takes pyarrow."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Mapping, Sequence


def write_parquet(path: str | Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows so that the file appears whole or not at all; the same rows give the same bytes.

    Args:
        path: The file; its folder must exist.
        rows: At least one; the columns and their types are those of the rows.
    """
    import pyarrow as pa
    import pyarrow.parquet

    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    os.close(handle)
    staged = Path(name)
    try:
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), staged)
        staged.chmod(0o644)  # mkstemp makes files that only their owner can read
        staged.replace(path)
    except BaseException:
        staged.unlink()
        raise
