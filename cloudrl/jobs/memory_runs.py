"""The file in which this machine keeps what runs have needed: `memory.jsonl` below `$CLOUDRL_HOME`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from cloudrl.errors import CloudrlError
from cloudrl.foreign import Malformed, read_file
from cloudrl.private_files import write_file
from cloudrl.providers.state_folder import home, make_state_folder
from cloudrl.verl.memory.runs import RunMemory, parse_runs

_NAME, _LIMIT_BYTES, _MOST_RUNS = "memory.jsonl", 4 << 20, 2000


def read_runs(folder: Path | None = None) -> tuple[RunMemory, ...]:
    """The runs that are kept; none where the file cannot be read.

    Args:
        folder: this machine's state; None for `$CLOUDRL_HOME`.
    """
    try:
        text = read_file((folder or home()) / _NAME, _LIMIT_BYTES).decode("utf-8", "replace")
    except (OSError, Malformed):
        return ()
    return parse_runs(text.splitlines())


def keep_run(run: RunMemory, folder: Path | None = None) -> RunMemory:
    """Keep a run, or add to what is kept of it; what cannot be kept is left out, since no job fails by that.

    Returns:
        All that is known of the run.
    """
    place = folder or home()
    kept = read_runs(place)
    [*others, known] = parse_runs([*(each.to_line() for each in kept), run.to_line()])
    with suppress(OSError, CloudrlError):
        make_state_folder(place)
        write_file(place / _NAME, "\n".join([*(each.to_line() for each in (*others[-_MOST_RUNS:], known)), ""]))
    return known
