"""The archive: what stays of a run's logs on the checkpoint volume once its nodes have gone. Names, and what there is.

Below the folder of checkpoints, with SESSION as Ray calls its own folder, the same on all nodes (an attempt of a run
that is started again has another one)::

    .cloudrl/archive/RUN/rank-0/SESSION/logs/raylet.out.0.gz            of Ray's logs
    .cloudrl/archive/RUN/rank-0/SESSION/logs/raylet.out.7.gz            the pieces between were given up
    .cloudrl/archive/RUN/rank-0/SESSION/logs/job-driver-JOB.log.0.gz
    .cloudrl/archive/RUN/rank-0/SESSION/agent/agent.log.0.gz            of the agent and what it has started
    .cloudrl/archive/RUN/rank-0/SESSION/agent/node.json.0.gz            {"rank", "ip", "hostname", "utc_offset_s", ...}
    .cloudrl/archive/RUN/rank-0/SESSION/state/JOB.json.0.gz             Ray's state at the end of a job; on rank 0

A file is cut into pieces of `PIECE_BYTES`, at ends of lines. Each piece is a series of gzip members, whose headers have
the time at which they were kept (RFC 1952), and the last one of a node that was lost may be cut off. A file that was
emptied or replaced goes on as `raylet.out~2`.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from cloudrl.saves.names import OURS, file_name

FOLDER = Path(OURS, "archive")
LOGS, AGENT, STATE = "logs", "agent", "state"
NODE = f"{AGENT}/node.json"
PIECE_BYTES = 2 << 20
"""Of a log, about as much stands in one piece, before it is compressed."""

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,199}"
SESSION = re.compile(r"session_[0-9A-Za-z_-]{1,80}")
LOG = re.compile(rf"({_NAME}/){{0,2}}{_NAME}\.(log|out|err)(\.[0-9]{{1,3}})?")
"""Below the folder of a session's logs: what is taken. What else is there is no log of Ray's, or somebody's trap."""
_PIECE = re.compile(
    rf"(?P<run>{_NAME})/rank-(?P<rank>0|[1-9][0-9]{{0,3}})/(?P<session>{SESSION.pattern})/"
    rf"(?P<path>({LOGS}|{AGENT}|{STATE})(/{_NAME}){{1,3}}(~[0-9]{{1,6}})?)\.(?P<number>0|[1-9][0-9]{{0,8}})\.gz"
)


class Piece(NamedTuple):
    """A piece of a file in the archive.

    Attributes:
        run: the id of the run, as it is written in paths.
        path: of the file below the session, such as `logs/raylet.out`.
        size_bytes: compressed.
    """

    run: str
    rank: int
    session: str
    path: str
    number: int
    size_bytes: int = 0
    modified_at: float = 0.0

    @property
    def where(self) -> str:
        """Its path below the archive."""
        return f"{self.run}/rank-{self.rank}/{self.session}/{self.path}.{self.number}.gz"


def parse_piece(where: str, size_bytes: int = 0, modified_at: float = 0.0) -> Optional[Piece]:
    """What a path below the archive is a piece of, None for any other path."""
    match = _PIECE.fullmatch(where)
    if match is None:
        return None
    return Piece(
        match["run"], int(match["rank"]), match["session"], match["path"], int(match["number"]), size_bytes, modified_at
    )


def first_name(path: str) -> str:
    """The path of a file below its session as it was at first: that of `logs/raylet.out` for `logs/raylet.out~2`."""
    return path.partition("~")[0]


def driver_log(job: str) -> str:
    """The path of the log of a job's driver, by its submission id."""
    return f"{LOGS}/job-driver-{job}.log"


def state_file(job: str) -> str:
    """The path of Ray's state at the end of a job, by its submission id."""
    return f"{STATE}/{file_name(job)}.json"


def scan_archive(checkpoints: Path, run: Optional[str] = None, rank: Optional[int] = None) -> List[Dict[str, Any]]:
    """All pieces below a folder of checkpoints, or those of one run, or of one rank of it; no link is followed.

    Returns:
        {"path", "size_bytes", "modified_at"} of each.
    """
    root, pieces = checkpoints / FOLDER, []
    top = root / run if run else root
    for text, folders, names in os.walk(top if rank is None else top / f"rank-{rank}", followlinks=False):
        folders.sort()
        for name in sorted(names):
            try:
                info = os.lstat(os.path.join(text, name))  # noqa: PTH118  Path costs 20 times as much
            except OSError:  # given up just now
                continue
            path = os.path.relpath(os.path.join(text, name), root)  # noqa: PTH118
            if stat.S_ISREG(info.st_mode) and _PIECE.fullmatch(path):
                pieces.append({"path": path, "size_bytes": info.st_size, "modified_at": info.st_mtime})
    return pieces
