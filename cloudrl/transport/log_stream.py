"""A job's log as a stream of bytes that survives broken connections.

Position is counted in bytes of the file, so going on after a break neither loses nor doubles anything,
wherever the break fell. Two sources give bytes from an offset: our agent, which is asked for them, and Ray's
own log stream, which begins at the start and is skipped to the place. Lines are made afterwards.
"""

from __future__ import annotations

import codecs
import io
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Protocol, TypeAlias

from cloudrl.errors import ConnectionFailed, FailedError
from cloudrl.protocol.backoff import Attempts, Backoff
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.exchange import Response
from cloudrl.transport.ray_client import RayClient

_Arrived: TypeAlias = bytes | Exception
"""Bytes, or what ended the stream."""

_CHUNKS_AHEAD = 64
_LONGEST_LINE = 64 << 20
_POLL_S = (0.1, 2.0)
"""The shortest and the longest pause between two looks at a log that does not grow."""


class LogSource(Protocol):
    """Where the bytes of one log come from."""

    def read(self, offset: int, *, follow: bool) -> Generator[bytes]:
        """Bytes from `offset` to the present end; with `follow` on and on as they are written, `b""` after each pause.

        Raises:
            ConnectionFailed: the connection breaks.
        """


def follow_log(
    find_source: Callable[[], LogSource],
    is_over: Callable[[], bool],
    *,
    backoff: Backoff | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    on_break: Callable[[ConnectionFailed], None] = lambda _: None,
) -> Generator[bytes]:
    """Yield a log byte for byte, from its start until the job is over and everything was read.

    Args:
        find_source: Gives the log's source; asked again after a break, and for the rest.
        is_over: Whether the job has ended; asked whenever the log is silent.
        backoff: Pauses after a break, and when to give up.
        clock: Seconds that never run backwards.
        sleep: Waits that many seconds.
        on_break: Called with each failure that is going to be retried.

    Raises:
        ConnectionFailed: Nothing has answered for `backoff.give_up_s`.
        Unauthorized: The token is refused; trying again would not help.
        FailedError: The log has been replaced by a shorter one.
    """
    attempts, offset = Attempts(backoff, clock=clock, sleep=sleep), 0
    while True:
        try:
            with closing(_until_over(find_source, is_over, offset)) as chunks:
                for chunk in chunks:
                    attempts.progress()
                    offset += len(chunk)
                    if chunk:
                        yield chunk
        except ConnectionFailed as failure:
            attempts.failed(failure, on_break)
        else:
            return


def _until_over(find_source: Callable[[], LogSource], is_over: Callable[[], bool], offset: int) -> Generator[bytes]:
    """One attempt: stream until the job is over, then the rest. `b""` stands for an answer without bytes."""
    with closing(find_source().read(offset, follow=True)) as stream:
        for chunk in stream:
            if chunk:
                offset += len(chunk)
            elif is_over():
                break
            yield chunk
    yield from find_source().read(offset, follow=False)  # by now it is known where the driver has run


@dataclass(frozen=True)
class AgentLog:
    """The log as our agent serves it, piece by piece."""

    agent: AgentClient
    submission_id: str
    sleep: Callable[[float], None] = time.sleep

    def read(self, offset: int, *, follow: bool) -> Generator[bytes]:
        """See `LogSource.read`."""
        looks = Attempts(Backoff(*_POLL_S), sleep=self.sleep)
        while (chunk := self._read(offset)) or follow:
            offset += len(chunk)
            yield chunk
            if chunk:
                looks.progress()
            else:
                looks.pause()

    def _read(self, offset: int) -> bytes:
        answer = self.agent.job_log(self.submission_id, offset)
        if answer is None:
            return b""
        chunk, size = answer
        if size < offset:
            raise FailedError(
                f"the log of {self.submission_id} has {size} bytes, and {offset} were read before: "
                "it was replaced, so this is another cluster than at the start",
                hint="See what runs there now: cloudrl jobs list",
            )
        return chunk


