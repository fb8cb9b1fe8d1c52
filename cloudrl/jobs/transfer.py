"""Files and secrets of a job on their way through the agents: sent once, taken up where it broke off, on every node."""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from cloudrl.errors import ConnectionFailed, InputError
from cloudrl.jobs.submission import Submission, Upload
from cloudrl.jobs.working_dir import Entry
from cloudrl.protocol.backoff import Attempts, Backoff, retry
from cloudrl.protocol.ranks import ranks_text
from cloudrl.protocol.report import Replica
from cloudrl.transport import AgentClient, Connection
from cloudrl.units import duration_text

_CHUNK_BYTES = 2**20
_BACKOFF = Backoff(first_s=1.0, longest_s=1.0, give_up_s=10.0)
_FEW = 4
"""Up to so many nodes, each finished transfer is reported by itself."""
_STANDS_STILL_S = 180.0
"""A node reports each 32 MiB; this long without any of it, at the slowest link that is worth using."""


def deliver(
    connection: Connection,
    submission: Submission,
    on_upload: Callable[[int, int], None],
    on_wait: Callable[[str], None],
) -> None:
    """Bring to every node what goes through the agents."""
    agent = connection.agent()
    items = [item for item in submission.uploads if item.by == "agents"]
    if agent is None or not (items or submission.secrets):
        return
    for item in items:
        send_files(agent, item, on_upload=on_upload)
    if submission.secrets:
        values = {name: value for name, value in submission.secrets.items() if value is not None}
        agent.put_secrets(submission.submission_id, values)
    for item in items:
        address = item.manifest.address
        wait_replicated(lambda address=address: agent.files_state(address)[1], item.text, on_wait=on_wait)  # type: ignore[misc]
    if submission.secrets:
        wait_replicated(lambda: agent.secrets_state(submission.submission_id), "secrets")


def send_files(
    agent: AgentClient,
    item: Upload,
    *,
    on_upload: Callable[[int, int], None] = lambda _done, _total: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Send what rank 0 has not got of a file or folder. A broken connection is taken up again.

    Raises:
        InputError: The disk of rank 0 has no room, or a file has changed since it was looked at.
        ConnectionFailed: the cluster does not answer, again and again.
    """
    manifest = item.manifest
    attempts = Attempts(_BACKOFF, clock=clock, sleep=sleep)
    here = agent.announce_files(manifest.address, manifest.to_json())

    def on_sent(before: int, sent_bytes: int) -> None:
        on_upload(before + sent_bytes, item.size_bytes)

    while (entry := _missing(item, here)) is not None:
        offset, before = here.get(entry.name, 0), sum(here.values())
        size = manifest.by_path[entry.name].size_bytes
        pieces = _pieces(entry, offset, size, partial(on_sent, before))
        try:
            here = agent.put_file(manifest.address, entry.name, pieces, offset=offset, size_bytes=size - offset)
        except ConnectionFailed as failure:
            attempts.failed(failure)
            here = retry(lambda: agent.files_state(manifest.address)[0], _BACKOFF, clock=clock, sleep=sleep)
        if sum(here.values()) > before:
            attempts.progress()


def wait_replicated(
    state: Callable[[], Mapping[int, Replica]],
    what: str,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    on_wait: Callable[[str], None] = lambda _sentence: None,
) -> None:
    """Wait until every node has something.

    Args:
        state: Asks rank 0 how far every rank is.
        what: What it is, for messages.
        clock: Seconds that never run backwards.
        sleep: Waits that many seconds.
        on_wait: Called with a sentence whenever another set of nodes is waited for, of many when half of them are done.

    Raises:
        InputError: A node cannot take it.
        ConnectionFailed: Nothing moves any more.
    """
    last: Mapping[int, Replica] = {}
    told: list[int] = []
    moved_at = clock()
    while True:
        nodes = state()
        refusing = [rank for rank, replica in nodes.items() if replica.error]
        if refusing:
            raise InputError(f"{what}: {ranks_text(refusing)} cannot take it: {nodes[refusing[0]].error}")
        waiting = [rank for rank, replica in nodes.items() if not replica.complete]
        if not waiting:
            return
        ranks = ranks_text(waiting)
        if waiting != told and (len(waiting) <= _FEW or 2 * len(waiting) <= len(told) or not told):
            told = waiting
            on_wait(f"{what}: waiting for {ranks}")
        if nodes != last:
            last, moved_at = dict(nodes), clock()
        elif clock() - moved_at > _STANDS_STILL_S:
            raise ConnectionFailed(
                f"{what}: nothing has come to {ranks} for {duration_text(_STANDS_STILL_S)}",
                hint="See: cloudrl status",
            )
        sleep(0.2)


def _missing(item: Upload, here: Mapping[str, int]) -> Entry | None:
    parts = item.manifest.by_path
    return next((entry for entry in item.entries if here.get(entry.name, 0) < parts[entry.name].size_bytes), None)


def _pieces(entry: Entry, offset: int, size_bytes: int, on_sent: Callable[[int], None]) -> Iterator[bytes]:
    at = offset
    while at < size_bytes:
        piece = _read(entry, at, min(_CHUNK_BYTES, size_bytes - at))
        if not piece:
            raise InputError(f"{entry.path} has become shorter while it was sent", hint="Submit again")
        yield piece
        at += len(piece)
        on_sent(at - offset)


def _read(entry: Entry, offset: int, size_bytes: int) -> bytes:
    """A piece of this machine's own file, whose errors are of the same class as those of a connection."""
    try:
        with entry.path.open("rb") as file:
            file.seek(offset)
            return file.read(size_bytes)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"{entry.path} cannot be read while it is sent: {reason}", hint="Submit again") from error
