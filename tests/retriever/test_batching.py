"""Queries that wait become one batch, whoever asks."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from patience import SLOWER

from cloudrl.retriever.batching import Batcher, QueueFull, Unavailable
from cloudrl.retriever.counters import Counters


class Engine:
    """Answers a query with itself in capitals, when it is let; remembers the batches."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[str]]] = []
        self.most = 100
        self.go = threading.Event()
        self.busy = threading.Event()

    def search(self, queries: Sequence[str], k: int) -> list[str]:
        self.batches.append((k, list(queries)))
        self.busy.set()
        assert self.go.wait(10 * SLOWER)
        if len(queries) > self.most:
            raise MemoryError
        if any("bad" in query for query in queries):
            raise ValueError("bad query")
        return [query.upper() for query in queries]


Test = Callable[[Batcher[str], Engine], Awaitable[Any]]


def run(test: Test, engine: Engine | None = None, **options: Any) -> tuple[Any, Engine, Counters]:
    engine, counters = engine or Engine(), Counters()

    async def main() -> Any:
        with ThreadPoolExecutor(1) as executor:
            in_thread = asyncio.get_running_loop().run_in_executor
            batcher = Batcher(functools.partial(in_thread, executor, engine.search), counters, **options)
            worker = asyncio.create_task(batcher.run())
            try:
                return await asyncio.wait_for(test(batcher, engine), 20 * SLOWER)
            finally:
                engine.go.set()
                worker.cancel()

    return asyncio.run(main()), engine, counters


async def occupied(batcher: Batcher[str], engine: Engine) -> asyncio.Task[list[str]]:
    """The engine is at work, and what comes now has to wait."""
    first = asyncio.create_task(batcher.ask(["first"], 3))
    await asyncio.to_thread(engine.busy.wait, 10)
    return first


async def waiting(batcher: Batcher[str], *asked: tuple[list[str], int]) -> list[asyncio.Task[list[str]]]:
    tasks = [asyncio.create_task(batcher.ask(*each)) for each in asked]
    await asyncio.sleep(0.01)
    return tasks


def test_what_waits_is_searched_together_and_once() -> None:
    async def test(batcher: Batcher[str], engine: Engine) -> list[list[str]]:
        first = await occupied(batcher, engine)
        tasks = await waiting(batcher, (["a", "b"], 3), (["b"], 3), (["c", "a", "c"], 3), (["first"], 3))
        assert batcher.waiting == 3
        engine.go.set()
        return await asyncio.gather(first, *tasks)

    answers, engine, counters = run(test)
    assert answers == [["FIRST"], ["A", "B"], ["B"], ["C", "A", "C"], ["FIRST"]]
    assert engine.batches == [(3, ["first"]), (3, ["a", "b", "c"])]
    assert (counters.searched, counters.batch_sizes.count) == (4, 2)


def test_batches_have_one_k_and_no_more_than_the_most() -> None:
    async def test(batcher: Batcher[str], engine: Engine) -> None:
        first = await occupied(batcher, engine)
        tasks = await waiting(batcher, (["a", "b"], 3), (["a"], 5), (["c", "d", "e"], 3))
        engine.go.set()
        await asyncio.gather(first, *tasks)

    _, engine, _ = run(test, max_batch=2)
    assert engine.batches[1:] == [(3, ["a", "b"]), (5, ["a"]), (3, ["c", "d"]), (3, ["e"])]


def test_a_query_that_fails_fails_alone() -> None:
    async def test(batcher: Batcher[str], engine: Engine) -> list[Any]:
        first = await occupied(batcher, engine)
        tasks = await waiting(batcher, (["a"], 3), (["b", "bad"], 3), (["c"], 3))
        engine.go.set()
        return await asyncio.gather(first, *tasks, return_exceptions=True)

    (_, one, two, three), _, counters = run(test)
    assert (one, three) == (["A"], ["C"])
    assert isinstance(two, ValueError)
    assert counters.failed_batches == 1


def test_a_batch_that_is_too_large_for_the_memory_is_searched_in_parts() -> None:
    async def test(batcher: Batcher[str], engine: Engine) -> list[str]:
        engine.most = 3
        engine.go.set()
        return await batcher.ask([f"a{number}" for number in range(10)], 3)

    answers, engine, _ = run(test)
    assert answers == [f"A{number}" for number in range(10)]
    assert [len(queries) for _, queries in engine.batches] == [10, 5, 2, 3, 5, 2, 3]


