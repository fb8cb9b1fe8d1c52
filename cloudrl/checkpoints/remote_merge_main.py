"""The merge on the head, and the upload of its result, as a Ray job.

`python3 -m cloudrl.checkpoints.remote_merge_main '{"step": 10, ...}'` runs under the image's Python, with its numpy,
for an upload its huggingface_hub, and without our other packages. Shards on the head's own disk are read there, others
through the agents. It says how far it is, and what came of it, in lines of JSON after a mark
(`cloudrl.checkpoints.head_jobs` reads them).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cloudrl.checkpoints.head_side import TOKEN, HeadSource, report, report_bytes
from cloudrl.checkpoints.merge import Merged, merge
from cloudrl.checkpoints.publishing import CARD, Publication, make_repository, remove_staging, upload
from cloudrl.checkpoints.saved_files import SavedFiles
from cloudrl.checkpoints.upload_progress import upload_progress
from cloudrl.errors import CheckpointError, CloudrlError, ConnectionFailed
from cloudrl.options.merge import MergeOptions
from cloudrl.saves.inventory import LIST_CHECKPOINTS, Checkpoint
from cloudrl.shards.signals import undone_by_signals
from cloudrl.units import duration_text, size_text

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_PAUSES_S = (10.0, 30.0, 60.0, 120.0)
"""Between attempts to upload. More would be paid for with all GPUs."""


@dataclass(frozen=True)
class HeadMerge:
    """What is to be merged, of the checkpoints of the agent's cluster, and how; paths are those of the head.

    With a `publication`, the folder is uploaded and removed; one that an earlier job has left there is taken as it is.
    """

    agent_url: str
    run: str
    step: int
    role: str
    world_size: int | None
    path: str
    options: MergeOptions
    give_up_s: float
    first_adapter: str | None = None
    publication: Publication | None = None


def main(wanted: HeadMerge) -> int:
    """Merge, publish if that is wanted, and say so; the exit code is that of the error."""
    try:
        if wanted.publication is None:
            report(merged=_merge(wanted).to_json())
        else:
            report(published=_publish(wanted, wanted.publication))
    except CloudrlError as error:
        report(error=error.message, hint=error.hint)
        return error.exit_code
    return 0


def _publish(wanted: HeadMerge, publication: Publication) -> str:
    """The URL. The Hub refuses before anything is merged."""
    from huggingface_hub import HfApi

    api, folder = HfApi(), Path(wanted.path)
    url = make_repository(publication, api)
    try:
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            _merge(wanted)
        (folder / CARD).write_text(publication.card, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder} cannot be written: {error.strerror or error}") from error
    _send(publication, folder, api)
    remove_staging(folder, url)
    return url


def _send(publication: Publication, folder: Path, api: HfApi, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Upload, again after a pause where the Hub does not answer: no client may be there to repeat the command."""
    size_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    report(note=f"uploading {size_text(size_bytes)} to {publication.repo}")
    for pause_s in (*_PAUSES_S, None):
        try:
            with upload_progress(size_bytes, lambda sent, total: report(sent=sent, total=total)):
                upload(publication, folder, api)
        except CloudrlError as failure:
            if pause_s is None or not isinstance(failure, ConnectionFailed):
                report(note=f"the merged model stays in {folder} of the head, for the next push of it")
                raise
            report(note=f"{failure.message}. Next attempt in {duration_text(pause_s)}")
            sleep(pause_s)
        else:
            return


def _merge(wanted: HeadMerge) -> Merged:
    source = HeadSource(wanted.agent_url, os.environ[TOKEN], wanted.give_up_s)
    save = SavedFiles(_find(source, wanted), source.open, wanted.options.base, wanted.first_adapter)
    return merge(save, Path(wanted.path), wanted.options, on_progress=report_bytes())


def _find(source: HeadSource, wanted: HeadMerge) -> Checkpoint:
    """What is to be merged, as all nodes say now.

    Raises:
        CheckpointError: It is not there any more.
        ConnectionFailed: A node stays silent: it may have newer copies than the others.
    """
    key = (wanted.run, wanted.step, wanted.role, wanted.world_size)
    for checkpoint in source.inventory().checkpoints:
        if (checkpoint.run, checkpoint.step, checkpoint.role, checkpoint.world_size) == key:
            return checkpoint
    raise CheckpointError(f"step {wanted.step} of {wanted.run} is not there any more", hint=LIST_CHECKPOINTS)


if __name__ == "__main__":
    with undone_by_signals():  # the end of a Ray job is SIGTERM
        value = json.loads(sys.argv[1])
        published = value.get("publication")
        given = {"options": MergeOptions(**value["options"]), "publication": published and Publication(**published)}
        sys.exit(main(HeadMerge(**{**value, **given})))
