"""What a client makes of the JSON of an agent's answers; anything that is no such answer raises, whatever is wrong."""

from typing import Any, Dict, Tuple

from cloudrl.protocol.report import Replica, Usage
from cloudrl.protocol.usage_rows import from_row
from cloudrl.protocol.wire import from_json


def sizes(value: Any) -> Dict[str, int]:
    """Of the parts of a file or folder."""
    return {**value["files"]}


def archive(value: Any) -> Dict[str, Any]:
    """What a node has kept of logs."""
    pieces = [(str(each["path"]), int(each["size_bytes"]), float(each["modified_at"])) for each in value["pieces"]]
    return {"run": str(value["run"]), "problem": str(value["problem"]), "pieces": pieces}


def usage(value: Any) -> Dict[int, Tuple[Usage, ...]]:
    """How busy each rank was."""
    return {int(rank): tuple(map(from_row, rows)) for rank, rows in value["nodes"].items()}


def replicas(value: Any) -> Dict[int, Replica]:
    """How far each rank is with what a client has sent."""
    return {int(rank): from_json(Replica, each) for rank, each in value["nodes"].items()}


def inventory(value: Any) -> Dict[str, Any]:
    """The folders of a node; each has been listed, or names the node that lists it."""
    for folder in value["locations"]:
        if "runs" not in folder:
            lister = folder["same_as"]
            if not isinstance(lister["marker"], str) or not isinstance(lister["rank"], int):
                raise ValueError("this is no marker of another node")
    return dict(value)
