r"""The `math` data set: Hendrycks' competition problems (MATH), in the rows that verl's own script makes.

Columns, prompt and the extraction of the answer are those of verl 0.9.0,
examples/data_preprocess/math_dataset.py (the same on its main branch of August 2026). That script keeps the
other columns of the raw rows (`level`, `type`) and puts them first, so they are kept here. Where it ends with an
assertion, because the last box is no `\boxed{...}`, the row is named here. Standard library only at import time:
the download takes `datasets`, the files take pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl.data.parquet import write_splits
from cloudrl.data.progress import silent
from cloudrl.data.raw import built_in_rows
from cloudrl.data.rows import BadRow, verl_row

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, Callable, Dict, Mapping, Optional, Union

DATA_SOURCE = "DigitalLearningGmbH/MATH-lighteval"

_INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."
_OPEN, _SPACED = "\\boxed{", "\\boxed "


def prepare(
    folder: Union[str, Path],
    *,
    source: Optional[Union[str, Path]] = None,
    say: Callable[[str], None] = silent,
) -> Dict[str, str]:
    """Write train.parquet and test.parquet, in the columns that verl reads.

    Args:
        folder: Where to write; made if need be.
        source: A folder of the raw rows (`problem`, `solution`, and others that are kept), as `train.jsonl` or
            `train.parquet` and the same for `test`; a copy of the Hub's repository will do
            (`data/train-00000-of-00001.parquet`), and so will the id of another one on the Hub. None downloads
            the original, or takes it from the cache of `datasets`.
        say: Is called with lines about the progress.

    Returns:
        The absolute paths by split: `train` and `test`.

    Raises:
        ConnectionFailed: The download failed; the message is one line and says what to look at.
        InputError: A split is missing or empty, or a row lacks its problem or its boxed answer. Nothing is
            written then.
    """
    place = DATA_SOURCE if source is None else source
    return write_splits("math", folder, built_in_rows("math", place, None, _row, say), say=say)


def final_answer(solution: str) -> Optional[str]:
    r"""What stands in the last box of a solution; None where verl finds no answer.

    verl 0.9.1, utils/reward_score/math_reward.py: remove_boxed(last_boxed_only_string(solution)). It looks for
    `\boxed ` with a blank first, and its answer goes to the next dollar; a box without its closing brace is
    none, and an `\fbox` is found but then refused.
    """
    if _SPACED in solution:
        return solution.rpartition(_SPACED)[2].partition("$")[0]
    start = solution.rfind("\\boxed")
    if start < 0 or not solution.startswith(_OPEN, start):
        return None
    end = _closing_brace(solution, start)
    return None if end is None else solution[start + len(_OPEN) : end]


def _closing_brace(text: str, start: int) -> Optional[int]:
    """Where the first brace at or after `start` is closed again."""
    depth = 0
    for position in range(start, len(text)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return position
    return None


def _row(split: str, index: int, raw: Mapping[str, Any]) -> Dict[str, object]:
    problem, solution = raw.get("problem"), raw.get("solution")
    if not (isinstance(problem, str) and isinstance(solution, str)):
        raise BadRow(f"problem and solution should be texts; it has {', '.join(sorted(raw))}")
    answer = final_answer(solution)
    if answer is None:
        raise BadRow(f"no \\boxed{{...}} in its solution, which ends {solution[-40:]!r}")
    others = {key: value for key, value in raw.items() if key not in ("problem", "solution")}
    return {
        **others,
        **verl_row(
            data_source=DATA_SOURCE,
            prompt=[{"role": "user", "content": f"{problem} {_INSTRUCTION}"}],
            ability="math",
            truth=answer,
            extra={"split": split, "index": index},
        ),
    }
