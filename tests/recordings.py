"""Recordings of jobs that failed on a real Ray of two nodes, as evidence."""

import gzip
import json
from pathlib import Path

from cloudrl.logs.causes import Evidence, LogTail
from cloudrl.protocol.ray_state import RayState
from cloudrl.protocol.wire import from_json, to_json
from cloudrl.saves.archive import FOLDER as ARCHIVE
from cloudrl.saves.archive import NODE, Piece, state_file

FOLDER = Path(__file__).parent / "logs/causes/recorded"


def load(name: str) -> Evidence:
    held = json.loads((FOLDER / f"{name}.json").read_text())
    logs = [LogTail(**{**log, "lines": tuple(log["lines"])}) for log in held["logs"]]
    return Evidence(from_json(RayState, held["state"]), held["ranks"], logs)


def keep(folder: Path, held: Evidence, *, with_state: bool = True, cluster: str = "lab") -> str:
    """Write a recording as the agents of a cluster's nodes would; returns the submission id."""
    job = str(held.state.job["submission_id"])
    texts = {(log.rank or 0, f"logs/{log.name}"): "\n".join(log.lines) for log in held.logs}
    texts[0, NODE] = json.dumps({"rank": 0, "cluster": cluster})
    if with_state:
        texts[0, state_file(job)] = json.dumps(to_json(held.state))
    for (rank, path), text in texts.items():
        file = folder / ARCHIVE / Piece("run", rank, "session_1", path, 0).where
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(text.encode() + b"\n"))
    return job
