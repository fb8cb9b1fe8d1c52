"""What a client makes of the JSON of an agent's answers; anything that is no such answer raises, whatever is wrong."""

from itertools import chain
from typing import Any, Dict, Tuple

from cloudrl.foreign import Malformed, as_list
from cloudrl.protocol.report import Replica, Usage
from cloudrl.protocol.usage_rows import from_row
from cloudrl.protocol.wire import from_json

_NUMBER = (int, float)


def sizes(value: Any) -> Dict[str, int]:
    """Of the parts of a file or folder."""
    return {**value["files"]}


def archive(value: Any) -> Dict[str, Any]:
    """What a node has kept of logs."""
    pieces = [(str(piece["path"]), int(piece["size_bytes"]), float(piece["modified_at"])) for piece in value["pieces"]]
    return {"run": str(value["run"]), "problem": str(value["problem"]), "pieces": pieces}


def usage(value: Any) -> Dict[int, Tuple[Usage, ...]]:
    """How busy each rank was."""
    return {int(rank): tuple(map(from_row, rows)) for rank, rows in value["nodes"].items()}


def replicas(value: Any) -> Dict[int, Replica]:
    """How far each rank is with what a client has sent."""
    return {int(rank): from_json(Replica, replica) for rank, replica in value["nodes"].items()}


def inventory(value: Any) -> Dict[str, Any]:
    """The folders of a node; each has been listed, or names the node that lists it."""
    for folder in as_list(value["locations"], "locations"):
        _need(folder, root=str, folder=str)
        if "runs" not in folder:
            _need(folder["same_as"], marker=str, rank=int)
            continue
        _need(folder, markers=list, runs=list)
        for run in folder["runs"]:
            _check_run(run)
    return dict(value)


def _check_run(run: Any) -> None:
    _need(run, run=str, steps=list)
    if run["tracker"] is not None:
        _need(run["tracker"], text=str, modified_at=_NUMBER)
    for step in run["steps"]:
        _need(step, step=int, files=list, roles=list)
        for role in step["roles"]:
            _need(role, role=str, files=list, saves=list)
        for file in chain(step["files"], *(role["files"] for role in step["roles"])):
            _need(file, path=str, size_bytes=int, modified_at=_NUMBER)


def _need(row: Any, **kinds: Any) -> None:
    """Refuse what is not an object with these fields of these kinds."""
    for key, kind in kinds.items():
        if not isinstance(row[key], kind) or isinstance(row[key], bool):
            raise Malformed(f"{key} is of another kind")
