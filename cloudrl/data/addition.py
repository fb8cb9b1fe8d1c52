"""The `addition` data set: sums of two small numbers, generated from a seed.

One row is one ordered pair of numbers, and none is in both splits; but 3+5 may be in one and 5+3 in the other: for 88
of the 100 test questions, the one with the numbers swapped is in the training split. Standard library
only at import time: writing the files takes pyarrow.
"""

import random
from pathlib import Path
from typing import Callable, Dict, List, Tuple, Union

from cloudrl.data.parquet import silent, write_splits
from cloudrl.data.rows import verl_row

DATA_SOURCE = "cloudrl/addition"
LARGEST = 49
"""The numbers go from 0 to this one."""
TEST_ROWS = 100


def prepare(folder: Union[str, Path], *, say: Callable[[str], None] = silent) -> Dict[str, str]:
    """Write train.parquet and test.parquet, in the columns that verl reads; always the same bytes.

    Args:
        folder: Where to write; made if need be.
        say: Is called with lines about the progress.

    Returns:
        The absolute paths by split: `train` and `test`.
    """
    rows = (
        (split, _row(split, index, left, right))
        for split, members in pairs().items()
        for index, (left, right) in enumerate(members)
    )
    return write_splits("addition", folder, rows, say=say)


def pairs() -> Dict[str, List[Tuple[int, int]]]:
    """The pairs of numbers of each split, in order."""
    both = [(left, right) for left in range(LARGEST + 1) for right in range(LARGEST + 1)]
    random.Random(0).shuffle(both)  # noqa: S311 - a data set is no secret
    return {"train": both[TEST_ROWS:], "test": both[:TEST_ROWS]}


def question(left: int, right: int) -> str:
    """What the model is asked. Without spaces: each would be a token of its own."""
    return f"{left}+{right}="


def _row(split: str, index: int, left: int, right: int) -> Dict[str, object]:
    return verl_row(
        data_source=DATA_SOURCE,
        prompt=[{"role": "user", "content": question(left, right)}],
        ability="math",
        truth=str(left + right),
        extra={"split": split, "index": index},
    )
