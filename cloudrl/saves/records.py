"""What was written down of a rank's save right after it had finished, beside the files of that save.

As JSON: `{"format": 2, "step": 10, "role": "actor", "rank": 1, "world_size": 2, "recorded_at": 1789.0, "files":
{"model_world_size_2_rank_1.pt": {"size_bytes": 123, "sha256": "9f86d0..."}}}`.

Of a torch file it is the SHA-256 of the directory at its end, in which torch has put name, place and CRC-32 of
everything in it. So the record says of every byte what it was, and no byte of a tensor is read to write it. The record
of rank 0 also has the small files of no rank, its config and tokenizer: of these it is the SHA-256 of all bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict

from cloudrl.errors import CheckpointError
from cloudrl.protocol import wire

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
    files: Dict[str, FileRecord] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Any) -> SaveRecord:
        """Read the JSON above; unknown keys are ignored.

        Raises:
            CheckpointError: It has not this form.
        """
        try:
            if not isinstance(value, dict) or value.get("format") != FORMAT:
                raise ValueError(f"its format is not {FORMAT}")
            return wire.from_json(cls, value)
        except ValueError as error:
            raise CheckpointError(f"this is not a record of a save ({error}): {str(value)[:200]}") from error

    def to_json(self) -> Dict[str, Any]:
        """See the module."""
        return {"format": FORMAT, **wire.to_json(self)}
