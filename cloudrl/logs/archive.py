"""Reads the archive of a run's logs, local or on a node; its layout is in `cloudrl.saves.archive`."""

from __future__ import annotations

import zlib
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from cloudrl.errors import InputError
from cloudrl.foreign import LIMIT_BYTES, NOT_AS_EXPECTED, Malformed, parse_json, parse_object, read_all
from cloudrl.protocol.ray_state import RayState, checked
from cloudrl.protocol.wire import from_json
from cloudrl.saves import archive as names
from cloudrl.saves.archive import FOLDER, NODE, PIECE_BYTES, Piece, first_name, parse_piece, scan_archive
from cloudrl.saves.below import Refused, open_below

_CHUNK_BYTES = 1 << 20
_PIECE_BYTES = 4 * PIECE_BYTES
"""The most that is read of one: compressed, it is shorter than what it holds."""
_LONGEST_LINE = 1 << 20


class ArchiveSource(Protocol):
    """The place of an archive."""

    @property
    def name(self) -> str:
        """How a user calls it."""

    def pieces(self) -> Iterable[Piece]:
        """All that there are, in any order."""

    def read(self, piece: Piece) -> bytes:
        """A piece as it is stored; b"" where it has just been given up."""


@dataclass(frozen=True)
class FolderArchive:
    """Below a folder of checkpoints of this machine."""

    checkpoints: Path

    @property
    def name(self) -> str:
        """See `ArchiveSource`."""
        return str(self.checkpoints)

    def pieces(self) -> Iterator[Piece]:
        """See `ArchiveSource`."""
        for fields in scan_archive(self.checkpoints):
            if (piece := parse_piece(fields["path"], fields["size_bytes"], fields["modified_at"])) is not None:
                yield piece

    def read(self, piece: Piece) -> bytes:
        """See `ArchiveSource`."""
        try:
            with open_below(self.checkpoints / FOLDER, piece.where) as file:
                return read_all(file, _PIECE_BYTES)
        except (FileNotFoundError, Refused, Malformed):
            return b""


@dataclass(frozen=True)
class LogFile:
    """One file in an archive.

    Attributes:
        rank: of the node that it was on.
        session: Ray's; an attempt of a run that is started again has another one.
        path: such as `logs/raylet.out`.
        pieces: in their order; where one is missing, it was given up for later ones.
    """

    run: str
    rank: int
    session: str
    path: str
    pieces: tuple[Piece, ...]

    @property
    def size_bytes(self) -> int:
        """Of the pieces, compressed."""
        return sum(piece.size_bytes for piece in self.pieces)

    @property
    def modified_at(self) -> float:
        """When something was added, in seconds since the epoch."""
        return max(piece.modified_at for piece in self.pieces)


