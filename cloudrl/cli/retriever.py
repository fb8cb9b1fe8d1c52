"""`cloudrl retriever`: the search engine of agents that search."""

import json
import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import JsonOption, declared_options, option, with_options
from cloudrl.cli._terminal import Terminal
from cloudrl.options.retriever import (
    AskOptions,
    DeviceOptions,
    IndexOptions,
    LoadOptions,
    ServeOptions,
    SharingOptions,
    SourceOptions,
)

app = typer.Typer(
    help="Build, serve and ask a search engine, for training agents that search (Search-R1).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ToOption = Annotated[Path, option("DIR", "New folder for corpus and index.", "--to")]
UrlOption = Annotated[str, option("URL", "Address of the server.", "--url")]
TokenOption = Annotated[
    Path | None, option("FILE", "Read the token of the server from a file. Default: $CLOUDRL_RETRIEVER_TOKEN.")
]
_URL = "http://127.0.0.1:8000"


@app.command()
@with_options(options=declared_options(IndexOptions), on_device=declared_options(DeviceOptions))
def build(
    sources: Annotated[
        list[Path], typer.Argument(metavar="SOURCE...", help="Files or folders: jsonl, parquet, txt, md.")
    ],
    to: ToOption,
    *,
    options: dict[str, Any],
    on_device: dict[str, Any],
    as_json: JsonOption = False,
) -> None:
    """Build an index of your own passages. Run it again to resume after an interruption.

    Rows have `contents`, or `text` and perhaps `title`. The default encoder is intfloat/e5-base-v2.
    """
    from cloudrl.retriever.build import BuildOptions
    from cloudrl.sdk import retriever

    _quiet_libraries()
    with Terminal() as terminal:
        record = retriever.build(BuildOptions(tuple(sources), **options), to, **on_device, on_progress=terminal)
    _show(to, asdict(record), as_json=as_json)


@app.command()
def fetch(
    to: ToOption,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="wiki-18 (flat, 65 GB), or wiki-18-hnsw; with 14 GB of passages.")
    ] = "wiki-18",
    as_json: JsonOption = False,
) -> None:
    """Download an index of Wikipedia that Search-R1 has published. Run it again to resume after an interruption."""
    from cloudrl.sdk import retriever

    _quiet_libraries()
    with Terminal() as terminal:
        record = retriever.fetch(name, to, on_progress=terminal)
    _show(to, asdict(record), as_json=as_json)


@app.command()
@with_options(
    source=declared_options(SourceOptions),
    options=declared_options(ServeOptions),
    sharing=declared_options(SharingOptions),
)
def serve(
    place: Annotated[
        Path | None, typer.Argument(metavar="DIR|INDEX", help="Folder of build or fetch, or an index file.")
    ] = None,
    *,
    source: dict[str, Any],
    threads: Annotated[int | None, typer.Option(metavar="N", help="CPU threads. Default: all.", min=1)] = None,
    options: dict[str, Any],
    token_file: TokenOption = None,
    sharing: dict[str, Any],
) -> None:
    """Serve an index by Search-R1's interface, until Ctrl-C: POST /retrieve, GET /health, GET /metrics."""
    from cloudrl.retriever import server
    from cloudrl.retriever.opening import Source
    from cloudrl.retriever.sharing import read_sharing
    from cloudrl.sdk import retriever

    what, nodes = Source(place, **source), read_sharing(**sharing)
    how = server.ServeOptions(token=retriever.read_token(token_file), **options)
    _quiet_libraries()
    with Terminal() as terminal:
        retriever.serve(what, how, sharing=nodes, threads=threads, on_progress=terminal)


@app.command()
@with_options(options=declared_options(AskOptions))
def ask(
    queries: Annotated[list[str], typer.Argument(metavar="QUERY...", help="What to search for.")],
    url: UrlOption = _URL,
    *,
    options: dict[str, Any],
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a server."""
    from cloudrl.sdk import retriever

    answers = retriever.ask(queries, url, **options, token=retriever.read_token(token_file))
    if as_json:
        _output.as_json([{"query": query, "found": hits} for query, hits in zip(queries, answers, strict=True)])
        return
    for query, hits in zip(queries, answers, strict=True):
        if not hits:
            _output.note(f"nothing found for {query!r}")
        rows = [(f"{hit['score']:.4f}", *_cells(hit["document"])) for hit in hits]
        _output.table(("score", "id", "passage"), rows)


@app.command()
@with_options(options=declared_options(LoadOptions))
def bench(
    url: UrlOption = _URL,
    *,
    options: dict[str, Any],
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a server under load: queries per second, latency, batch sizes."""
    from cloudrl.sdk import retriever

    load, health = retriever.bench(url, **options, token=retriever.read_token(token_file))
    failed = "".join(f"; {count} failed with {status}" for status, count in load.failures.items())
    text = (
        f"{load.per_second:.1f} queries/s with {load.clients} clients, median {load.p50_ms:.0f} ms, 99 % within "
        f"{load.p99_ms:.0f} ms; {load.queries} answered in {load.seconds:.1f} s{failed}"
    )
    _output.result(text, {**asdict(load), "server": health}, is_json=as_json)


def _quiet_libraries() -> None:
    """Progress bars of libraries are for a person; they read this when they are imported."""
    if not _output.is_interactive():
        for variable in ("HF_HUB_DISABLE_PROGRESS_BARS", "TQDM_DISABLE"):
            os.environ.setdefault(variable, "1")


def _show(folder: Path, record: dict[str, Any], *, as_json: bool) -> None:
    text = f"{folder}: {record['passages']:,} passages, engine {record['engine']}"
    _output.result(text, {"folder": folder, **record}, is_json=as_json)
    if not as_json:
        _output.hint(f"cloudrl retriever serve {shlex.quote(str(folder))}")


def _cells(document: dict[str, Any]) -> tuple[str, str]:
    """Id and text of a passage, on one line."""
    contents = document.get("contents")
    text = contents if isinstance(contents, str) else json.dumps(document, ensure_ascii=False)
    return str(document.get("id", "")), " ".join(text.split())[:160]
