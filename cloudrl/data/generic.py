"""Any other data set: files, or something on the Hub, by the names of its fields.

The rows have verl's columns (verl 0.9.0, examples/data_preprocess). verl picks the reward function by the data
source; for one that it does not know, `default_compute_score` of verl 0.9.1 raises NotImplementedError, so that
such a job needs a reward function of its own (`cloudrl.data.rewards`). Standard library only at import time.
"""

from __future__ import annotations

from collections.abc import Sized
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING

from cloudrl.data.fields import answer_text, find_fields, look, messages
from cloudrl.data.parquet import write_splits
from cloudrl.data.progress import silent
from cloudrl.data.raw import open_raw
from cloudrl.data.request import is_hub_id, is_path
from cloudrl.data.rewards import notice
from cloudrl.data.rows import Skipped, made, verl_row
from cloudrl.data.splits import choose, held_out
from cloudrl.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, Callable, Dict, Iterable, Iterator, Mapping, Tuple, Union

    from cloudrl.data.request import Request
    from cloudrl.data.splits import Splits

_ABILITY = "general"  # verl's scripts name a field of knowledge; verl itself does not read it
_BAD_ROW = "skip_bad=True (--skip-bad) leaves such rows out"


def prepare(
    folder: Union[str, Path], request: Request, *, say: Callable[[str], None] = silent
) -> Dict[str, str]:
    """Write train.parquet and test.parquet, in the columns that verl reads.

    Args:
        folder: Where to write; made if need be.
        request: Where the rows are, and which of their fields to take.
        say: Is called with lines about choices and progress.

    Returns:
        The absolute paths by split: `train` and `test`.

    Raises:
        ConnectionFailed: The download failed.
        InputError: A place, a split or a field is not there, or a row has an empty prompt or answer.
    """
    tables = open_raw(request.name, request.place, request.config, say=say)
    splits = choose(request, tables)
    first = next(iter(tables[splits.train]), None)
    if first is None:
        raise InputError(f"data set {request.name}: there are no rows in {splits.train}")
    fields = find_fields(request.name, first, request.prompt_field, request.answer_field)
    say(f"{request.name}: prompt from {fields[0]!r}, answer from {fields[1]!r}; {_where(splits)}")
    if notice(data_source(request)):
        say(f"note: {notice(data_source(request))}")
    skipped = Skipped()
    paths = write_splits(request.name, folder, _rows(request, tables, splits, fields, skipped), say=say)
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


def _where(splits: Splits) -> str:
    return f"training rows from {splits.train!r}, test rows " + (
        f"from {splits.test!r}" if splits.test else "held out of them"
    )


def _rows(
    request: Request,
    tables: Mapping[str, Iterable[Mapping[str, Any]]],
    splits: Splits,
    fields: Tuple[str, str],
    skipped: Skipped,
) -> Iterator[Tuple[str, Mapping[str, object]]]:
    prompt_field, answer_field = fields
    source = data_source(request)

    def make(split: str, number: int, raw: Mapping[str, Any]) -> Dict[str, object]:
        return verl_row(
            data_source=source,
            prompt=messages(look(raw, prompt_field), request.system),
            ability=_ABILITY,
            truth=answer_text(look(raw, answer_field)),
            extra={"split": split, "index": number},
        )

    def of(
        split: str, to: Callable[[int], str], left_out: Skipped = skipped
    ) -> Iterator[Tuple[str, Dict[str, object]]]:
        where, skip = f"{request.name} {split}", left_out if request.skip_bad else None
        return made(where, tables[split], make, to=to, skipped=skip, hint=_BAD_ROW)

    if splits.test is not None:
        return chain(of(splits.train, lambda _: "train"), of(splits.test, lambda _: "test"))
    table = tables[splits.train]
    if request.skip_bad or not isinstance(table, Sized):
        count = sum(1 for _ in of(splits.train, lambda _: "train", Skipped()))
    else:
        count = len(table)
    testing = held_out(request, count)
    return of(splits.train, lambda number: "test" if number in testing else "train")
