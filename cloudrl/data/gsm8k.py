"""The `gsm8k` data set: openai/gsm8k, grade-school word problems, in the rows that verl's own script makes.

Columns, prompt and the extraction of the answer are those of verl 0.9.0, examples/data_preprocess/gsm8k.py
(the same on its main branch of August 2026). The data source keeps its name, by which verl picks its reward
function (verl 0.9.1, utils/reward_score/__init__.py). Standard library only at import time: the download
takes `datasets`, the files take pyarrow.
"""

import re
from functools import partial
from typing import Any, Dict, Mapping, Optional

from cloudrl.data.rows import BadRow, prepare_from_hub, verl_row

DATA_SOURCE = "openai/gsm8k"

_INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_FINAL_ANSWER = re.compile(r"#### (-?[0-9.,]+)")


def final_answer(answer: str) -> Optional[str]:
    """The number after the first "#### ", without its thousands separators; None for an answer without one."""
    match = _FINAL_ANSWER.search(answer)
    return match[1].replace(",", "") if match else None


def _row(split: str, index: int, raw: Mapping[str, Any]) -> Dict[str, object]:
    question, answer = raw.get("question"), raw.get("answer")
    if not (isinstance(question, str) and isinstance(answer, str)):
        raise BadRow(f"question and answer should be texts; it has {', '.join(sorted(raw))}")
    solution = final_answer(answer)
    if solution is None:
        raise BadRow(f"no '#### <number>' in its answer, which ends {answer[-40:]!r}")
    return verl_row(
        data_source=DATA_SOURCE,
        prompt=[{"role": "user", "content": f"{question} {_INSTRUCTION}"}],
        ability="math",
        truth=solution,
        extra={"split": split, "index": index, "answer": answer, "question": question},
    )


prepare = partial(prepare_from_hub, "gsm8k", DATA_SOURCE, "main", _row)
