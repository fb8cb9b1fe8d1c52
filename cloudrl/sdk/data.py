"""Data sets, prepared on this machine as a node prepares them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudrl import data
from cloudrl.sdk.callbacks import Notice, OnProgress, silent
from cloudrl.sdk.cluster import absolute_data
from cloudrl.spec import DataSet


def prepare_data(
    fields: Mapping[str, Any], to: str | os.PathLike[str], *, on_progress: OnProgress = silent
) -> dict[str, str]:
    """Write train.parquet and test.parquet of a data set into a folder; returns their paths by split.

    Args:
        fields: of `cloudrl.DataSet`; `./x` is a path of this machine.
        to: the folder.
        on_progress: receives choices and progress.

    Raises:
        InputError: a field is wrong, the place is not there, or its rows cannot be used.
        ConnectionFailed: the Hub does not answer.
    """
    declared = DataSet.load(absolute_data(fields))
    return data.prepare(declared.argument(), Path(to), say=lambda text: on_progress(Notice(text)))
