"""Whether verl can train on the data files of this machine: their columns, and rows for a batch."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from cloudrl.data.rewards import reward_of
from cloudrl.jobs.data_files import COLUMN_KEYS, columns_read, rows_of
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.findings import Finding
from cloudrl.protocol.data_sets import BUILT_IN
from cloudrl.spec.hydra import integer, items
from cloudrl.verl import keys
from cloudrl.verl.keys import brings_scores
from cloudrl.verl.releases import RELEASE
from cloudrl.verl.setting import BATCH

_SHOWN = 3


def check_data(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: refuse files of this machine that verl could not read; one that is not here is left to the nodes."""
    unread = [name for name, table in snapshot.tables.items() if not table.is_read]
    if unread:
        return draft.skipping(
            f"the columns and rows of {', '.join(unread)} (too large to read here, or this Python has no pyarrow)"
        )
    if keys.MAIN not in draft.job.entrypoint or "data.custom_cls.path" in draft.values:
        return draft
    if not snapshot.tables:
        return _check_built_in(draft)
    names = {key: _files(draft, key) for key in (keys.TRAIN_FILES, keys.VAL_FILES)}
    draft = draft.refused(
        *_columns(draft, snapshot, tuple(dict.fromkeys((*names[keys.TRAIN_FILES], *names[keys.VAL_FILES]))))
    )
    draft = _check_sources(draft, snapshot, names[keys.TRAIN_FILES] + names[keys.VAL_FILES])
    draft = _check_lengths(draft, snapshot)
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


def _check_built_in(draft: JobDraft) -> JobDraft:
    """The rows of data sets on the nodes, where all are built in; a source of one's own may have more of them."""
    rows = {draft.cluster.data.get(name, {}).get("train"): known.rows["train"] for name, known in BUILT_IN.items()}
    counts = [rows.get(file) for file in items(draft.arguments.get(keys.TRAIN_FILES, ""))]
    known, batch = [count for count in counts if count is not None], integer(draft.values.get(BATCH, "1024"))
    if not known or len(known) < len(counts) or batch is None or sum(known) >= batch:
        return draft
    return draft.warning(
        f"{BATCH}={batch}, and the training data has {sum(known)} rows: verl drops a batch that is not full, and has "
        f"no other; {BATCH} has to be smaller"
    )


def _check_sources(draft: JobDraft, snapshot: Snapshot, names: tuple[str, ...]) -> JobDraft:
    """For rows of a source that it does not know, verl raises NotImplementedError in step 1 (data/rewards.py)."""
    cluster = draft.cluster
    if any(map(brings_scores, draft.values)):
        return draft
    for name in dict.fromkeys(names):
        sources = snapshot.tables[name].sources if name in snapshot.tables else ()
        unknown = [source for source in sources if reward_of(source) is None]
        if not unknown:
            continue
        shown = ", ".join(map(repr, unknown[:_SHOWN])) + (", ..." if len(unknown) > _SHOWN else "")
        text = f"{name}: verl has no reward function for data source {shown}, and the job names none"
        if snapshot.files.verl_fork is not None or cluster.verl_version != RELEASE.verl:
            return draft.warning(f"{text}; NotImplementedError in step 1 unless your verl has one")
        return draft.refused(Finding(text, "Give your own: --reward ./reward.py"))
    return draft


def _check_lengths(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Prompts that verl shortens or drops, without an error.

    Source: verl 0.9.1, experimental/agent_loop/agent_loop.py: _cap_text_prompt_length; utils/dataset/rl_dataset.py:
    maybe_filter_out_long_prompts.
    """
    prompts, limit = snapshot.prompts, integer(draft.values.get(keys.PROMPT_LENGTH, "512"))
    tokens = prompts.tokens if prompts is not None else ()
    if prompts is None or limit is None or not (over := sum(count > limit for count in tokens)):
        return draft
    is_filtered = draft.values.get("data.filter_overlong_prompts", "").lower() == "true"
    what = "leaves them out" if is_filtered else "cuts off their beginning"
    return draft.warning(
        f"{over} of the first {len(tokens)} prompts of {prompts.name} have more tokens than "
        f"{keys.PROMPT_LENGTH}={limit}, the longest {max(tokens)} and a chat template: verl {what}"
    )


def training_rows(draft: JobDraft, snapshot: Snapshot) -> int | None:
    """The rows of the training files; None if one of them is not here."""
    return rows_of(_files(draft, keys.TRAIN_FILES), snapshot.tables)


def _files(draft: JobDraft, key: str) -> tuple[str, ...]:
    """The files of a key, by the names that the user has for them."""
    written = {upload.to: upload.text for upload in draft.uploads}
    return tuple(written.get(name, name) for name in items(draft.arguments.get(key, "")))


def _columns(draft: JobDraft, snapshot: Snapshot, names: tuple[str, ...]) -> Iterator[Finding]:
    wanted, values = columns_read(draft.values), draft.values
    for name in names:
        table = snapshot.tables.get(name)
        if table is None:
            continue
        if table.error:
            yield Finding(f"{name} {table.error}")
            continue
        missing = [column for column in wanted.names if column not in table.columns]
        own = [f"{key}={values[key]}" for key in COLUMN_KEYS if values.get(key) in missing]
        if missing and own and snapshot.files.at(name).is_converted:
            yield Finding(
                f"{name} has verl's own columns ({', '.join(table.columns)}), and not those of {' and '.join(own)}",
                " ".join(f"~{setting.partition('=')[0]}" for setting in own),
            )
        elif missing:
            yield Finding(
                f"{name} has no column {' and no '.join(map(repr, missing))} (it has: {', '.join(table.columns)})",
                f"Make it one that verl reads: cloudrl data prepare {shlex.quote(name)} --to ./prepared",
            )
        for column, what in table.malformed.items():
            yield Finding(
                f"{name}: column {column!r} {what}", f"cloudrl data prepare {shlex.quote(name)} --to ./prepared"
            )
