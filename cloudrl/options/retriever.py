"""The options of the retrieval server: fields of its dataclasses, and keywords of `cloudrl.sdk.retriever`."""

from pathlib import Path
from typing import Annotated, TypedDict

from cloudrl.options.declaration import Option

_ENCODER = Option("Model that makes vectors of texts.", "HUB_ID|DIR")
_PREFIXES = Option("What the encoder puts before texts: e5, bge, none.", "NAME")
_DEVICE = Option("cpu, or cuda:0 (also for AMD). Default: cpu.", "DEVICE")
_TOPK = Option("Passages per query.", "K", least=1)


class IndexOptions(TypedDict, total=False):
    """What to build: fields of `cloudrl.retriever.build.BuildOptions`."""

    engine: Annotated[str, Option("flat (exact), faiss (such as HNSW), or bm25 (by words).", "NAME")]
    encoder: Annotated[str, _ENCODER]
    prefixes: Annotated[str, _PREFIXES]
    words: Annotated[int, Option("Words of a passage, where texts are cut.", "N", least=1)]
    factory: Annotated[str, Option("For faiss, the kind of index. Default: HNSW64.", "TEXT")]


class DeviceOptions(TypedDict, total=False):
    """What computes the vectors of a build."""

    device: Annotated[str, _DEVICE]


class SourceOptions(TypedDict, total=False):
    """What to serve: fields of `cloudrl.retriever.opening.Source`."""

    corpus: Annotated[Path, Option("Passages as jsonl, if the index alone is given.", "FILE")]
    engine: Annotated[
        str,
        Option(
            "flat, faiss or bm25, if the index does not say; serpapi searches the web, with $SERPAPI_API_KEY.", "NAME",
        ),
    ]  # fmt: skip
    encoder: Annotated[str, _ENCODER]
    prefixes: Annotated[str, _PREFIXES]
    device: Annotated[str, _DEVICE]
    precision: Annotated[
        str, Option("Search float32 or float16 (half the memory; GPUs' default). Both are exact.", "TYPE")
    ]
    from_disk: Annotated[bool, Option("Serve an index larger than the memory; slow.", sets=True)]
    sample_check: Annotated[
        bool,
        Option("Do not compare some passages with their vectors first.", names=("--no-sample-check",), sets=False),
    ]
    faiss_parameters: Annotated[str, Option("Search parameters of faiss: efSearch=128.", "K=V,...")]


class ServeOptions(TypedDict, total=False):
    """How to serve: fields of `cloudrl.retriever.server.ServeOptions`."""

    host: Annotated[str, Option("Address to listen on. Default: loopback; others need a token.", "ADDRESS")]
    port: Annotated[int, Option("Port. Default: 8000.", "N", least=0, most=65535)]
    topk: Annotated[int, _TOPK]
    timeout_s: Annotated[
        float, Option("Longest time for a request. Default: 60.", "SECONDS", ("--deadline",), least=0.001)
    ]
    max_waiting: Annotated[int, Option("Queries that may wait; beyond, clients get 503. Default: 16384.", "N", least=1)]


class SharingOptions(TypedDict, total=False):
    """Nodes that share an index: parameters of `cloudrl.retriever.sharing.read_sharing`."""

    peers: Annotated[
        str,
        Option(
            "Share the index with other nodes: an address for each, this one's included, the same list on all.",
            "HOST:PORT,...", variable="CLOUDRL_RETRIEVER_PEERS",
        ),
    ]  # fmt: skip
    shard: Annotated[int, Option("This node's place in --peers, from 0.", "N", variable="CLOUDRL_RETRIEVER_SHARD")]
    peer_token_file: Annotated[
        Path,
        Option(
            "Read the token from a file that the nodes of --peers show each other.", "FILE",
            variable="CLOUDRL_RETRIEVER_PEER_TOKEN_FILE",
        ),
    ]  # fmt: skip


class AskOptions(TypedDict, total=False):
    """Of a question to a server."""

    topk: Annotated[int, _TOPK]


class LoadOptions(TypedDict, total=False):
    """How to measure a server: keywords of `cloudrl.sdk.retriever.bench`."""

    clients: Annotated[int, Option("Clients that ask at once. Default: 64.", "N", least=1)]
    seconds: Annotated[float, Option("How long to measure. Default: 10.", "S", least=0.1)]
    queries: Annotated[Path, Option("Queries, one per line. Default: made-up questions.", "FILE")]
    topk: Annotated[int, _TOPK]