class Archive:
    """The logs of all runs in one place.

    Args:
        source: Its place.
    """

    def __init__(self, source: ArchiveSource) -> None:
        self.source = source

    @cached_property
    def files(self) -> tuple[LogFile, ...]:
        """All files, by run, session, rank and path."""
        pieces = sorted(set(self.source.pieces()), key=lambda piece: (*_file_of(piece), piece.number))
        return tuple(
            LogFile(run, rank, session, path, tuple(of_file))
            for (run, session, rank, path), of_file in groupby(pieces, _file_of)
        )

    @property
    def runs(self) -> tuple[str, ...]:
        """The runs by what was added last, the newest first."""
        latest: dict[str, float] = {}
        for file in self.files:
            latest[file.run] = max(file.modified_at, latest.get(file.run, 0.0))
        return tuple(sorted(latest, key=latest.__getitem__, reverse=True))

    def of(self, run: str | None = None, *, session: str | None = None, rank: int | None = None) -> tuple[LogFile, ...]:
        """The files of one run, of the newest one for None, and of one session or node of it if one is named.

        Raises:
            InputError: The archive has no such run, or no run at all.
        """
        runs = self.runs
        if not runs:
            raise InputError(f"no logs are kept in {self.source.name}", hint="Logs are kept from the start of Ray on")
        if run is not None and run not in runs:
            raise InputError(f"no logs of run {run!r} are kept; there are: {', '.join(runs)}")
        return tuple(
            file
            for file in self.files
            if file.run == (run or runs[0])
            and (session is None or file.session == session)
            and (rank is None or file.rank == rank)
        )

    def lines(self, file: LogFile) -> Iterator[str]:
        """The lines of a file, without their ends; where a part was given up, a line in brackets says so."""
        return (text for text, _ in self.dated_lines(file))

    def dated_lines(self, file: LogFile, since: float = 0.0) -> Iterator[tuple[str, float]]:
        """The same, each line with the time at which it was kept: seconds since the epoch, soon after it was written.

        Args:
            file: Which.
            since: Pieces to which nothing was added from then on are left out.
        """
        return _lines(self._pieces(file, since))

    def utc_offset_s(self, session: str, rank: int) -> float:
        """How far the clock of a node is ahead of UTC, in whose time its logs are written; 0 where it is lost."""
        for file in self.files:
            if (file.session, file.rank, file.path) == (session, rank, NODE):
                with suppress(*NOT_AS_EXPECTED):
                    return float(self._facts(file)["utc_offset_s"])
        return 0.0

    def runs_of(self, cluster: str) -> frozenset[str]:
        """The runs of clusters of that name, as far as their nodes have said it."""
        nodes = (file for file in self.files if file.path == NODE)
        return frozenset(node.run for node in nodes if self._facts(node).get("cluster") == cluster)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The submission ids of jobs whose driver's log is kept; that of which something was added last comes last."""
        return self.jobs_of(self.runs)

    def jobs_of(self, runs: Container[str]) -> tuple[str, ...]:
        """Those of some runs."""
        before, after = names.driver_log("|").split("|")
        paths = [(file.modified_at, first_name(file.path)) for file in self.files if file.run in runs]
        drivers = [path for _, path in sorted(paths) if path.startswith(before) and path.endswith(after)]
        newest_first = dict.fromkeys(path.removeprefix(before).removesuffix(after) for path in reversed(drivers))
        return tuple(reversed(newest_first))

    def driver_log(self, job: str) -> LogFile | None:
        """The log of a job's driver, by its submission id; of the newest of that name."""
        return self._newest(names.driver_log(job))

    def state(self, job: str) -> RayState | None:
        """Ray's state when the job, by its submission id, had ended; None where it was not kept or cannot be read."""
        file = self._newest(names.state_file(job))
        try:
            return checked(from_json(RayState, parse_json("" if file is None else self._text(file))))
        except ValueError:
            return None

    def _newest(self, path: str) -> LogFile | None:
        files = [file for file in self.files if first_name(file.path) == path]
        return max(files, key=lambda file: file.modified_at, default=None)

    def _facts(self, file: LogFile) -> Mapping[str, Any]:
        """What a node has said of itself."""
        with suppress(Malformed):
            return parse_object(self._text(file))
        return {}

    def _text(self, file: LogFile) -> str:
        """A short file; a few KB of gzip may be gigabytes of lines."""
        lines: list[str] = []
        left = LIMIT_BYTES
        for line in self.lines(file):
            left -= len(line) + 1
            if left < 0:
                raise Malformed(f"it has more than {LIMIT_BYTES} characters")
            lines.append(line)
        return "\n".join(lines)

    def _pieces(self, file: LogFile, since: float) -> Iterator[tuple[bytes, float]]:
        """The bytes of a file."""
        expected, kept_at = 0, 0.0
        for piece in file.pieces:
            if piece.number > expected:
                mib = (piece.number - expected) * PIECE_BYTES >> 20
                yield f"\n[cloudrl: about {mib} MiB of this file were not kept]\n".encode(), kept_at
            if piece.modified_at >= since:
                for chunk, kept_at in decompressed(self.source.read(piece)):
                    yield chunk, kept_at
            expected = piece.number + 1


def decompressed(stored: bytes) -> Iterator[tuple[bytes, float]]:
    """What gzip members hold, and when each was made, as far as they can be read: the last one may be cut off."""
    while stored:
        member, made_at = zlib.decompressobj(wbits=31), float(int.from_bytes(stored[4:8], "little"))
        try:
            while stored and not member.eof:
                yield member.decompress(stored, _CHUNK_BYTES), made_at
                stored = member.unconsumed_tail
        except zlib.error:
            return
        stored = member.unused_data


def _lines(chunks: Iterable[tuple[bytes, float]]) -> Iterator[tuple[str, float]]:
    """Lines, by either end, as progress bars have theirs; one of more than a MiB comes in parts."""
    rest, kept_at = b"", 0.0
    for chunk, kept_at in chunks:
        *complete, rest = (rest + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in complete:
            yield line.decode("utf-8", "replace"), kept_at
        if len(rest) > _LONGEST_LINE:
            yield rest.decode("utf-8", "replace"), kept_at
            rest = b""
    if rest:
        yield rest.decode("utf-8", "replace"), kept_at


def _file_of(piece: Piece) -> tuple[str, str, int, str]:
    return piece.run, piece.session, piece.rank, piece.path
