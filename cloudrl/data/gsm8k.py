"""The `gsm8k` data set: openai/gsm8k, grade-school word problems, in the rows that verl's own script makes.

Columns, prompt and the extraction of the answer are those of verl 0.9.0, examples/data_preprocess/gsm8k.py
(the same on its main branch of August 2026). The data source keeps its name, by which verl picks its reward
function (verl 0.9.1, utils/reward_score/__init__.py). Standard library only at import time: the download
takes `datasets`, the files take pyarrow.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from cloudrl.data.parquet import write_parquet
from cloudrl.errors import ConnectionFailed, InputError

if TYPE_CHECKING:
    from typing import Any, Iterable, Mapping

DATA_SOURCE = "openai/gsm8k"
SPLITS = ("train", "test")

_INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
_FINAL_ANSWER = re.compile(r"#### (-?[0-9.,]+)")


def prepare(folder: str | Path, *, source: str | Path | None = None) -> dict[str, str]:
    """Write train.parquet and test.parquet, in the columns that verl reads.

    Both splits are read and checked before the first file is written.

    Args:
        folder: Where to write; made if need be.
        source: A folder of the raw rows (`question`, `answer`), as `train.jsonl` or `train.parquet` and the
            same for `test`; a copy of the Hub's repository will do (`main/train-00000-of-00001.parquet`).
            None downloads them, or takes them from the cache of `datasets`.

    Returns:
        The absolute paths by split: `train` and `test`.

    Raises:
        ConnectionFailed: The download failed; the message is one line and says what to look at.
        InputError: A split is missing or empty, or a row lacks its question or its final answer.
    """
    raw = _download() if source is None else _read(Path(source).expanduser())
    rows = {split: _rows(split, raw[split]) for split in SPLITS}
    folder = Path(folder).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        write_parquet(folder / f"{split}.parquet", rows[split])
    return {split: str(folder / f"{split}.parquet") for split in SPLITS}


def final_answer(answer: str) -> str | None:
    """The number after the first "#### ", without its thousands separators; None where there is none."""
    found = _FINAL_ANSWER.search(answer)
    return found[1].replace(",", "") if found else None


def _rows(split: str, raw: Iterable[Mapping[str, Any]]) -> list[dict[str, object]]:
    rows = [_row(split, index, each) for index, each in enumerate(raw)]
    if not rows:
        raise InputError(f"gsm8k {split}: there are no rows")
    return rows


def _row(split: str, index: int, raw: Mapping[str, Any]) -> dict[str, object]:
    where = f"gsm8k {split} row {index}"
    question, answer = raw.get("question"), raw.get("answer")
    if not (isinstance(question, str) and isinstance(answer, str)):
        raise InputError(f"{where}: question and answer should be texts; it has {', '.join(sorted(raw))}")
    solution = final_answer(answer)
    if solution is None:
        raise InputError(f"{where}: no '#### <number>' in its answer, which ends {answer[-40:]!r}")
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": f"{question} {_INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": solution},
        "extra_info": {"split": split, "index": index, "answer": answer, "question": question},
    }


def _download() -> Mapping[str, Iterable[Mapping[str, Any]]]:
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        raw: Mapping[str, Iterable[Mapping[str, Any]]] = datasets.load_dataset(DATA_SOURCE, "main")
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        hub = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        reason = " ".join(str(error).split())[:160]
        # one line, the remedy in it: the agent quotes the last line that its child wrote
        raise ConnectionFailed(
            f"data set gsm8k: {DATA_SOURCE} could not be downloaded from {hub} ({reason}). Does the node "
            "reach it? Set HF_ENDPOINT for a mirror, HF_TOKEN if it refuses, HF_HUB_OFFLINE=0 if that is set"
        ) from error
    return raw


def _read(source: Path) -> Mapping[str, Iterable[Mapping[str, Any]]]:
    return {split: _read_file(_find(source, split)) for split in SPLITS}


def _find(source: Path, split: str) -> Path:
    names = (f"{split}.jsonl", f"{split}.parquet", f"{split}-00000-of-00001.parquet")
    for path in (folder / name for folder in (source, source / "main") for name in names):
        if path.is_file():
            return path
    raise InputError(f"{source} has no {split} split of gsm8k: none of {', '.join(names)}, there or in main/")


def _read_file(path: Path) -> list[Mapping[str, Any]]:
    if path.suffix == ".parquet":
        import pyarrow.parquet

        rows: list[Mapping[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
        return rows
    with path.open(encoding="utf-8") as file:
        return [_parse(path, number, line) for number, line in enumerate(file, start=1) if line.strip()]


def _parse(path: Path, number: int, line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"{path}, line {number}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise InputError(f"{path}, line {number}: a row should be a mapping, not {line.strip()[:40]!r}")
    return row
