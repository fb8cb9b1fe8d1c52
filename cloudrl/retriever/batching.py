"""Queries of all requests that wait become one batch: while it is searched, the next one gathers.

Nothing waits for a batch to fill up. A query that several ask at once is searched once.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cloudrl.errors import CloudrlError
from cloudrl.retriever.counters import Counters
from cloudrl.retriever.requests import MAX_PASSAGES

T = TypeVar("T")
Key = tuple[str, int]
Search = Callable[[Sequence[str], int], Awaitable[Sequence[T | Exception]]]

MAX_BATCH = 512
_LONGEST_RETRY_S = 30
_BROKEN_AFTER = 5


class Unavailable(CloudrlError):
    """Nothing can be searched at the moment, whatever the query.

    Attributes:
        retry_after_s: when it may be possible again.
    """

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueryFailed(CloudrlError):
    """One query has no answer; the engine is well."""


class QueueFull(Unavailable):
    """Too many queries wait already."""


@dataclass
class _Asked(Generic[T]):
    """A query that waits or is searched, and how many requests want its answer."""

    answer: asyncio.Future[T] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    requests: int = 0


class Batcher(Generic[T]):
    """Collects queries, and searches one batch after another. For one event loop.

    Args:
        search: answers queries for the best k, or says why one alone has no answer; never called twice at once.
        counters: to be told.
        max_batch: so many queries at once, and fewer if their answers would have more than `MAX_PASSAGES` together.
        max_waiting: so many may wait.
        clock: seconds that never run backwards.
    """

    def __init__(
        self,
        search: Search[T],
        counters: Counters,
        *,
        max_batch: int = MAX_BATCH,
        max_waiting: int = 1 << 14,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._search, self._counters, self._clock = search, counters, clock
        self._max_batch, self._max_waiting = max_batch, max_waiting
        self._asked: dict[Key, _Asked[T]] = {}
        self._waiting: dict[Key, None] = {}  # in the order in which they came
        self._has_work = asyncio.Event()
        self._recent: deque[tuple[int, float]] = deque(maxlen=16)
        self._failures = 0

    @property
    def is_broken(self) -> bool:
        """Whether nothing could be searched several times in a row, as after a fault of the GPU."""
        return self._failures >= _BROKEN_AFTER

    @property
    def waiting(self) -> int:
        """Queries that are not searched yet."""
        return len(self._waiting)

    async def ask(self, queries: Sequence[str], k: int) -> list[T]:
        """The answers, in the order of the queries. A cancelled call's queries are searched only for others.

        Raises:
            QueueFull: they do not all find room.
            Exception: whatever `search` has raised for one of them.
        """
        if not queries:
            return []
        keys = [(query, k) for query in queries]
        new = {key for key in keys if key not in self._asked}
        if len(self._waiting) + len(new) > self._max_waiting:
            raise QueueFull(f"{len(self._waiting)} queries are waiting already", self._retry_after_s())
        distinct = dict.fromkeys(keys)
        for key in distinct:
            if key in new:
                self._asked[key] = _Asked()
                self._waiting[key] = None
            self._asked[key].requests += 1
        asked = {key: self._asked[key] for key in distinct}
        self._has_work.set()
        try:
            await asyncio.wait([awaited.answer for awaited in asked.values()])  # which are not cancelled with it
        finally:
            for key, awaited in asked.items():
                awaited.requests -= 1
                # another request may have asked again since this answer came: that query waits, and is another's
                if not awaited.requests and key in self._waiting and self._asked[key] is awaited:
                    del self._waiting[key], self._asked[key]
        return [asked[key].answer.result() for key in keys]

    async def run(self) -> None:
        """Search what waits, for ever."""
        while True:
            await self._has_work.wait()
            await asyncio.sleep(0)  # requests that have arrived by now go along
            await self._search_next()

    async def _search_next(self) -> None:
        k, queries = self._next()
        if not queries:
            self._has_work.clear()
            return
        began = self._clock()
        answers = await self._search_apart(queries, k)
        self._deliver(k, queries, answers, self._clock() - began)

    def _next(self) -> tuple[int, list[str]]:
        """Take the queries that want as many passages as the one that has waited longest."""
        k = next(iter(self._waiting), ("", 1))[1]
        most = min(self._max_batch, max(1, MAX_PASSAGES // k))
        queries = list(itertools.islice((query for query, wanted in self._waiting if wanted == k), most))
        for query in queries:
            del self._waiting[query, k]
        return k, queries

    async def _search_apart(self, queries: Sequence[str], k: int) -> list[T | Exception]:
        """The answers; where a batch fails, its halves are tried, so that only those fail that cannot be answered."""
        try:
            return list(await self._search(queries, k))
        except Exception as error:  # noqa: BLE001 - whatever an engine raises, other requests must not suffer
            if len(queries) == 1 or isinstance(error, Unavailable):
                return [error] * len(queries)
        middle = len(queries) // 2
        return await self._search_apart(queries[:middle], k) + await self._search_apart(queries[middle:], k)

    def _deliver(self, k: int, queries: Sequence[str], answers: Sequence[T | Exception], took_s: float) -> None:
        self._recent.append((len(queries), took_s))
        self._counters.searched += len(queries)
        self._counters.batch_sizes.add(len(queries))
        self._counters.batch_s.add(took_s)
        for query, answer in zip(queries, answers, strict=True):
            future = self._asked.pop((query, k)).answer
            if isinstance(answer, Exception):
                future.set_exception(answer)
                future.exception()  # no request may be left to ask for it
            else:
                future.set_result(answer)
        failed = sum(isinstance(answer, Exception) for answer in answers)
        self._counters.failed_batches += failed > 0
        if failed < len(answers):
            self._failures = 0
        elif not any(isinstance(answer, (Unavailable, QueryFailed)) for answer in answers):  # no faults of the engine
            self._failures += 1

    def _retry_after_s(self) -> int:
        """How long what waits will take, by the last batches."""
        searched = sum(count for count, _ in self._recent) or 1
        took_s = sum(seconds for _, seconds in self._recent)
        return max(1, min(_LONGEST_RETRY_S, math.ceil(len(self._waiting) * took_s / searched)))
