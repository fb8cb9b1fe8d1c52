"""An order to a node: have copies of files that another node has saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple


@dataclass(frozen=True)
class WantedFile:
    """A file as its original is.

    Attributes:
        path: below the folder of checkpoints, the same on both nodes.
        modified_at: seconds since the epoch; the copy gets this date, too.
    """

    path: str
    size_bytes: int
    modified_at: float


@dataclass(frozen=True)
class CopyOrder:
    """Files of one step.

    Attributes:
        rank: of the node that is to have them.
        source: of the node that has them.
        folder: `RUN/global_step_10`, below the folder of checkpoints.
        files: in the order in which they appear.
        address: of the source's agent, `10.0.0.2:8266`, or of a mirror; rank 0 fills it in.
        attempt: names the save in a mirror; "" for a node.
        is_urgent: whether the source may be gone soon, so that the copy may take all of the network.
    """

    rank: int
    source: int
    folder: str
    files: Tuple[WantedFile, ...]
    address: str = ""
    is_urgent: bool = False
    attempt: str = ""

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class ClearOrder:
    """Copies of one step that are not needed any more.

    Attributes:
        rank: of the node that has them.
        folder: `RUN/global_step_10`, below the folder of checkpoints.
        files: as they are listed; what the node has not copied itself stays.
    """

    rank: int
    folder: str
    files: Tuple[WantedFile, ...]


@dataclass(frozen=True)
class CopyState:
    """How far the copies of a step are on a node.

    Attributes:
        copied_bytes: of the order that is under way.
        error: why the last order for this step has failed; "" if it has not.
    """

    is_coming: bool = False
    copied_bytes: int = 0
    error: str = ""
