"""`cloudrl retriever`: the search engine of agents that search."""

import json
import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import JsonOption, explicit, option
from cloudrl.cli._terminal import Terminal

app = typer.Typer(
    help="Build, serve and ask a search engine, for training agents that search (Search-R1).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ToOption = Annotated[Path, option("DIR", "New folder for corpus and index.", "--to")]
EngineOption = Annotated[str | None, option("NAME", "flat (exact), faiss (such as HNSW), or bm25 (by words).")]
EncoderOption = Annotated[str | None, option("HUB_ID|DIR", "Model that makes vectors of texts.")]
PrefixesOption = Annotated[str | None, option("NAME", "What the encoder puts before texts: e5, bge, none.")]
DeviceOption = Annotated[str, option("DEVICE", "cpu, or cuda:0 (also for AMD).", "--device")]
UrlOption = Annotated[str, option("URL", "Address of the server.", "--url")]
TopkOption = Annotated[int | None, typer.Option(metavar="K", help="Passages per query.", min=1)]
TokenOption = Annotated[
    Path | None, option("FILE", "Read the token of the server from a file. Default: $CLOUDRL_RETRIEVER_TOKEN.")
]
_URL = "http://127.0.0.1:8000"


@app.command()
def build(
    sources: Annotated[
        list[Path], typer.Argument(metavar="SOURCE...", help="Files or folders: jsonl, parquet, txt, md.")
    ],
    to: ToOption,
    engine: EngineOption = None,
    encoder: EncoderOption = None,
    prefixes: PrefixesOption = None,
    device: DeviceOption = "cpu",
    words: Annotated[
        int | None, typer.Option(metavar="N", help="Words of a passage, where texts are cut.", min=1)
    ] = None,
    factory: Annotated[str | None, option("TEXT", "For faiss, the kind of index. Default: HNSW64.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Build an index of your own passages. Run it again to resume after an interruption.

    Rows have `contents`, or `text` and perhaps `title`. The default encoder is intfloat/e5-base-v2.
    """
    from cloudrl.retriever.build import BuildOptions
    from cloudrl.sdk import retriever

    options = BuildOptions(
        tuple(sources),
        **explicit(engine=engine, encoder=encoder, prefixes=prefixes, words=words, factory=factory),
    )
    _quiet_libraries()
    with Terminal() as terminal:
        record = retriever.build(options, to, device=device, on_progress=terminal)
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
def serve(
    place: Annotated[
        Path | None, typer.Argument(metavar="DIR|INDEX", help="Folder of build or fetch, or an index file.")
    ] = None,
    corpus: Annotated[Path | None, option("FILE", "Passages as jsonl, if the index alone is given.")] = None,
    engine: Annotated[
        str | None,
        option(
            "NAME", "flat, faiss or bm25, if the index does not say; serpapi searches the web, with $SERPAPI_API_KEY."
        ),
    ] = None,
    encoder: EncoderOption = None,
    prefixes: PrefixesOption = None,
    device: DeviceOption = "cpu",
    precision: Annotated[
        str | None, option("TYPE", "Search float32 or float16 (half the memory; GPUs' default). Both are exact.")
    ] = None,
    threads: Annotated[int | None, typer.Option(metavar="N", help="CPU threads. Default: all.", min=1)] = None,
    from_disk: Annotated[
        bool, typer.Option("--from-disk", help="Serve an index larger than the memory; slow.")
    ] = False,
    no_sample_check: Annotated[
        bool, typer.Option("--no-sample-check", help="Do not compare some passages with their vectors first.")
    ] = False,
    faiss_parameters: Annotated[str | None, option("K=V,...", "Search parameters of faiss: efSearch=128.")] = None,
    host: Annotated[
        str | None, option("ADDRESS", "Address to listen on. Default: loopback; others need a token.")
    ] = None,
    port: Annotated[int | None, typer.Option(metavar="N", help="Port. Default: 8000.", min=0, max=65535)] = None,
    token_file: TokenOption = None,
    peers: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT,...", envvar="CLOUDRL_RETRIEVER_PEERS",
            help="Share the index with other nodes: an address for each, this one's included, the same list on all.",
        ),
    ] = "",
    shard: Annotated[
        int | None,
        typer.Option(metavar="N", envvar="CLOUDRL_RETRIEVER_SHARD", help="This node's place in --peers, from 0."),
    ] = None,
    peer_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", envvar="CLOUDRL_RETRIEVER_PEER_TOKEN_FILE",
            help="Read the token from a file that the nodes of --peers show each other.",
        ),
    ] = None,
    topk: TopkOption = None,
    deadline_s: Annotated[
        float | None,
        typer.Option("--deadline", metavar="SECONDS", help="Longest time for a request. Default: 60.", min=0.001),
    ] = None,
    max_waiting: Annotated[
        int | None,
        typer.Option(metavar="N", help="Queries that may wait; beyond, clients get 503. Default: 16384.", min=1),
    ] = None,
) -> None:  # fmt: skip
    """Serve an index by Search-R1's interface, until Ctrl-C: POST /retrieve, GET /health, GET /metrics."""
    from cloudrl.retriever.opening import Source
    from cloudrl.retriever.server import ServeOptions
    from cloudrl.retriever.sharing import read_sharing
    from cloudrl.sdk import retriever

    source = Source(
        place,
        **explicit(
            corpus=corpus, engine=engine, encoder=encoder, prefixes=prefixes, device=device, precision=precision,
            faiss_parameters=faiss_parameters,
        ),
        from_disk=from_disk,
        sample_check=not no_sample_check,
    )  # fmt: skip
    options = ServeOptions(
        token=retriever.read_token(token_file),
        **explicit(host=host, port=port, topk=topk, timeout_s=deadline_s, max_waiting=max_waiting),
    )
    sharing = read_sharing(peers, shard, peer_token_file)
    _quiet_libraries()
    with Terminal() as terminal:
        retriever.serve(source, options, sharing=sharing, threads=threads, on_progress=terminal)


@app.command()
def ask(
    queries: Annotated[list[str], typer.Argument(metavar="QUERY...", help="What to search for.")],
    url: UrlOption = _URL,
    topk: TopkOption = None,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a server."""
    from cloudrl.sdk import retriever

    found = retriever.ask(queries, url, topk=topk, token=retriever.read_token(token_file))
    if as_json:
        _output.as_json([{"query": query, "found": each} for query, each in zip(queries, found, strict=True)])
        return
    for query, hits in zip(queries, found, strict=True):
        if not hits:
            _output.note(f"nothing found for {query!r}")
        rows = [(f"{hit['score']:.4f}", *_cells(hit["document"])) for hit in hits]
        _output.table(("score", "id", "passage"), rows)


@app.command()
def bench(
    url: UrlOption = _URL,
    clients: Annotated[int, typer.Option(metavar="N", help="Clients that ask at once.", min=1)] = 64,
    seconds: Annotated[float, typer.Option(metavar="S", help="How long to measure.", min=0.1)] = 10.0,
    queries: Annotated[
        Path | None, option("FILE", "Queries, one per line. Default: made-up questions.", "--queries")
    ] = None,
    topk: TopkOption = None,
    token_file: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a server under load: queries per second, latency, batch sizes."""
    from cloudrl.sdk import retriever

    token = retriever.read_token(token_file)
    load, health = retriever.bench(url, clients=clients, seconds=seconds, queries=queries, topk=topk, token=token)
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
