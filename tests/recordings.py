"""Recordings of jobs that failed on a real Ray of two nodes, as evidence."""

import json
from pathlib import Path

from cloudrl.jobs.causes import Evidence, LogFile

FOLDER = Path(__file__).parent / "jobs/causes/recorded"


def load(name: str) -> Evidence:
    held = json.loads((FOLDER / f"{name}.json").read_text())
    logs = [LogFile(**{**log, "lines": tuple(log["lines"])}) for log in held.pop("logs")]
    return Evidence(logs=logs, **held)
