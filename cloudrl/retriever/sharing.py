"""An index in shards: each node holds a part of the rows, and the node that is asked merges what all of them find.

Every node has the same list of addresses, one for each shard, in order. The exact search of a part gives the scores
that the search of the whole gives, so the best of all parts are the best of the whole. What nodes send each other are
vectors, rows and scores, as raw bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cloudrl.errors import InputError
from cloudrl.retriever.addresses import Address
from cloudrl.retriever.exact import Hit
from cloudrl.retriever.tokens import read_token
from cloudrl.retriever.vectors import Floats


@dataclass(frozen=True)
class Sharing:
    """What a node knows of the nodes that share an index.

    Attributes:
        addresses: where each shard answers the other nodes, in the order of shards; the same on every node.
        shard: which of them is this node's.
        token: that nodes show each other.
    """

    addresses: tuple[Address, ...]
    shard: int
    token: str = field(repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.shard < len(self.addresses):
            raise InputError(
                f"--shard {self.shard}: --peers names {len(self.addresses)} nodes, so shards are 0 to "
                f"{len(self.addresses) - 1}",
                hint="Each node names all nodes with --peers, itself among them, and its own place with --shard",
            )
        if len(set(self.addresses)) < len(self.addresses):
            raise InputError("--peers names an address twice", hint="Each shard has an address of its own: HOST:PORT")
        if not self.token:
            raise InputError(
                "nodes that share an index need a token",
                hint="--peer-token-file FILE\nIts content, the same on all nodes: openssl rand -hex 32 > FILE",
            )

    @classmethod
    def parse(cls, peers: str, shard: int, token: str) -> Sharing:
        """Read the addresses as `HOST:PORT,HOST:PORT`.

        Raises:
            InputError: a peer is not an address, or `shard` and `token` contradict it.
        """
        try:
            addresses = tuple(Address.parse(address.strip()) for address in peers.split(","))
        except ValueError as error:
            raise InputError(f"--peers: {error}", hint="--peers 10.0.0.1:8100,10.0.0.2:8100 --shard 0") from error
        return cls(addresses, shard, token)

    @property
    def address(self) -> Address:
        """Where this node answers the others."""
        return self.addresses[self.shard]


def read_sharing(peers: str = "", shard: int | None = None, peer_token_file: Path | None = None) -> Sharing | None:
    """The nodes that share an index; None if there is one alone.

    Args:
        peers: `HOST:PORT` of each node, in the order of shards, with commas; "" for none.
        shard: of this node.
        peer_token_file: has what nodes show each other.

    Raises:
        InputError: one is missing or cannot be, or the file cannot be read, or is empty.
    """
    if not peers and shard is None and peer_token_file is None:
        return None
    if not peers or shard is None or peer_token_file is None:
        raise InputError(
            "nodes share an index with --peers, --shard and --peer-token-file together",
            hint="--peers 10.0.0.1:8100,10.0.0.2:8100 --shard 0 --peer-token-file FILE",
        )
    sharing = Sharing.parse(peers, shard, read_token(peer_token_file, "--peer-token-file"))
    return sharing if len(sharing.addresses) > 1 else None


def rows_of(shard: int, shards: int, count: int) -> range:
    """The rows of a shard, of `count` in all.

    Raises:
        InputError: it would have none.
    """
    if count < shards:
        raise InputError(f"{count} passages cannot be shared by {shards} nodes", hint="Leave out --peers and --shard")
    return range(count * shard // shards, count * (shard + 1) // shards)


def merge(parts: Sequence[list[list[Hit]]], k: int) -> list[list[Hit]]:
    """The best `k` for each query, of what each shard has found for it; ties by the lower row."""
    return [
        sorted((hit for hits in of_query for hit in hits), key=lambda hit: (-hit.score, hit.row))[:k]
        for of_query in zip(*parts, strict=True)
    ]


def vectors_bytes(vectors: Floats) -> bytes:
    """Vectors as they are sent."""
    return vectors.astype("<f4").tobytes()


def read_vectors(content: bytes, dim: int) -> Floats:
    """What `vectors_bytes` has made.

    Raises:
        ValueError: the bytes are not hits, or not of `dim` numbers.
    """
    vectors: Floats = np.frombuffer(content, "<f4").reshape(-1, dim).astype(np.float32)
    return vectors


def hits_bytes(hits_of_queries: Sequence[Sequence[Hit]]) -> bytes:
    """What was found, as it is sent: the rows for all queries, then their scores. Each query has equally many."""
    rows, scores = ([[hit[column] for hit in hits] for hits in hits_of_queries] for column in (0, 1))
    return np.array(rows, "<i8").tobytes() + np.array(scores, "<f8").tobytes()


def read_hits(content: bytes, queries: int) -> list[list[Hit]]:
    """What `hits_bytes` has made for so many queries.

    Raises:
        ValueError: it is something else.
    """
    middle = len(content) // 2
    rows = np.frombuffer(content[:middle], "<i8").reshape(queries, -1).tolist()
    scores = np.frombuffer(content[middle:], "<f8").reshape(queries, -1).tolist()
    return [list(map(Hit, *of_query)) for of_query in zip(rows, scores, strict=True)]
