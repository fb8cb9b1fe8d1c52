"""A retrieval server for agents that search, as Search-R1's: build or fetch an index, serve it, ask it, measure it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from cloudrl.errors import InputError
from cloudrl.sdk.callbacks import Notice, OnProgress, Transfer, silent

if TYPE_CHECKING:
    from cloudrl.retriever.build import BuildOptions
    from cloudrl.retriever.client import Load
    from cloudrl.retriever.opening import Source
    from cloudrl.retriever.record import Record
    from cloudrl.retriever.server import ServeOptions
    from cloudrl.retriever.sharing import Sharing

TOKEN_VARIABLE = "CLOUDRL_RETRIEVER_TOKEN"  # noqa: S105 - a name


def read_token(file: Path | None, env: Mapping[str, str] = os.environ) -> str:
    """The token of a server: of the file, else of the environment; "" if absent.

    Raises:
        InputError: the file cannot be read, or is empty.
    """
    from cloudrl.retriever.tokens import read_token as read

    return env.get(TOKEN_VARIABLE, "") if file is None else read(file, "--token-file")


def build(options: BuildOptions, to: Path, *, device: str = "cpu", on_progress: OnProgress = silent) -> Record:
    """Build a corpus and its index; see `cloudrl.retriever.build.build`."""
    from cloudrl.retriever.build import build as build_index

    return build_index(options, to, device=device, **_callbacks(on_progress))


def fetch(name: str, to: Path, *, on_progress: OnProgress = silent) -> Record:
    """Download a published index and its corpus; see `cloudrl.retriever.fetch.fetch`."""
    from cloudrl.retriever.fetch import fetch as fetch_index

    return fetch_index(name, to, **_callbacks(on_progress))


def serve(
    source: Source,
    options: ServeOptions,
    *,
    sharing: Sharing | None = None,
    threads: int | None = None,
    on_progress: OnProgress = silent,
) -> None:
    """Serve an index until SIGINT or SIGTERM. Connections are refused until it can answer.

    Args:
        source: what to serve.
        options: how.
        sharing: the nodes that hold a part of the vectors each; None if this one holds all of them.
        threads: that torch computes with; all processors if None.
        on_progress: receives what is loaded, which node is waited for, and when it can answer.

    Raises:
        InputError: the port is taken, or what is to be served does not go together or does not fit.
    """
    from cloudrl.retriever.serving import serve as serve_index

    def ready(address: str) -> None:
        hint = f"cloudrl retriever ask 'QUESTION' --url {address}"
        on_progress(Notice(f"ready: POST {address}/retrieve, GET {address}/health", hint=hint))

    serve_index(source, options, sharing=sharing, threads=threads, on_ready=ready, **_callbacks(on_progress))


def ask(queries: Sequence[str], url: str, *, topk: int | None = None, token: str = "") -> list[list[dict[str, Any]]]:
    """For each query what a server finds, as `document` and `score`; see `cloudrl.retriever.client`."""
    from cloudrl.retriever.client import RetrieverClient

    return RetrieverClient(url, token).retrieve(queries, topk)


def bench(
    url: str,
    *,
    clients: int = 64,
    seconds: float = 10.0,
    queries: Path | None = None,
    topk: int | None = None,
    token: str = "",
) -> tuple[Load, dict[str, Any]]:
    """Measure a server under load.

    Args:
        url: of the server.
        clients: so many ask at once, each one query after another.
        seconds: how long.
        queries: a file with one a line; questions of our own if None.
        topk: passages for each; the server's own number if None.
        token: of the server.

    Returns:
        What was measured, and what the server says of itself afterwards.

    Raises:
        InputError: there are no queries in the file.
        ConnectionFailed: no answer.
    """
    from cloudrl.retriever.client import RetrieverClient, example_queries, measure

    client = RetrieverClient(url, token)
    client.health()
    asked = example_queries() if queries is None else itertools.cycle(_lines(queries))
    load = measure(client, asked, clients=clients, seconds=seconds, topk=topk).load
    return load, client.health()


def _lines(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--queries {path}: {getattr(error, 'strerror', None) or error}") from error
    if not lines:
        raise InputError(f"--queries {path} has no queries")
    return lines


class _Callbacks(TypedDict):
    on_progress: Callable[[str, int, int], object]
    say: Callable[[str], object]


def _callbacks(on_progress: OnProgress) -> _Callbacks:
    return {
        "on_progress": lambda what, done, total: on_progress(Transfer(what, done, total)),
        "say": lambda text: on_progress(Notice(text)),
    }
