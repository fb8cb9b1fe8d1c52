"""Asks a server, and measures one under load."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from cloudrl.errors import CloudrlError, ConnectionFailed, InputError, Unauthorized, without_login
from cloudrl.foreign import Malformed, as_list, as_object, parse_object, read_all
from cloudrl.retriever.addresses import is_loopback
from cloudrl.retriever.tokens import TOKEN_HINT

_SERVER_HINT = "Start one: cloudrl retriever serve DIR\nOr name another: --url URL"

DEFAULT_URL = "http://127.0.0.1:8000"
_TIMEOUT_S = 60.0
_SHARES = (0.5, 0.99)
_SUBJECTS = (
    "capital",
    "history",
    "population",
    "climate",
    "president",
    "currency",
    "language",
    "coast",
    "army",
    "river",
)
_PLACES = ("France", "Brazil", "Kenya", "Norway", "Japan", "Peru", "Egypt", "Canada", "India", "Chile", "Iran", "Laos")
_ASPECTS = ("in 1950", "today", "in the north", "before the war", "by law", "in numbers", "at its border", "in summer")


class RetrieverClient:
    """Requests to one server.

    Args:
        url: where it is, with or without `/retrieve`.
        token: its token, if it has one.
        timeout_s: for an answer.
    """

    def __init__(self, url: str = DEFAULT_URL, token: str = "", timeout_s: float = _TIMEOUT_S) -> None:
        self._url = url.rstrip("/").removesuffix("/retrieve")
        self.url = without_login(self._url)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s

    def retrieve(self, queries: Sequence[str], topk: int | None = None) -> list[list[dict[str, Any]]]:
        """For each query what was found, as `document` and `score`.

        Raises:
            ConnectionFailed: no server answers, or not with hits.
            Unauthorized: the token is refused.
            InputError: the server takes no such request.
        """
        content = {"queries": list(queries), "topk": topk, "return_scores": True}
        answer = self._request("POST", "/retrieve", content)
        try:
            lists = [as_list(hits, "what was found") for hits in as_list(answer.get("result"), "`result`")]
            return [[as_object(hit, "a hit") for hit in hits] for hits in lists]
        except Malformed as error:
            raise self._no_server("/retrieve", str(error)) from None

    @property
    def retrieve_url(self) -> str:
        """Where queries go."""
        return f"{self._url}/retrieve"

    def health(self) -> dict[str, Any]:
        """What `GET /health` says.

        Raises:
            ConnectionFailed: no server answers, or it is not ready.
            Unauthorized: the token is refused.
        """
        answer = self._request("GET", "/health", None)
        if answer.keys() == {"ready"}:  # all that a server says without its token
            raise self._unauthorized()
        return answer

    def _unauthorized(self) -> Unauthorized:
        return Unauthorized(f"{self.url} refuses the token", hint=TOKEN_HINT)

    def _request(self, method: str, path: str, content: object) -> dict[str, Any]:
        import httpx2

        from cloudrl.foreign_httpx import patient

        # a proxy of the environment cannot reach this machine's loopback
        trust_env = not is_loopback(urlsplit(self._url).hostname or "")
        headers = {**self.headers, "Accept-Encoding": "identity"}
        try:
            with (
                httpx2.Client(timeout=self._timeout_s, trust_env=trust_env) as client,
                client.stream(
                    method, self._url + path, json=content, headers=headers, extensions=patient(self._timeout_s)
                ) as answer,
            ):
                body = read_all(_Pieces(answer.iter_raw()))
        except Malformed as error:
            raise self._no_server(path, str(error)) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ConnectionFailed(
                f"no retrieval server answers at {self.url}: {type(error).__name__}: {error}",
                hint=_SERVER_HINT,
            ) from error
        if answer.status_code == 401:
            raise self._unauthorized()
        if answer.status_code != 200:
            kind = InputError if answer.status_code in (413, 422) else ConnectionFailed
            raise kind(f"{self.url}{path} answers {answer.status_code}: {body[:500].decode(errors='replace')}")
        try:
            return parse_object(body)
        except Malformed as error:
            raise self._no_server(path, str(error)) from None

    def _no_server(self, path: str, sign: str) -> ConnectionFailed:
        return ConnectionFailed(
            f"{self.url}{path} does not answer as a retrieval server: {sign}",
            hint=_SERVER_HINT,
        )


class _Pieces:
    """A stream of pieces as they come."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def read1(self, _limit: int) -> bytes:
        """The next piece, however long; empty at the end."""
        return next(filter(None, self._pieces), b"")


@dataclass(frozen=True)
class Load:
    """What a server did while several clients asked, each one query after another.

    Attributes:
        failures: answers other than 200, by their status; "error" for none at all.
    """

    clients: int
    seconds: float
    queries: int
    per_second: float
    p50_ms: float
    p99_ms: float
    failures: dict[str, int]


def example_queries() -> Iterator[str]:
    """Different ones, for ever."""
    for number in itertools.count():
        for subject, place, aspect in itertools.product(_SUBJECTS, _PLACES, _ASPECTS):
            yield f"What is the {subject} of {place} {aspect}{f', part {number}' * (number > 0)}?"


@dataclass(frozen=True)
class Samples:
    """What several clients have seen, each with one query after another; those of the same clients can be added."""

    clients: int
    seconds: float
    took_s: list[float]
    failures: Counter[str]

    def __add__(self, other: Samples) -> Samples:
        took_s, failures = self.took_s + other.took_s, self.failures + other.failures
        return Samples(self.clients, self.seconds + other.seconds, took_s, failures)

    @property
    def load(self) -> Load:
        """Their summary."""
        ordered = sorted(self.took_s)
        p50_ms, p99_ms = (round(ordered[int(share * len(ordered))] * 1000, 1) if ordered else 0.0 for share in _SHARES)
        per_second = round(len(ordered) / self.seconds, 2)
        seconds, failures = round(self.seconds, 2), dict(self.failures)
        return Load(self.clients, seconds, len(ordered), per_second, p50_ms, p99_ms, failures)


def measure(
    client: RetrieverClient, queries: Iterator[str], *, clients: int, seconds: float, topk: int | None
) -> Samples:
    """Ask for so many seconds.

    Raises:
        CloudrlError: not one query was answered.
    """
    samples = asyncio.run(_measure(client, queries, clients, seconds, topk))
    if not samples.took_s:
        raise CloudrlError(f"{client.url} has answered no query: {dict(samples.failures)}")
    return samples


async def _measure(
    client: RetrieverClient, queries: Iterator[str], clients: int, seconds: float, topk: int | None
) -> Samples:
    import aiohttp

    took: list[float] = []
    failures: Counter[str] = Counter()
    began = time.monotonic()

    async def one(session: aiohttp.ClientSession) -> None:
        while time.monotonic() < began + seconds:
            content = {"queries": [next(queries)], "topk": topk, "return_scores": True}
            start = time.monotonic()
            try:
                async with session.post(client.retrieve_url, json=content) as answer:
                    async for _ in answer.content.iter_chunked(1 << 16):  # nothing is kept of it
                        pass
                    status = answer.status
            except (aiohttp.ClientError, asyncio.TimeoutError):
                failures["error"] += 1
                await asyncio.sleep(0.1)
                continue
            if status == 200:
                took.append(time.monotonic() - start)
            else:
                failures[str(status)] += 1
                await asyncio.sleep(0.1)

    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=client.headers, timeout=timeout, connector=connector) as session:
        await asyncio.gather(*(one(session) for _ in range(clients)))
    return Samples(clients, time.monotonic() - began, took, failures)
