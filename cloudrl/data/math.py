r"""The `math` data set: Hendrycks' competition problems (MATH), in the rows that verl's own script makes.

Columns, prompt and the extraction of the answer are those of verl 0.9.0,
examples/data_preprocess/math_dataset.py (the same on its main branch of August 2026). That script keeps the
other columns of the raw rows (`level`, `type`) and puts them first, so they are kept here. Where it ends with an
assertion, because the last box is no `\boxed{...}`, the row is named here. Standard library only at import time:
the download takes `datasets`, the files take pyarrow.
"""

from functools import partial
from typing import Any, Dict, Mapping, Optional

from cloudrl.data.rows import BadRow, prepare_from_hub, verl_row

DATA_SOURCE = "DigitalLearningGmbH/MATH-lighteval"

_INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."
_OPEN, _SPACED = "\\boxed{", "\\boxed "


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


prepare = partial(prepare_from_hub, "math", DATA_SOURCE, None, _row)
