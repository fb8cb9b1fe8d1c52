"""What was written down of a rank's save right after it had finished, beside the files of that save.

As JSON: `{"format": 2, "step": 10, "role": "actor", "rank": 1, "world_size": 2, "recorded_at": 1789.0, "files":
{"model_world_size_2_rank_1.pt": {"size_bytes": 123, "sha256": "9f86d0..."}}}`.

Of a torch file it is the SHA-256 of the directory at its end, in which torch has put name, place and CRC-32 of
everything in it. So the record says of every byte what it was, and no byte of a tensor is read to write it. The record
of rank 0 also has the small files of no rank, its config and tokenizer: of these it is the SHA-256 of all bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict

from cloudrl.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 2


@dataclass(frozen=True)
class FileRecord:
    """A file as it was when its save had finished; the digest is in hexadecimals."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class SaveRecord:
    """The save of one rank of one role; `files` are by their path below the role's folder."""

    step: int
    role: str
    rank: int
    world_size: int
    recorded_at: float
    files: Mapping[str, FileRecord] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Any) -> SaveRecord:
        """Read the JSON above; unknown keys are ignored.

        Raises:
            CheckpointError: It has not this form.
        """
        try:
            if value["format"] != FORMAT:
                raise ValueError(f"format {value['format']!r}, not {FORMAT}")
            files = {
                str(name): FileRecord(int(each["size_bytes"]), str(each["sha256"]))
                for name, each in value["files"].items()
            }
            numbers = [int(value[key]) for key in ("step", "rank", "world_size")]
            role, recorded_at = str(value["role"]), float(value["recorded_at"])
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
            raise CheckpointError(f"this is no record of a save ({error!r}): {str(value)[:200]}") from error
        return cls(numbers[0], role, numbers[1], numbers[2], recorded_at, files)

    def to_json(self) -> Dict[str, Any]:
        """See the module."""
        files = {name: vars(each) for name, each in self.files.items()}
        return {
            "format": FORMAT, "step": self.step, "role": self.role, "rank": self.rank, "world_size": self.world_size,
            "recorded_at": self.recorded_at, "files": files,
        }  # fmt: skip
