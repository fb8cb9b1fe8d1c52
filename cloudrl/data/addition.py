"""The `addition` data set: sums of two small numbers, generated from a seed.

One row is one ordered pair of numbers, and none is in both splits; but 3+5 may be in one and 5+3 in the other: for 88
of the 100 test questions, the one with the numbers swapped is in the training split. Standard library
only at import time: writing the files takes pyarrow.
"""

from functools import partial
from typing import Dict, List, Tuple

from cloudrl.data.rows import prepare_made, shuffled_splits, verl_row

DATA_SOURCE = "cloudrl/addition"
LARGEST = 49
"""The numbers go from 0 to this one."""
TEST_ROWS = 100


def pairs() -> Dict[str, List[Tuple[int, int]]]:
    """The pairs of numbers of each split, in order."""
    both = [(left, right) for left in range(LARGEST + 1) for right in range(LARGEST + 1)]
    return shuffled_splits(both, TEST_ROWS)


def question(left: int, right: int) -> str:
    """What the model is asked. Without spaces: each would be a token of its own."""
    return f"{left}+{right}="


def _row(split: str, index: int, pair: Tuple[int, int]) -> Dict[str, object]:
    return verl_row(
        data_source=DATA_SOURCE,
        prompt=[{"role": "user", "content": question(*pair)}],
        ability="math",
        truth=str(sum(pair)),
        extra={"split": split, "index": index},
    )


prepare = partial(prepare_made, "addition", pairs, _row)
