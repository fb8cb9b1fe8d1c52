"""From an index to a server that answers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace

from cloudrl.retriever.opening import OnProgress, Retriever, Source, open_searches
from cloudrl.retriever.peers import bind_shard, share
from cloudrl.retriever.server import ServeOptions, bind
from cloudrl.retriever.server import serve as answer
from cloudrl.retriever.sharing import Sharing


def serve(
    source: Source,
    options: ServeOptions,
    *,
    sharing: Sharing | None = None,
    threads: int | None = None,
    on_progress: OnProgress,
    say: Callable[[str], object],
    on_ready: Callable[[str], object],
) -> None:
    """Serve an index until SIGINT or SIGTERM. Connections are refused until it can answer.

    Args:
        source: what to serve.
        options: how.
        sharing: the nodes that hold a part of the vectors each; None if this one holds all of them.
        threads: that torch computes with; all processors if None.
        on_progress: gets the progress of loading.
        say: gets a line about what is loaded, and about the node that it waits for.
        on_ready: gets the server's address.

    Raises:
        InputError: the port is taken, or what is to be served does not go together or does not fit.
    """
    with bind(options) as bound, bind_shard(sharing) if sharing else contextlib.nullcontext() as bound_shard:
        if sharing:
            source = replace(source, shard=sharing.shard, shards=len(sharing.addresses))
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        retriever = open_searches(source, on_progress=on_progress, say=say)
        host, port = bound.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        with_others = None
        if sharing and bound_shard and isinstance(retriever, Retriever):  # to no other do shards apply
            with_others = functools.partial(share, retriever, sharing, bound_shard, say=say)
        answer(retriever, bound, replace(options, port=port), on_ready=lambda: on_ready(address), share=with_others)
