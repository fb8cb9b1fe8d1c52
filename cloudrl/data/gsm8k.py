"""The `gsm8k` data set: openai/gsm8k, grade-school word problems, in the rows that verl's own script makes.

Columns, prompt and the extraction of the answer are those of verl 0.9.0, examples/data_preprocess/gsm8k.py
(the same on its main branch of August 2026). The data source keeps its name, by which verl picks its reward
function (verl 0.9.1, utils/reward_score/__init__.py). Standard library only at import time: the download
takes `datasets`, the files take pyarrow.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cloudrl.data.parquet import write_splits
from cloudrl.data.progress import silent
from cloudrl.data.raw import built_in_rows
from cloudrl.data.rows import BadRow, verl_row

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, Callable, Dict, Mapping, Optional, Union

DATA_SOURCE = "openai/gsm8k"

_CONFIG = "main"
_INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_FINAL_ANSWER = re.compile(r"#### (-?[0-9.,]+)")


def prepare(
    folder: Union[str, Path],
    *,
    source: Optional[Union[str, Path]] = None,
    say: Callable[[str], None] = silent,
) -> Dict[str, str]:
    """Write train.parquet and test.parquet, in the columns that verl reads.

    Args:
        folder: Where to write; made if need be.
        source: A folder of the raw rows (`question`, `answer`), as `train.jsonl` or `train.parquet` and the
            same for `test`; a copy of the Hub's repository will do (`main/train-00000-of-00001.parquet`), and
            so will the id of another one on the Hub. None downloads the original, or takes it from the cache of
            `datasets`.
        say: Is called with lines about the progress.

    Returns:
        The absolute paths by split: `train` and `test`.

    Raises:
        ConnectionFailed: The download failed; the message is one line and says what to look at.
        InputError: A split is missing or empty, or a row lacks its question or its final answer. Nothing is
            written then.
    """
    place = DATA_SOURCE if source is None else source
    return write_splits("gsm8k", folder, built_in_rows("gsm8k", place, _CONFIG, _row, say), say=say)


def final_answer(answer: str) -> Optional[str]:
    """The number after the first "#### ", without its thousands separators; None where there is none."""
    found = _FINAL_ANSWER.search(answer)
    return found[1].replace(",", "") if found else None


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
