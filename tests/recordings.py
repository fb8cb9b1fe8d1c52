"""Recordings of jobs that failed on a real Ray of two nodes, as evidence."""

import json
from pathlib import Path

from cloudrl.jobs.causes import Evidence, LogTail
from cloudrl.protocol.ray_state import RayState
from cloudrl.protocol.wire import from_json

FOLDER = Path(__file__).parent / "jobs/causes/recorded"


def load(name: str) -> Evidence:
    held = json.loads((FOLDER / f"{name}.json").read_text())
    logs = [LogTail(**{**log, "lines": tuple(log["lines"])}) for log in held["logs"]]
    return Evidence(from_json(RayState, held["state"]), held["ranks"], logs)
