"""A retriever for the server's tests, and the server around it."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp

from cloudrl.retriever.engine import Found, Searches
from cloudrl.retriever.server import ServeOptions, bind, running, serve

Session = aiohttp.ClientSession
Test = Callable[[Session], Awaitable[Any]]


def document(query: str, rank: int) -> dict[str, str]:
    return {"id": f"{query}-{rank}", "contents": f'"{query}"\ntext {rank}'}


class FakeRetriever:
    """Finds k passages for each query, worse and worse, once it is let; fails at `bad` ones."""

    def __init__(self) -> None:
        self.identity: dict[str, object] = {"engine": "fake"}
        self.go, self.busy = threading.Event(), threading.Event()
        self.go.set()
        self.asked: list[str] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Found]]:
        self.asked += queries
        self.busy.set()
        if not self.go.wait(30):
            raise TimeoutError("nobody has let it go")
        if "bad" in queries:
            raise ValueError("it is bad")
        return [
            [Found(json.dumps(document(query, rank)).encode(), 1 / (rank + 1)) for rank in range(k)]
            for query in queries
        ]

    async def hold(self, session: Session) -> asyncio.Task[Any]:
        """Keep the engine at work for a request, until `go` is set."""
        self.go.clear()
        task = asyncio.create_task(post(session, queries=["first"]))
        assert await asyncio.to_thread(self.busy.wait, 10)
        return task


def serving(test: Test, retriever: Searches | None = None, **options: Any) -> Any:
    """Run `test` with a session at a server on a free port."""
    asked = ServeOptions(port=0, **options)
    served = retriever or FakeRetriever()

    async def main() -> Any:
        with bind(asked) as bound:
            base = f"http://127.0.0.1:{bound.getsockname()[1]}"
            async with running(served, bound, asked), Session(base) as session:
                try:
                    return await asyncio.wait_for(test(session), 60)
                finally:
                    if isinstance(served, FakeRetriever):
                        served.go.set()

    return asyncio.run(main())


async def post(session: Session, headers: dict[str, str] | None = None, **content: Any) -> tuple[int, Any]:
    """Status and body of `POST /retrieve`."""
    async with session.post("/retrieve", json=content, headers=headers) as answer:
        return answer.status, await answer.json()


async def counted(session: Session) -> dict[str, int]:
    """How requests have ended, those with any."""
    async with session.get("/health") as answer:
        said = await answer.json()
    return {name: count for name, count in said["requests"].items() if count}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():  # noqa: ASYNC110 - what it waits for is elsewhere
        await asyncio.sleep(0.005)


def main(port: int) -> None:
    """A server with the fake, as a process; it takes its time."""
    served = SlowRetriever()
    with bind(ServeOptions(port=port)) as bound:
        serve(served, bound, ServeOptions(port=port), on_ready=lambda: print("ready", flush=True))


class SlowRetriever(FakeRetriever):
    def search(self, queries: Sequence[str], k: int) -> list[list[Found]]:
        time.sleep(0.1)
        return super().search(queries, k)


if __name__ == "__main__":
    main(int(sys.argv[1]))
