"""The function `search` for verl's tool agent: asks the retrieval server of its own node.

verl executes this file in each agent loop worker (verl 0.9.1, tools/function_tool.py), under the image's Python and
without cloudrl. The server speaks the API of Search-R1's (PeterGriffinJin/Search-R1 at a14dc3a,
search_r1/search/retrieval_server.py), and the model reads the passages in the same form as there
(search_r1/llm_agent/generation.py). Variables of the job:

    CLOUDRL_SEARCH_URL        the service `search` of the node, or else http://127.0.0.1:8000/retrieve
    CLOUDRL_SEARCH_TOPK       3: passages an answer
    CLOUDRL_SEARCH_TIMEOUT_S  120: of one search with all its tries. A server that restarts, whose queue is full or that
                              has not answered in its own time is asked again until then
    CLOUDRL_RETRIEVER_TOKEN   "": the token of the server, if it has one
    CLOUDRL_SEARCH_WINDOW     20: the run ends when more than half of so many searches in a row have failed, and after
                              another CLOUDRL_SEARCH_TIMEOUT_S still do; 0: never
"""

import asyncio
import contextlib
import os
import random
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from verl.tools.function_tool import function_tool

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_CONNECTIONS = 128
"""At once, from one worker; searches beyond them wait, within their time."""
_SAY_EVERY_S = 300.0
_UNREADABLE = (ValueError, KeyError, IndexError, TypeError, AttributeError)
"""What reading an answer of another shape raises."""
_PASSING = (502, 503, 504)
"""What a server, or a proxy in front of it, answers while it restarts, is full, or stands still for a while."""


class SearchError(Exception):
    """A search failed. verl shows its text to the model."""


class Unavailable(SearchError):
    """The server may answer in a moment."""


class QueryRefused(SearchError):
    """The server is well, and does not take this query: too long, say."""


class RunEnded(BaseException):
    """The run must not go on. verl makes text of every `Exception` of a tool, and trains on it."""


@dataclass(frozen=True)
class Settings:
    """As the variables at the head of this file."""

    url: str
    topk: int
    timeout_s: float
    window: int
    token: str = field(default="", repr=False)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Settings":
        """What the variables say; that of the service is the node's own."""
        address = env.get("CLOUDRL_SERVICE_SEARCH", "127.0.0.1:8000")
        return cls(
            url=env.get("CLOUDRL_SEARCH_URL") or f"http://{address}/retrieve",
            topk=int(env.get("CLOUDRL_SEARCH_TOPK", "3")),
            timeout_s=float(env.get("CLOUDRL_SEARCH_TIMEOUT_S", "120")),
            window=int(env.get("CLOUDRL_SEARCH_WINDOW", "20")),
            token=env.get("CLOUDRL_RETRIEVER_TOKEN", ""),
        )


async def end_run(reason: str) -> None:
    """Have the trainer fail with the reason.

    verl 0.9.1 has no call for that, and a worker that exits would leave the trainer waiting for its prompts for ever.
    But the trainer looks through the queue of prompts every two seconds, and raises at a status that it does not know,
    with that status in its message (trainer/ppo/v1/replay_buffer.py: _sync_metadata_from_transfer_queue).
    The older trainer has no such queue; there `RunEnded` itself reaches it.
    """
    verdict = f"CLOUDRL FAILED: {reason}"
    print(verdict, flush=True)  # noqa: T201 - Ray passes it on to the job's log
    with contextlib.suppress(Exception):
        import transfer_queue

        tag = {"is_prompt": True, "global_steps": 0, "status": verdict}
        await transfer_queue.async_kv_put(key="cloudrl-search", partition_id="train", tag=tag)


