"""The archive of a cluster that is up: on the volumes of its nodes, and read through their agents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cloudrl.errors import ConnectionFailed, Unauthorized
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.ranks import first_few, ranks_text
from cloudrl.protocol.side_by_side import side_by_side
from cloudrl.saves.archive import Piece, parse_piece

_Answer = Mapping[str, Any] | ConnectionFailed


@dataclass(frozen=True)
class ClusterArchive:
    """What the nodes had when they were asked; see `ArchiveSource`.

    Attributes:
        name: The cluster's.
        agent: Of its rank 0.
        run: Whose logs these are.
        ranks: Each piece -> a node that has it.
        notes: What is missing, and why.
    """

    name: str
    agent: AgentClient
    run: str | None
    ranks: Mapping[Piece, int]
    notes: tuple[str, ...] = ()

    def pieces(self) -> Iterator[Piece]:
        """See `ArchiveSource`."""
        return iter(self.ranks)

    def read(self, piece: Piece) -> bytes:
        """See `ArchiveSource`."""
        return self.agent.archive_piece(self.ranks[piece], piece.where)


def ask_cluster(name: str, agent: AgentClient, ranks: Iterable[int], run: str | None = None) -> ClusterArchive:
    """Let each node keep what is new, and say what it has.

    Args:
        name: The cluster's.
        agent: Of its rank 0.
        ranks: Of its nodes, rank 0 first; those that share its volume list no more than what is their own.
        run: Whose logs; those of the present run for None.

    Raises:
        Unauthorized: The token is refused.
        InputError: The agents keep no logs, being of an older release.
    """
    newest: dict[str, tuple[Piece, int]] = {}
    silent: dict[int, str] = {}
    unable: dict[int, str] = {}
    for rank, answer in _ask_all(agent, list(ranks), run):
        if isinstance(answer, ConnectionFailed):
            silent[rank] = answer.message
            continue
        run = answer["run"]
        if answer["problem"]:
            unable[rank] = answer["problem"]
        for fields in answer["pieces"]:
            piece = parse_piece(*fields)
            # nodes may share a volume, and each knows best what it has written itself
            if piece is not None and (rank == piece.rank or piece.where not in newest):
                newest[piece.where] = piece, rank
    notes = (
        *_notes(unable, ("cannot keep its logs now", "cannot keep their logs either")),
        *_notes(silent, ("does not say what it has", "do not say what they have either")),
    )
    return ClusterArchive(name, agent, run, dict(newest.values()), notes)


def _ask_all(agent: AgentClient, ranks: list[int], run: str | None) -> list[tuple[int, _Answer]]:
    """What ranks have of a run. Those that share the volume of the first one do not list it once more.

    Of the present run they keep what is new, and list that. Of another run all is there already.
    """

    def ask(rank: int, run: str | None = run, *, own: bool = False) -> tuple[int, _Answer]:
        try:
            return rank, agent.archive(rank, run, own=own)
        except Unauthorized:
            raise
        except ConnectionFailed as failure:
            return rank, failure

    if not ranks:
        return []
    _, present = first = ask(ranks[0], None)
    listed = _present_ranks(present)
    if run is not None:
        _, other = first = ask(ranks[0])
        if isinstance(other, ConnectionFailed) or isinstance(present, ConnectionFailed):
            listed = frozenset()
        elif other["run"] != present["run"]:
            ranks = [rank for rank in ranks if rank == ranks[0] or rank not in listed]
    return [first, *side_by_side(lambda rank: ask(rank, own=rank in listed), ranks[1:])]


def _notes(problems: Mapping[int, str], words: tuple[str, str]) -> Iterator[str]:
    """What is wrong, of one rank and of the rest of many."""
    few, several = first_few(problems)
    for rank in few:
        yield f"rank {rank} {words[0]}: {problems[rank]}"
    if several:
        yield f"{ranks_text(several)} {words[1]}"


def _present_ranks(answer: _Answer) -> frozenset[int]:
    """The ranks that share a volume with the one that answers: it has what they keep of the present session."""
    if isinstance(answer, ConnectionFailed):
        return frozenset()
    pieces = [piece for fields in answer["pieces"] if (piece := parse_piece(*fields)) is not None]
    newest = max((piece.session for piece in pieces), default="")  # it begins with the time of its start
    return frozenset(piece.rank for piece in pieces if piece.session == newest)
