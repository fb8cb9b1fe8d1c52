"""Any other data set: files, or something on the Hub, by the names of its fields.

The rows have verl's columns (verl 0.9.0, examples/data_preprocess). verl picks the reward function by the data
source; for one that it does not know, `default_compute_score` of verl 0.9.1 raises NotImplementedError, so that
such a job needs a reward function of its own (`cloudrl.data.rewards`). Standard library only at import time.
"""

import random
from collections.abc import Sized
from itertools import chain
from pathlib import Path, PurePath
from typing import AbstractSet, Any, Callable, Dict, Iterable, Iterator, Mapping, Optional, Tuple, Union

from cloudrl.data.fields import answer_text, find_fields, messages, value_at
from cloudrl.data.parquet import silent, write_splits
from cloudrl.data.request import Request, is_hub_id, is_path
from cloudrl.data.rewards import reward_of
from cloudrl.data.rows import BadRow, Skipped, make_rows, open_raw, verl_row
from cloudrl.errors import InputError, did_you_mean

_ABILITY = "general"  # verl's scripts name a field of knowledge; verl itself does not read it
_ROWS_HINT = """A line of it is, for example: {"question": "What is 1 + 1?", "answer": "2"}"""
BAD_ROW_HINT = "skip_bad=True (--skip-bad) leaves such rows out"
_TEST_SPLITS = ("test", "validation", "valid", "val", "dev", "eval")
_HELD_OUT_SHARE, _HELD_OUT_MOST = 20, 1000
"""Without a test split and without `test_rows`: one row in 20 is held out, and not more than 1000."""


def prepare(
    folder: Union[str, Path],
    request: Request,
    *,
    say: Callable[[str], None] = silent,
    on_choice: Optional[Callable[[str], None]] = None,
) -> Dict[str, str]:
    """Write train.parquet and test.parquet, in the columns that verl reads.

    Args:
        folder: Where to write; made if need be.
        request: Where the rows are, and which of their fields to take.
        say: Is called with lines about choices and progress.
        on_choice: Is called with what was taken for what, instead of `say`.

    Returns:
        The absolute paths by split: `train` and `test`.

    Raises:
        ConnectionFailed: The download failed.
        InputError: A place, a split or a field is not there, or a row has an empty prompt or answer.
    """
    tables = open_raw(request.name, request.place, request.config, say=say)
    train, test = _choose_splits(request, tables)
    first = next(iter(tables[train]), None)
    if first is None:
        raise InputError(f"data set {request.name}: there are no rows in {train}", hint=_ROWS_HINT)
    prompt, answer = find_fields(request.name, first, request.prompt_field, request.answer_field)
    (on_choice or say)(
        f"{request.name}: prompt from {prompt!r}, answer from {answer!r}; training rows from {train!r}, "
        f"test rows {f'from {test!r}' if test else 'held out of them'}"
    )
    if reward_of(data_source(request)) is None:
        say(
            f"note: verl has no reward function for data source {data_source(request)!r} (NotImplementedError at the "
            "first step): give your own in reward.custom_reward_function.path, or a data_source that verl knows"
        )
    skipped = Skipped()
    rows = _rows(request, tables, (train, test), (prompt, answer), skipped)
    paths = write_splits(request.name, folder, rows, say=say)
    if skipped.count:
        say(f"{request.name}: {skipped.count:,} rows left out; the first: {skipped.first}")
    return paths


def data_source(request: Request) -> str:
    """What the column of that name says: as asked for, else the Hub id, else the name (of a path, its stem)."""
    if request.data_source:
        return request.data_source
    if is_hub_id(request.place) and not is_path(request.place):
        return request.place
    return PurePath(request.name).stem if is_path(request.name) else request.name


def _truth(source: str, answer: Any) -> object:
    """The right answer, or for exact match (verl 0.9.1, utils/reward_score/search_r1_like_qa_em.py) all right ones."""
    if reward_of(source) != "search_r1_like_qa_em":
        return answer_text(answer)
    answers = answer if isinstance(answer, list) else [answer]
    if not answers:
        raise BadRow("its list of answers is empty")
    return {"target": [answer_text(answer) for answer in answers]}


def _choose_splits(request: Request, names: Iterable[str]) -> Tuple[str, Optional[str]]:
    """The splits to train and to test on, as asked for or by their usual names; without one to test on it is None.

    Raises:
        InputError: The data set has no such split, or it is not clear which one to train on.
    """
    has = list(names)
    train = request.split or ("train" if "train" in has else has[0] if len(has) == 1 else None)
    if train is None:
        raise InputError(
            f"data set {request.name}: which split is for training? It has {', '.join(has)}",
            hint=f"Say it: split={has[0]!r} (--split {has[0]})",
        )
    test = request.test_split
    for option, split in (("split", train), ("test_split", test)):
        if split is not None and split not in has:
            raise InputError(
                f"data set {request.name}: {option} {split!r} is not there{did_you_mean(split, has)}",
                hint=f"It has {', '.join(has)}",
            )
    if test is None and request.test_rows is None:
        test = next((split for split in _TEST_SPLITS if split in has and split != train), None)
    return train, test


def _held_out(request: Request, rows: int) -> AbstractSet[int]:
    """Which of so many usable rows are for testing: the same ones each time.

    Raises:
        InputError: So many would leave nothing to train on.
    """
    wanted = request.test_rows or max(1, min(_HELD_OUT_MOST, rows // _HELD_OUT_SHARE))
    if wanted >= rows:
        raise InputError(
            f"data set {request.name}: test_rows {wanted} of {rows} rows leaves none to train on",
            hint=f"At most test_rows={rows - 1}" if rows > 1 else None,
        )
    return set(random.Random(0).sample(range(rows), wanted))  # noqa: S311 - a data set is not a secret


def _rows(
    request: Request,
    tables: Mapping[str, Iterable[Mapping[str, Any]]],
    splits: Tuple[str, Optional[str]],
    fields: Tuple[str, str],
    skipped: Skipped,
) -> Iterator[Tuple[str, Mapping[str, object]]]:
    (train, test), (prompt_field, answer_field) = splits, fields
    source = data_source(request)

    def make(split: str, number: int, raw: Mapping[str, Any]) -> Dict[str, object]:
        return verl_row(
            data_source=source,
            prompt=messages(value_at(raw, prompt_field), request.system),
            ability=_ABILITY,
            truth=_truth(source, value_at(raw, answer_field)),
            extra={"split": split, "index": number},
        )

    def rows_of(
        table: str, split: str, held_out: AbstractSet[int] = frozenset(), skipped: Skipped = skipped
    ) -> Iterator[Tuple[str, Dict[str, object]]]:
        where, skip = f"{request.name} {table}", skipped if request.skip_bad else None
        return make_rows(where, tables[table], make, split, held_out=held_out, skipped=skip, hint=BAD_ROW_HINT)

    if test is not None:
        return chain(rows_of(train, "train"), rows_of(test, "test"))
    table = tables[train]
    if request.skip_bad or not isinstance(table, Sized):
        count = sum(1 for _ in rows_of(train, "train", skipped=Skipped()))
    else:
        count = len(table)
    return rows_of(train, "train", _held_out(request, count))
