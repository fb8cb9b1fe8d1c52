"""What a verb tells its caller while it works."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Notice:
    """A sentence that the user should read, and what may be done about it."""

    text: str
    hint: str = ""


@dataclass(frozen=True)
class Transfer:
    """How far a copy is; the last one has `done_bytes == total_bytes`."""

    what: str
    done_bytes: int
    total_bytes: int