class Search:
    """The searches of one process: its connections, its counters, and the decision to end the run."""

    def __init__(
        self,
        settings: Settings,
        *,
        end_run: Callable[[str], Awaitable[None]] = end_run,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.settings = settings
        self.calls = self.failures = 0
        self.seconds = 0.0
        self._end_run, self._clock, self._sleep = end_run, clock, sleep
        self._failed: deque[bool] = deque(maxlen=settings.window)
        self._failing_since: float | None = None
        self._session: aiohttp.ClientSession | None = None
        self._ended: str | None = None
        self._said_at = clock()

    async def ask(self, query: str) -> str:
        """The passages for a query, as the model reads them.

        Raises:
            SearchError: The answer has no documents.
            RunEnded: Too many searches have failed for too long.
        """
        if self._ended is not None:
            raise RunEnded(self._ended)
        if not isinstance(query, str) or not query.strip():
            return "The query must be a text, and not empty."
        started = self._clock()
        try:
            text = await self._retried(query)
        except QueryRefused as error:
            text = str(error)
        except SearchError as error:
            self._count(self._clock() - started, failed=True)
            await self._end_if_most_fail(error)
            raise
        self._count(self._clock() - started, failed=False)
        return text

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _retried(self, query: str) -> str:
        ends_at, pause_s = self._clock() + self.settings.timeout_s, _FIRST_PAUSE_S
        while True:
            try:
                return passages_text(await asyncio.wait_for(self._post(query), ends_at - self._clock()))
            except asyncio.TimeoutError:
                raise SearchError(f"no answer within {self.settings.timeout_s:g} s") from None
            except _UNREADABLE as error:
                raise SearchError(f"the answer is not that of a retrieval server: {error!r}") from error
            except Unavailable:
                if self._clock() + pause_s > ends_at:
                    raise
            await self._sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the tries
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _post(self, query: str) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
                timeout=aiohttp.ClientTimeout(total=None),
                headers={"Authorization": f"Bearer {self.settings.token}"} if self.settings.token else {},
            )
        body = {"queries": [query], "topk": self.settings.topk, "return_scores": True}
        try:
            async with self._session.post(self.settings.url, json=body) as response:
                if response.status in _PASSING:
                    raise Unavailable(f"HTTP {response.status}: {(await response.text())[:200]}")
                if response.status == 422:
                    raise QueryRefused(f"The query cannot be searched: {(await response.text())[:200]}")
                if response.status != 200:
                    raise SearchError(f"HTTP {response.status}: {(await response.text())[:200]}")
                return (await response.json(content_type=None))["result"][0]
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:  # it has ended, perhaps meanwhile
            raise Unavailable(str(error) or repr(error)) from error
        except aiohttp.ClientError as error:
            raise SearchError(repr(error)) from error

    def _count(self, seconds: float, *, failed: bool) -> None:
        self.calls, self.failures, self.seconds = self.calls + 1, self.failures + failed, self.seconds + seconds
        self._failed.append(failed)
        if not 0 < self.settings.window == len(self._failed) < 2 * sum(self._failed):
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = self._clock()
        if self._clock() - self._said_at > _SAY_EVERY_S:
            self._said_at = self._clock()
            mean_s = self.seconds / self.calls
            print(f"search: {self.calls} calls, {self.failures} failed, {mean_s:.2f} s each", flush=True)  # noqa: T201

    async def _end_if_most_fail(self, failure: SearchError) -> None:
        """End the run where the server has had time to recover.

        All searches under way fail together when the server stands still: only one that has begun after that shows
        whether it goes on. None takes longer than `timeout_s`.
        """
        since = self._failing_since
        if self._ended is None and since is not None and self._clock() - since >= self.settings.timeout_s:
            self._ended = (
                f"{sum(self._failed)} of the last {len(self._failed)} searches on {socket.gethostname()} failed, the "
                f"last with: {failure}. Is the retrieval server of that node well ({self.settings.url})?"
            )
            await self._end_run(self._ended)
        if self._ended is not None:
            raise RunEnded(self._ended)


def passages_text(hits: Any) -> str:
    """Passages as Search-R1 shows them: the title is the first line of each."""
    texts = []
    for number, hit in enumerate(hits, start=1):
        title, _, text = hit["document"]["contents"].partition("\n")
        texts.append(f"Doc {number}(Title: {title}) {text}\n")
    return "".join(texts) or "Nothing was found."


_SEARCH = Search(Settings.from_env(os.environ))


@function_tool
async def search(query: str) -> str:
    """Searches a text corpus, such as Wikipedia, for passages with information on the query.

    Args:
        query: What to search for.
    """
    return await _SEARCH.ask(query)
