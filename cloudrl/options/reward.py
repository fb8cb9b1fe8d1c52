"""The options of `cloudrl reward test`."""

from collections.abc import Mapping
from typing import Annotated, TypedDict

from cloudrl.options.declaration import Option
from cloudrl.options.importing import NO_SANDBOX
from cloudrl.options.job import ENV


class RewardTestOptions(TypedDict, total=False):
    """What a reward function is tried with: keywords of `cloudrl.reward_test`."""

    data: Annotated[str, Option("Rows to score, as a job's --data: parquet, jsonl, csv, or a folder.", "PATH")]
    answers: Annotated[
        tuple[str, ...],
        Option("Score this answer on each row, too. Repeatable.", "TEXT", ("--answer",), typed=list[str], read=tuple),
    ]
    working_dir: Annotated[str, Option("Folder to upload; the job starts in it.", "DIR")]
    env: Annotated[Mapping[str, str], ENV]
    isolated: Annotated[bool, NO_SANDBOX]
