"""Whether verl can train on the data files of this machine: their columns, and rows for a batch."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from cloudrl.jobs.data_files import rows_of
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.findings import Finding
from cloudrl.spec.hydra import integer, items
from cloudrl.verl import keys
from cloudrl.verl.setting import BATCH

_REWARD_COLUMN = "reward_model"
_KEYS = {"data.prompt_key": "prompt", "data.reward_fn_key": "data_source"}
"""The keys that name a column, with their defaults (verl 0.9.1, trainer/config/data/legacy_data.yaml)."""


def check_data(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: refuse files of this machine that verl could not read; one that is not here is left to the nodes."""
    unread = [name for name, table in snapshot.tables.items() if not table.is_read]
    if unread:
        return draft.skipping(f"the columns and rows of {', '.join(unread)} (this Python has no pyarrow)")
    if not snapshot.tables or keys.MAIN not in draft.job.entrypoint or "data.custom_cls.path" in draft.values:
        return draft
    names = {key: _files(draft, key) for key in (keys.TRAIN_FILES, keys.VAL_FILES)}
    draft = draft.refused(
        *_columns(draft, snapshot, tuple(dict.fromkeys((*names[keys.TRAIN_FILES], *names[keys.VAL_FILES]))))
    )
    rows, batch = rows_of(names[keys.TRAIN_FILES], snapshot.tables), integer(draft.values.get(BATCH, "1024"))
    if rows is not None and batch is not None and rows < batch:
        draft = draft.refused(
            Finding(
                f"{BATCH}={batch}, and the training files have {rows} row{'' if rows == 1 else 's'}: verl drops a "
                "batch that is not full, and has no other",
                f"{BATCH}={rows}" if rows else "",
            )
        )
    if rows_of(names[keys.VAL_FILES], snapshot.tables) == 0:
        draft = draft.warning(f"{keys.VAL_FILES} has no rows: nothing is validated")
    return draft


def training_rows(draft: JobDraft, snapshot: Snapshot) -> int | None:
    """The rows of the training files; None if one of them is not here."""
    return rows_of(_files(draft, keys.TRAIN_FILES), snapshot.tables)


def _files(draft: JobDraft, key: str) -> tuple[str, ...]:
    """The files of a key, by the names that the user has for them."""
    written = {upload.to: upload.text for upload in draft.uploads}
    return tuple(written.get(name, name) for name in items(draft.arguments.get(key, "")))


def _columns(draft: JobDraft, snapshot: Snapshot, names: tuple[str, ...]) -> Iterator[Finding]:
    """utils/dataset/rl_dataset.py: RLHFDataset; experimental/reward_loop/reward_manager/naive.py: run_single."""
    prompt, source = (draft.values.get(key, column) for key, column in _KEYS.items())
    scores_itself = any(key.removeprefix("reward.").startswith("reward_manager.") for key in draft.values)
    wanted = (prompt,) if scores_itself else (prompt, source, _REWARD_COLUMN)
    for name in names:
        table = snapshot.tables.get(name)
        if table is None:
            continue
        if table.error:
            yield Finding(f"{name} is not a parquet file: {table.error}")
            continue
        missing = [column for column in wanted if column not in table.columns]
        if missing:
            yield Finding(
                f"{name} has no column {' and no '.join(map(repr, missing))} (it has: {', '.join(table.columns)})",
                f"Make it one that verl reads: cloudrl data prepare {shlex.quote(name)} --to ./prepared",
            )
