"""The merge on the head, and the upload of its result, as a Ray job.

`python3 -m cloudrl.checkpoints.remote_merge_main '{"step": 10, ...}'` runs under the image's Python, with its numpy,
for an upload its huggingface_hub, and without our other packages. Shards on the head's own disk are read there, others
through the agents. It says how far it is, and what came of it, in lines of JSON after a mark
(`cloudrl.checkpoints.remote_merge` reads them).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudrl.checkpoints.merge import Merged, merge
from cloudrl.checkpoints.publishing import CARD, Publication, make_repository, remove_staging, upload
from cloudrl.checkpoints.remote import READ_TIMEOUT_S, RangeClient, RemoteShard
from cloudrl.checkpoints.saved_files import SavedFiles
from cloudrl.checkpoints.upload_progress import upload_progress
from cloudrl.errors import CheckpointError, CloudrlError, ConnectionFailed
from cloudrl.options.merge import MergeOptions
from cloudrl.protocol.backoff import Backoff, retry
from cloudrl.protocol.client import AgentClient
from cloudrl.saves.inventory import LIST_CHECKPOINTS, Checkpoint, Inventory
from cloudrl.saves.places import FileCopy
from cloudrl.saves.survey import cluster_inventory
from cloudrl.shards.signals import undone_by_signals
from cloudrl.shards.source import LocalShard, ShardSource
from cloudrl.units import duration_text, size_text

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MARK = "cloudrl-merge "
TOKEN = "CLOUDRL_AGENT_TOKEN"  # noqa: S105  the name of a variable
_REPORT_EVERY_S = 1.0
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
            _report(merged=_merge(wanted).to_json())
        else:
            _report(published=_publish(wanted, wanted.publication))
    except CloudrlError as error:
        _report(error=error.message, hint=error.hint)
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
    _report(note=f"uploading {size_text(size_bytes)} to {publication.repo}")
    for pause_s in (*_PAUSES_S, None):
        try:
            with upload_progress(size_bytes, lambda sent, total: _report(sent=sent, total=total)):
                upload(publication, folder, api)
        except CloudrlError as failure:
            if pause_s is None or not isinstance(failure, ConnectionFailed):
                _report(note=f"the merged model stays in {folder} of the head, for the next push of it")
                raise
            _report(note=f"{failure.message}. Next attempt in {duration_text(pause_s)}")
            sleep(pause_s)
        else:
            return


def _merge(wanted: HeadMerge) -> Merged:
    reported_at = 0.0

    def progress(done_bytes: int, total_bytes: int) -> None:
        nonlocal reported_at
        if done_bytes >= total_bytes or time.monotonic() - reported_at > _REPORT_EVERY_S:
            reported_at = time.monotonic()
            _report(done=done_bytes, total=total_bytes)

    def open_file(file: FileCopy) -> ShardSource:
        """From this disk if the head shares the folder, else from the node that has it."""
        if 0 in file.location.ranks:
            return LocalShard(Path(file.location.folder) / file.path, label=file.label)
        return RemoteShard(client, file)

    agent = AgentClient(wanted.agent_url, os.environ[TOKEN], timeout_s=READ_TIMEOUT_S)
    backoff = Backoff(give_up_s=wanted.give_up_s)
    client = RangeClient(agent, backoff=backoff, on_break=lambda sentence: _report(note=sentence))
    checkpoint = _find(agent, wanted, backoff)
    save = SavedFiles(checkpoint, open_file, wanted.options.base, wanted.first_adapter)
    return merge(save, Path(wanted.path), wanted.options, on_progress=progress)


def _find(
    agent: AgentClient,
    wanted: HeadMerge,
    backoff: Backoff | None = None,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Checkpoint:
    """What is to be merged, as all nodes say now; one that is silent for a moment is waited for.

    Raises:
        CheckpointError: It is not there any more.
        ConnectionFailed: A node stays silent: it may have newer copies than the others.
    """

    def ask() -> Inventory:
        inventory = cluster_inventory(agent.status().nodes, agent.inventory)
        inventory.refuse_silent("it may have newer files of this step", "Try again when it answers")
        return inventory

    inventory = retry(ask, backoff, on_break=lambda failure: _report(note=failure.message), sleep=sleep)
    key = (wanted.run, wanted.step, wanted.role, wanted.world_size)
    for checkpoint in inventory.checkpoints:
        if (checkpoint.run, checkpoint.step, checkpoint.role, checkpoint.world_size) == key:
            return checkpoint
    raise CheckpointError(f"step {wanted.step} of {wanted.run} is not there any more", hint=LIST_CHECKPOINTS)


def _report(**what: Any) -> None:
    sys.stdout.write(MARK + json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with undone_by_signals():  # the end of a Ray job is SIGTERM
        value = json.loads(sys.argv[1])
        published = value.get("publication")
        given = {"options": MergeOptions(**value["options"]), "publication": published and Publication(**published)}
        sys.exit(main(HeadMerge(**{**value, **given})))
