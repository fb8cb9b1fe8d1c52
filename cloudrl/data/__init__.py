"""Data sets as parquet files in verl's columns. Standard library only at import time.

request     what is asked for, as one `--data` argument carries it, and which built-in data set that is
            (`cloudrl.protocol.data_sets` lists them)
addition, capitals, gsm8k, math, nq_search, nq_search_tool, generic    one kind of data set each: raw rows -> verl's
files, hub  where raw rows come from
fields, rows                                 choosing columns; numbering rows
parquet     rows -> train.parquet and test.parquet, both or none, and lines that say how far it is
rewards     which of verl's reward functions scores a data source
"""

from pathlib import Path
from typing import Callable, Dict, Optional, Union

from cloudrl.data.parquet import silent
from cloudrl.data.request import built_in, parse_request


def prepare(
    text: str,
    folder: Union[str, Path],
    *,
    say: Callable[[str], None] = silent,
    on_choice: Optional[Callable[[str], None]] = None,
) -> Dict[str, str]:
    """Write a data set's train.parquet and test.parquet into a folder, which is made if need be.

    The files appear whole and together or not at all, and a second call writes the same bytes again.

    Args:
        text: A `--data` argument: a built-in name, `owner/name` on the Hub, a path, or the JSON of a
            `cloudrl.spec.DataSet`.
        folder: Where to write.
        say: Is called with lines about choices and progress.
        on_choice: Is called with what was taken for what, instead of `say`. A built-in data set has nothing to choose.

    Returns:
        The absolute paths by split: `train` and `test`.

    Raises:
        InputError: For an unknown name, a place that is not there, or rows that cannot be used.
        ConnectionFailed: The Hub could not be reached.
    """
    request = parse_request(text)
    data_set = built_in(request)
    if data_set is None:
        from cloudrl.data.generic import prepare as prepare_generic

        return prepare_generic(folder, request, say=say, on_choice=on_choice)
    source = {"source": request.place} if data_set.hub_id and request.place != data_set.name else {}
    paths: Dict[str, str] = data_set.load().prepare(folder, say=say, **source)
    return paths
