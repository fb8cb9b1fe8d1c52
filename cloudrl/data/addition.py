"""The `addition` data set: sums of two small numbers, generated from a seed.

One row is one pair of numbers; no pair is in both splits. Standard library only at import time: writing the
files takes pyarrow.
"""

from __future__ import annotations

import random
from pathlib import Path

from cloudrl.data.parquet import write_parquet

DATA_SOURCE = "cloudrl/addition"


def prepare(folder: str | Path, *, largest: int = 19, test_rows: int = 48, seed: int = 0) -> dict[str, str]:
    """Write train.parquet and test.parquet, in the columns that verl reads.

    Args:
        folder: Where to write; made if need be.
        largest: The numbers go from 0 to this one, so that there are (largest + 1)² pairs.
        test_rows: How many pairs go to the test split; the others are the training split.
        seed: Decides the order of the pairs and thus the splits.

    Returns:
        The absolute paths by split: `train` and `test`.
    """
    pairs = [(left, right) for left in range(largest + 1) for right in range(largest + 1)]
    random.Random(seed).shuffle(pairs)  # noqa: S311 - a data set is no secret
    splits = {"train": pairs[test_rows:], "test": pairs[:test_rows]}
    folder = Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for split, members in splits.items():
        rows = [_row(split, index, left, right) for index, (left, right) in enumerate(members)]
        path = folder / f"{split}.parquet"
        write_parquet(path, rows)
        paths[split] = str(path)
    return paths


def _row(split: str, index: int, left: int, right: int) -> dict[str, object]:
    """One row, with the columns of verl's own preprocessing (verl, examples/data_preprocess/gsm8k.py)."""
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": f"{left} + {right} ="}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(left + right)},
        "extra_info": {"split": split, "index": index},
    }
