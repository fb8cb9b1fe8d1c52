"""The `addition` data set: sums of two small numbers, generated from a seed.

One row is one pair of numbers; no pair is in both splits. Standard library only at import time: writing the
files takes pyarrow.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from cloudrl.data.parquet import write_splits
from cloudrl.data.progress import silent
from cloudrl.data.rows import verl_row

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Callable, Dict, Union

DATA_SOURCE = "cloudrl/addition"


def prepare(
    folder: Union[str, Path],
    *,
    largest: int = 19,
    test_rows: int = 48,
    seed: int = 0,
    say: Callable[[str], None] = silent,
) -> Dict[str, str]:
    """Write train.parquet and test.parquet, in the columns that verl reads.

    Args:
        folder: Where to write; made if need be.
        largest: The numbers go from 0 to this one, so that there are (largest + 1)² pairs.
        test_rows: How many pairs go to the test split; the others are the training split.
        seed: Decides the order of the pairs and thus the splits.
        say: Is called with lines about the progress.

    Returns:
        The absolute paths by split: `train` and `test`.
    """
    pairs = [(left, right) for left in range(largest + 1) for right in range(largest + 1)]
    random.Random(seed).shuffle(pairs)  # noqa: S311 - a data set is no secret
    splits = {"train": pairs[test_rows:], "test": pairs[:test_rows]}
    rows = (
        (split, _row(split, index, left, right))
        for split, members in splits.items()
        for index, (left, right) in enumerate(members)
    )
    return write_splits("addition", folder, rows, say=say)


def _row(split: str, index: int, left: int, right: int) -> Dict[str, object]:
    return verl_row(
        data_source=DATA_SOURCE,
        prompt=[{"role": "user", "content": f"{left} + {right} ="}],
        ability="math",
        truth=str(left + right),
        extra={"split": split, "index": index},
    )
