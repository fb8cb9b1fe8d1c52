"""Which commit a job was submitted from."""

import subprocess
from pathlib import Path

_TIMEOUT_S = 5.0


def find_commit(folder: Path) -> str:
    """The commit of the repository that a folder belongs to: `1a2b3c4`, and `1a2b3c4 with changes` if files differ.

    Returns:
        "" outside of a repository, without git, and where git does not answer within five seconds.
    """
    try:
        commit = _git(folder, "rev-parse", "--short", "HEAD").strip()
        changes = _git(folder, "status", "--porcelain", "--untracked-files=no").strip()
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return ""
    return f"{commit} with changes" if changes else commit


def _git(folder: Path, *words: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    return done.stdout
