"""The secrets of jobs on one node: in memory, never on a disk, in a log or in an argument list.

What stands in a Ray job's `runtime_env.env_vars` is written to runtime_env_agent.log on every node, shown by
`/api/jobs/` and part of the argument list of each starting worker (measured with Ray 2.60; the places:
_private/runtime_env/agent/runtime_env_agent.py and _private/workers/setup_worker.py). So the values are in a file
of /dev/shm that its owner alone can read, and a shell reads it before it becomes the job's entry point and, through
`py_executable` of the runtime environment, before it becomes the Python of any task or actor, on every node.

They stay until the cluster ends. The end of a job proves nothing: a submission may have left its driver in the
background, whose workers read the file whenever they start, and Ray lists that driver as a part of the submission that
has ended (Ray 2.60, dashboard/modules/job/utils.py: get_driver_jobs).
"""

import os
import re
import shlex
import shutil
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from cloudrl.private_files import make_folder, write_file
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.folders import secrets_folder
from cloudrl.saves.names import file_name

MAX_BYTES = 64 * 1024
_SETTLED_NS = 2_000_000_000
"""A folder that has changed so lately may change again without another time of its change."""
_FileState = Tuple[int, int, int]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def folder_of(run_id: str) -> Path:
    """Where the secrets of a cluster's jobs are; the same path on every node."""
    return Path(secrets_folder(os.getuid(), file_name(run_id)[:80]))


class JobSecrets:
    """One node's secrets, a file a job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._known: Dict[str, Tuple[_FileState, List[str]]] = {}
        self._folder_state: Optional[Tuple[int, int]] = None

    @property
    def possible(self) -> bool:
        """Whether this machine has a file system in memory, and lets us write there."""
        return os.access(self.folder.parent, os.W_OK)

    def write(self, job: str, script: str) -> None:
        """Keep the script of a job; it appears whole.

        Raises:
            ApiError: NO_SPACE, the memory is full.
        """
        try:
            make_folder(self.folder)
            write_file(self.folder / job, script)
        except OSError as failure:
            reason = failure.strerror or str(failure)
            raise ApiError(ErrorCode.NO_SPACE, f"the secrets cannot be kept in {self.folder}: {reason}") from failure

    def read(self, job: str) -> Optional[str]:
        """The script of a job; None if absent."""
        try:
            return (self.folder / job).read_bytes().decode()
        except FileNotFoundError:
            return None

    def values(self) -> List[str]:
        """The secrets of all jobs, so that nothing of them is kept elsewhere.

        Asked with each piece of a log: files that have not changed since the last time are not read again, and neither
        is the folder. Who else writes there, another node of this machine, replaces files as `write` does.
        """
        with self._lock:
            asked_ns = time.time_ns()
            try:
                state = self.folder.stat()
                if (state.st_ino, state.st_mtime_ns) != self._folder_state:
                    self._known = {entry.name: self._read_values(entry) for entry in os.scandir(self.folder)}
                    settled = asked_ns - state.st_mtime_ns > _SETTLED_NS
                    self._folder_state = (state.st_ino, state.st_mtime_ns) if settled else None
            except (FileNotFoundError, NotADirectoryError):
                self._known, self._folder_state = {}, None
            return [value for _, values in self._known.values() for value in values]

    def _read_values(self, entry: "os.DirEntry[str]") -> Tuple[_FileState, List[str]]:
        if entry.name.startswith("."):  # a draft, not written to the end
            return (0, 0, 0), []
        try:
            info = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return (0, 0, 0), []
        state = info.st_ino, info.st_mtime_ns, info.st_size
        values = self._known.get(entry.name)
        if values is not None and values[0] == state:
            return values
        words = shlex.split(self.read(entry.name) or "")
        return state, [word.partition("=")[2] for word in words if "=" in word]

    def forget(self) -> None:
        """Remove what is kept for all jobs: the cluster ends."""
        shutil.rmtree(self.folder, ignore_errors=True)


def script(values: Any) -> str:
    """Shell text that sets variables and becomes the command in its arguments.

    Raises:
        ValueError: these are not variables.
    """
    if not isinstance(values, Mapping) or not all(isinstance(value, str) for value in values.values()):
        raise ValueError("secrets are an object of names and texts")
    checked: Dict[str, str] = dict(values)
    wrong = [name for name in checked if not _NAME.fullmatch(name)]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is not the name of a variable")
    if any("\0" in value for value in checked.values()):
        raise ValueError("a secret holds a NUL character")
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(checked.items())]
    return "\n".join([*lines, 'exec "$@"', ""])