def test_what_nobody_wants_any_more_is_not_searched() -> None:
    async def test(batcher: Batcher[str], engine: Engine) -> None:
        first = await occupied(batcher, engine)
        gone, stays = await waiting(batcher, (["a", "b"], 3), (["b", "c"], 3))
        gone.cancel()
        await asyncio.sleep(0)
        assert batcher.waiting == 2
        engine.go.set()
        assert await stays == ["B", "C"]
        assert await first == ["FIRST"]

    _, engine, _ = run(test)
    assert engine.batches[1:] == [(3, ["b", "c"])]


def test_a_query_that_is_asked_again_in_whatever_moment_is_answered() -> None:
    """Also between its answer and the moment in which the first request sees it, when that took it from the queue."""

    async def passes(steps: int) -> None:
        for _ in range(steps):  # of the event loop
            await asyncio.sleep(0)

    async def search(queries: Sequence[str], _k: int) -> list[str]:
        await passes(10)
        return [query.upper() for query in queries]

    async def main() -> None:
        batcher = Batcher[str](search, Counters())
        worker = asyncio.create_task(batcher.run())

        async def ask_after(steps: int) -> list[str]:
            await passes(steps)
            return await batcher.ask(["same"], 3)

        for steps in range(40):
            both = asyncio.gather(ask_after(0), ask_after(steps))
            assert await asyncio.wait_for(both, 10 * SLOWER) == [["SAME"], ["SAME"]], steps
        worker.cancel()

    asyncio.run(main())


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    async def test(batcher: Batcher[str], engine: Engine) -> None:
        first = await occupied(batcher, engine)
        [one] = await waiting(batcher, (["a", "b"], 3))
        with pytest.raises(QueueFull) as raised:
            await batcher.ask(["c"], 3)
        assert raised.value.retry_after_s >= 1
        [same] = await waiting(batcher, (["a"], 3))  # which takes no room
        one.cancel()
        await asyncio.sleep(0)
        [other] = await waiting(batcher, (["d"], 3))  # there is room again
        engine.go.set()
        assert await asyncio.gather(first, same, other) == [["FIRST"], ["A"], ["D"]]

    run(test, max_waiting=2)


def test_an_engine_that_always_fails_is_said_to_be_broken() -> None:
    async def test(batcher: Batcher[str], engine: Engine) -> None:
        engine.go.set()
        for number in range(5):
            assert not batcher.is_broken
            with pytest.raises(ValueError, match="bad query"):
                await batcher.ask([f"bad {number}"], 3)
        assert batcher.is_broken
        assert await batcher.ask(["good"], 3) == ["GOOD"]
        assert not batcher.is_broken

    run(test)


def test_when_it_ends_the_halves_of_a_batch_are_not_searched() -> None:
    async def test(batcher: Batcher[str], engine: Engine) -> None:
        engine.most = 0
        asked = asyncio.create_task(batcher.ask([f"a{number}" for number in range(100)], 3))
        assert await asyncio.to_thread(engine.busy.wait, 10)
        asked.cancel()

    _, engine, _ = run(test)
    assert len(engine.batches) == 1


def test_a_batch_has_no_more_passages_than_an_answer() -> None:
    async def test(batcher: Batcher[str], engine: Engine) -> None:
        first = await occupied(batcher, engine)
        tasks = await waiting(batcher, *(([f"a{number}"], 1000) for number in range(100)))
        engine.go.set()
        await asyncio.gather(first, *tasks)

    _, engine, _ = run(test)
    assert [(k, len(queries)) for k, queries in engine.batches] == [(3, 1), (1000, 65), (1000, 35)]


def test_where_nothing_can_be_searched_halves_are_not_tried() -> None:
    class Lost(Engine):
        def search(self, queries: Sequence[str], k: int) -> list[str]:
            super().search(queries, k)
            raise Unavailable("a node is lost")

    async def test(batcher: Batcher[str], engine: Engine) -> None:
        engine.go.set()
        for number in range(10):
            with pytest.raises(Unavailable, match="a node is lost"):
                await batcher.ask([f"a{number}", "b"], 3)
        assert not batcher.is_broken, "the engine is well"

    _, engine, _ = run(test, Lost())
    assert len(engine.batches) == 10


def test_no_queries() -> None:
    async def test(batcher: Batcher[str], engine: Engine) -> list[str]:
        return await batcher.ask([], 3)

    answer, engine, _ = run(test)
    assert answer == []
    assert engine.batches == []