@dataclass(frozen=True)
class RayLog:
    """The log as Ray's dashboard serves it, for clusters without our agent.

    The driver's node holds the file. Until it is known there is nothing to read.
    """

    ray: RayClient
    submission_id: str
    poll_s: tuple[float, float] = _POLL_S
    sleep: Callable[[float], None] = time.sleep

    def read(self, offset: int, *, follow: bool) -> Generator[bytes]:
        """See `LogSource.read`."""
        looks = Attempts(Backoff(*self.poll_s), sleep=self.sleep)
        while (job := self.ray.get_job(self.submission_id)).driver_node_id is None:
            if not follow:
                return
            yield b""
            looks.pause()
        opener = partial(self.ray.open_log, job.driver_node_id, job.log_name, follow=follow)
        if not follow:
            with opener() as response:
                yield from _skip(iter(response.stream.read1, b""), offset)
            return
        with closing(_ReadAhead(opener)) as ahead:
            ahead.next(None)  # until it is open: no silence counts before that, or it would never give up
            yield from _skip(_chunks_or_silence(ahead, *self.poll_s), offset)


def choose_log(
    ray: RayClient, agent: AgentClient | None, submission_id: str, sleep: Callable[[float], None] = time.sleep
) -> LogSource:
    """The log from whoever has it: our agent if the driver runs on the head, as it usually does, else Ray."""
    if agent is not None:
        place = ray.get_job(submission_id).driver_node_id
        if place is None or all(node.is_head or node.node_id != place for node in ray.nodes()):
            return AgentLog(agent, submission_id, sleep=sleep)
    return RayLog(ray, submission_id, sleep=sleep)


def _skip(chunks: Iterable[bytes], count: int) -> Generator[bytes]:
    """Leave out the first `count` bytes; silence (`b""`) stays."""
    for chunk in chunks:
        rest = chunk[count:]
        count = max(0, count - len(chunk))
        if rest or not chunk:
            yield rest


def _chunks_or_silence(ahead: _ReadAhead, shortest_s: float, longest_s: float) -> Generator[bytes]:
    """What arrives, and `b""` after each pause without anything."""
    pause_s = shortest_s
    while True:
        chunk = ahead.next(pause_s)
        yield chunk
        pause_s = shortest_s if chunk else min(longest_s, 2 * pause_s)


class _ReadAhead:
    """An open log, read by a thread that keeps the connection to itself.

    A read that times out would cost the connection, and Ray then sends the whole log again; so a thread reads, and
    ends when the connection is shut down from here.

    Between the two are a `SimpleQueue` of what came and one of the room that is left. Ctrl-C amid a call of
    `queue.Queue` can leave its lock taken for good; these are one C call each.
    """

    def __init__(self, opener: Callable[[], Response]) -> None:
        self._opener = opener
        self._arrived: queue.SimpleQueue[_Arrived] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(_CHUNKS_AHEAD):
            self._room.put(None)
        self._response: Response | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, daemon=True, name="cloudrl-log")
        self._thread.start()

    def next(self, silence_s: float | None) -> bytes:
        """The next bytes; `b""` when none have come for that many seconds, and first of all when it is open.

        Raises:
            ConnectionFailed: it could not be opened, the stream broke, or Ray ended it.
        """
        try:
            item = self._arrived.get(timeout=silence_s)
        except queue.Empty:
            return b""
        if isinstance(item, Exception):
            raise item
        self._room.put(None)
        return item

    def close(self) -> None:
        """End the thread; one that does not end within a second dies with this process."""
        self._is_closed = True
        self._room.put(None)
        if self._response is not None:
            self._response.stream.abort()
        self._thread.join(1.0)

    def _read(self) -> None:
        try:
            with self._opener() as self._response:
                self._arrived.put(b"")
                if self._is_closed:
                    return
                for chunk in iter(self._response.stream.read1, b""):
                    self._room.get()
                    if self._is_closed:
                        return
                    self._arrived.put(chunk)
            self._arrived.put(ConnectionFailed("Ray ended the log stream"))
        except Exception as failure:  # noqa: BLE001 - whatever ends the thread is raised in the one that waits
            self._arrived.put(failure)


def split_lines(chunks: Iterable[bytes]) -> Generator[str]:
    """Lines without their ends, of bytes that were cut anywhere, each as soon as it is complete.

    A line ends with LF, CR LF or CR (progress bars). Bytes that are not UTF-8 become U+FFFD. A line of more than 64 MiB
    comes in parts: a log may be one line without an end.
    """
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
    size = 0
    tail: list[str] = []  # joined once the line is complete: one of many chunks is not copied for each
    for chunk, is_last in chain(((chunk, False) for chunk in chunks), [(b"", True)]):
        first, *others = decoder.decode(chunk, final=is_last).split("\n")
        tail.append(first)
        size += len(first)
        for text in others:
            yield "".join(tail)
            tail, size = [text], len(text)
        if size > _LONGEST_LINE:
            yield "".join(tail)
            tail, size = [], 0
    if last := "".join(tail):
        yield last
