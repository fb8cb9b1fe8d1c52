"""Queries of all requests that wait become one batch: while it is searched, the next one gathers.

Nothing waits for a batch to fill up. A query that several ask at once is searched once.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cloudrl.errors import CloudrlError
from cloudrl.retriever.counters import Counters

T = TypeVar("T")
Key = tuple[str, int]
Search = Callable[[Sequence[str], int], Sequence[T | Exception]]

MAX_BATCH = 512
_LONGEST_RETRY_S = 30
_BROKEN_AFTER = 5


class QueueFull(CloudrlError):
    """Too many queries wait already.

    Attributes:
        retry_after_s: when there should be room.
    """

    def __init__(self, waiting: int, retry_after_s: int) -> None:
        super().__init__(f"{waiting} queries are waiting already")
        self.retry_after_s = retry_after_s


@dataclass
class _Asked(Generic[T]):
    """A query that waits or is searched, and how many requests want its answer."""

    answer: asyncio.Future[T] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    requests: int = 0


class Batcher(Generic[T]):
    """Collects queries, and lets one thread search them. For one event loop.

    Args:
        search: answers queries for the best k, or says why one alone has no answer; called in `executor`, never twice
            at once.
        executor: with one thread.
        counters: to be told.
        max_batch: so many queries at once.
        max_waiting: so many may wait.
        clock: seconds that never run backwards.
    """

    def __init__(
        self,
        search: Search[T],
        executor: Executor,
        counters: Counters,
        *,
        max_batch: int = MAX_BATCH,
        max_waiting: int = 1 << 14,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._search, self._executor, self._counters, self._clock = search, executor, counters, clock
        self._max_batch, self._max_waiting = max_batch, max_waiting
        self._asked: dict[Key, _Asked[T]] = {}
        self._waiting: dict[Key, None] = {}  # in the order in which they came
        self._has_work = asyncio.Event()
        self._recent: deque[tuple[int, float]] = deque(maxlen=16)
        self._failures = 0
        self._has_ended = False

    @property
    def is_broken(self) -> bool:
        """Whether nothing could be searched several times in a row, as after a fault of the GPU."""
        return self._failures >= _BROKEN_AFTER

    @property
    def waiting(self) -> int:
        """Queries that are not searched yet."""
        return len(self._waiting)

    async def ask(self, queries: Sequence[str], k: int) -> list[T]:
        """The answers, in the order of the queries. When it is cancelled, what nobody else wants is not searched.

        Raises:
            QueueFull: they do not all find room.
            Exception: whatever `search` has raised for one of them.
        """
        if not queries:
            return []
        keys = [(query, k) for query in queries]
        new = {key for key in keys if key not in self._asked}
        if len(self._waiting) + len(new) > self._max_waiting:
            raise QueueFull(len(self._waiting), self._retry_after_s())
        distinct = dict.fromkeys(keys)
        for key in distinct:
            if key in new:
                self._asked[key] = _Asked()
                self._waiting[key] = None
            self._asked[key].requests += 1
        asked = {key: self._asked[key] for key in distinct}
        self._has_work.set()
        try:
            await asyncio.wait([each.answer for each in asked.values()])  # which are not cancelled with it
        finally:
            for key, each in asked.items():
                each.requests -= 1
                if not each.requests and key in self._waiting:
                    del self._waiting[key], self._asked[key]
        return [asked[key].answer.result() for key in keys]

    async def run(self) -> None:
        """Search what waits, for ever."""
        try:
            while True:
                await self._has_work.wait()
                await asyncio.sleep(0)  # requests that have arrived by now go along
                await self._search_next()
        finally:
            self._has_ended = True  # a thread cannot be cancelled

    async def _search_next(self) -> None:
        k, queries = self._next()
        if not queries:
            self._has_work.clear()
            return
        began = self._clock()
        loop = asyncio.get_running_loop()
        answers = await loop.run_in_executor(self._executor, self._search_apart, queries, k)
        self._deliver(k, queries, answers, self._clock() - began)

    def _next(self) -> tuple[int, list[str]]:
        """Take the queries that want as many passages as the one that has waited longest."""
        k = next(iter(self._waiting), ("", 0))[1]
        queries: list[str] = []
        for query, wanted in self._waiting:
            if wanted == k:
                queries.append(query)
                if len(queries) == self._max_batch:
                    break
        for query in queries:
            del self._waiting[query, k]
        return k, queries

    def _search_apart(self, queries: Sequence[str], k: int) -> list[T | Exception]:
        """The answers; where a batch fails, its halves are tried, so that only those fail that cannot be answered."""
        try:
            return list(self._search(queries, k))
        except Exception as error:  # noqa: BLE001 - whatever an engine raises, other requests must not suffer
            if len(queries) == 1 or self._has_ended:
                return [error] * len(queries)
        middle = len(queries) // 2
        return self._search_apart(queries[:middle], k) + self._search_apart(queries[middle:], k)

    def _deliver(self, k: int, queries: Sequence[str], answers: Sequence[T | Exception], took_s: float) -> None:
        self._recent.append((len(queries), took_s))
        self._counters.searched += len(queries)
        self._counters.batch_sizes.add(len(queries))
        self._counters.batch_s.add(took_s)
        for query, answer in zip(queries, answers, strict=True):
            future = self._asked.pop((query, k)).answer
            if isinstance(answer, Exception):
                future.set_exception(answer)
                future.exception()  # nobody may be left to ask for it
            else:
                future.set_result(answer)
        failed = sum(isinstance(answer, Exception) for answer in answers)
        self._counters.failed_batches += failed > 0
        self._failures = self._failures + 1 if failed == len(answers) else 0

    def _retry_after_s(self) -> int:
        """How long what waits will take, by the last batches."""
        searched = sum(count for count, _ in self._recent) or 1
        took_s = sum(seconds for _, seconds in self._recent)
        return max(1, min(_LONGEST_RETRY_S, math.ceil(len(self._waiting) * took_s / searched)))
