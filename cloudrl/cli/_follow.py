"""Following a job in a terminal: one line that is rewritten, or a line a step where nobody watches."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import deque
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from cloudrl.cli import _output
from cloudrl.errors import ConnectionFailed, Interrupted
from cloudrl.jobs import Ended, Line, Progress
from cloudrl.jobs.format import describe
from cloudrl.jobs.handle import raise_for_status
from cloudrl.verl.metrics import plain, without_ansi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cloudrl.jobs import JobHandle

_SHOWN_LINES = 20


def follow_progress(
    job: JobHandle, *, target: str = "", on_progress: Callable[[Progress], None] = lambda _: None
) -> Progress | None:
    """Show progress until the job has ended; returns where it stood last.

    Args:
        job: The job.
        target: Options that name its cluster, for the commands that are suggested.
        on_progress: Called after each step.

    Raises:
        JobFailed: It failed or was stopped; the end of its log has been shown.
        Interrupted: The user pressed Ctrl-C; the job goes on.
        ConnectionFailed: Nobody answers any more; the job goes on.
    """
    shown, last, tail = StatusLine(), None, deque[str](maxlen=_SHOWN_LINES)
    with closing(shown), goes_on(job, target):
        for event in job.follow(on_break=lambda failure: shown.say(lost(failure))):
            if isinstance(event, Line):
                tail.append(event.text)
                if last is None and (text := plain(event.text).strip()):
                    shown.replace(f"waiting for step 1: {text}")
            elif isinstance(event, Progress):
                last = event
                on_progress(event)
                shown.step(describe(event))
            elif isinstance(event, Ended) and not event.succeeded:
                end = "\n".join(f"  {without_ansi(line)}" for line in tail)
                shown.say(f"The end of the log:\n{end}")
                raise_for_status(job, event)
    return last


@contextmanager
def goes_on(job: JobHandle, target: str = "") -> Iterator[None]:
    """What ends the following early says that the job goes on, and how to come back.

    Raises:
        Interrupted: The user pressed Ctrl-C.
        ConnectionFailed: Nobody answers any more.
    """
    try:
        yield
    except KeyboardInterrupt:
        what = f"no longer following; job {job.submission_id} goes on"
        raise Interrupted(what, hint=way_back(job, target)) from None
    except ConnectionFailed as failure:
        what = f"{failure.message}\njob {job.submission_id} goes on without us"
        raise type(failure)(what, hint=way_back(job, target)) from failure


def lost(failure: ConnectionFailed) -> str:
    """What is said when a connection broke and is going to be tried again."""
    return f"connection lost, trying again: {failure.message}"


def way_back(job: JobHandle, target: str = "") -> str:
    """How to follow the job again, and how to stop it."""
    return (
        f"Follow it: cloudrl jobs logs -f {job.submission_id}{target}\n"
        f"Stop it:   cloudrl jobs stop {job.submission_id}{target}"
    )


def target_options(cluster: str | None, address: str | None) -> str:
    """The options that name the cluster, as the user gave them, for suggested commands."""
    if cluster is not None:
        return f" --cluster {shlex.quote(cluster)}"
    return f" --address {shlex.quote(address)}" if address is not None else ""


class StatusLine:
    """The last line of the terminal."""

    def __init__(self) -> None:
        self._rewrites = sys.stderr.isatty()
        self._is_open = False

    def replace(self, text: str) -> None:
        """Show `text` in place of what stood there; nothing where lines cannot be rewritten."""
        if not self._rewrites:
            return
        width = shutil.get_terminal_size().columns - 1
        shown = "".join(each for each in text if each.isprintable())[:width]
        sys.stderr.write(f"\r\x1b[K{shown}")
        sys.stderr.flush()
        self._is_open = True

    def step(self, text: str) -> None:
        """Show a step: in place, or as a line of its own."""
        if self._rewrites:
            self.replace(text)
        else:
            _output.note(text)

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self.close()
        _output.note(text)

    def close(self) -> None:
        """Leave what stands there, and go to the next line."""
        if self._is_open:
            sys.stderr.write("\n")
            sys.stderr.flush()
        self._is_open = False
