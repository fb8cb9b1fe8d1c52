"""Cleans up behind an agent that was killed: after SIGKILL it cannot end its processes or remove its folders itself.

Most of its children die with it (`Child`), but a job's driver may live on: Ray starts it in a session of its own, and
the shell that would end it waits for a process that may stay a zombie (Ray 2.60,
dashboard/modules/job/job_supervisor.py).
"""

import contextlib
import os
import secrets
import shutil
import signal
import time
from pathlib import Path
from typing import Callable, Mapping, Optional, Sequence, Set

from cloudrl.child_process import Child, marked, self_command
from cloudrl.node.shutdown import RELEASE, SIGNALS

VARIABLE = "CLOUDRL_AGENT_ID"
"""In the environment of all that an agent has started: the same random text."""
_GRACE_S = 2.0
_KILLED_S = 10.0


def new_agent_id() -> str:
    """A text that no other agent has."""
    return secrets.token_hex(8)


class Guard:
    """The process that waits for the agent's end. `release` it when the agent has cleaned up.

    Args:
        agent_id: The value of `VARIABLE` in the environment of the agent's children.
        ray_temp_dir: Ray's folder on this node, None for Ray's default, which is left alone.
        secrets: The folder with the jobs' secrets.
        env: The guard's own environment.
        log: Takes the guard's output.
    """

    def __init__(
        self, agent_id: str, *, ray_temp_dir: Optional[Path], secrets: Path, env: Mapping[str, str], log: Path
    ) -> None:
        reading, self._writing = os.pipe()
        folders = [str(folder) for folder in (ray_temp_dir, secrets) if folder is not None]
        own_env = {name: value for name, value in env.items() if name != VARIABLE}
        try:
            command = self_command("guard", str(reading), agent_id, *folders)
            self._child = Child(command, log=log, env=own_env, pass_fds=(reading,), bound=False)
        except BaseException:
            os.close(self._writing)
            raise
        finally:
            os.close(reading)

    def release(self) -> None:
        """End the guard: nothing is left for it."""
        with contextlib.suppress(OSError):  # it has died
            os.write(self._writing, RELEASE)
        os.close(self._writing)
        self._child.wait(_GRACE_S)


def main(words: Sequence[str]) -> int:
    """`FD AGENT_ID [FOLDER ...]`: wait for the end of file on a descriptor, and clean up unless RELEASE came first."""
    descriptor, agent_id, *folders = words
    for number in SIGNALS:  # they may be sent to the whole group of the agent
        signal.signal(number, signal.SIG_IGN)
    with os.fdopen(int(descriptor), "rb") as pipe:
        if pipe.read() == RELEASE:
            return 0
    end_all(lambda: marked(VARIABLE, agent_id))
    for folder in folders:
        remove_folder(Path(folder))
    return 0


def end_all(
    find: Callable[[], Set[int]],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """End processes, also those that they start meanwhile: SIGTERM, and SIGKILL to what is left after 2 s."""
    began = clock()
    told: Set[int] = set()
    while (living := find()) and clock() < began + _KILLED_S:
        is_late = clock() > began + _GRACE_S
        for pid in living if is_late else living - told:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        told |= living
        sleep(0.05)


def remove_folder(folder: Path) -> None:
    """Remove a folder, and the one around it if this was the last in there: several nodes of a machine share it."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
