"""What verbs tell and ask, on a terminal.

Notices are lines, bytes and steps stand on a line that is rewritten, nodes in a table that redraws itself; where nobody
watches all of it comes line by line.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from cloudrl.cli import _output
from cloudrl.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from cloudrl.jobs import Event
    from cloudrl.providers.dstack.fleets import FleetState
    from cloudrl.providers.model import Status
    from cloudrl.sdk.callbacks import Question, Transfer, Update

_TAIL_LINES = 20
_RATE_WINDOW_S = 10.0
_SHOW_EVERY_S = 0.2
_WRITE_EVERY_S = 15.0


class Terminal:
    """A verb's `on_progress` and, by `confirm`, its `confirm`. As a context manager it leaves the terminal tidy.

    Args:
        yes: the user has said -y.
        on_job: called with a job that has just been submitted; prints its URL unless given.
    """

    def __init__(self, *, yes: bool = False, on_job: Callable[[Any], None] | None = None) -> None:
        self._yes, self._on_job = yes, on_job or (lambda job: _output.data(job.url))
        self._line, self._nodes, self._transfers = _StatusLine(), _Nodes(), _Transfers()
        self._machines: dict[str, str] = {}
        self._tail = deque[str](maxlen=_TAIL_LINES)
        self._has_progress = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave what stands there, and go to the next line."""
        self._nodes.close()
        self._line.close()

    def __call__(self, update: Update) -> None:
        """Show one update."""
        from cloudrl.jobs import JobHandle
        from cloudrl.providers.dstack.fleets import FleetState
        from cloudrl.providers.model import Status
        from cloudrl.sdk.callbacks import Notice, Transfer

        if isinstance(update, Status):
            self._line.close()
            self._nodes.show(update)
            return
        self._nodes.close()
        if isinstance(update, Transfer):
            self._transfers.show(update, self._line)
        elif isinstance(update, Notice):
            self._say(update.text, update.hint)
        elif isinstance(update, FleetState):
            self._show_machines(update)
        elif isinstance(update, JobHandle):
            self.close()
            self._on_job(update)
        else:
            self._show_event(update)

    def confirm(self, question: Question) -> bool:
        """Ask; -y answers all but what is explicit.

        Raises:
            InputError: nobody is there to ask, and it needs an answer.
        """
        self.close()
        if self._yes and not question.explicit:
            return True
        if _output.is_interactive():
            return _output.ask(question.text)
        if question.default is None:
            raise InputError(f"{question.text} Nobody is there to ask", hint="Say it with -y")
        return question.default

    def _say(self, text: str, hint: str = "") -> None:
        self._line.close()
        _output.note(text)
        if hint:
            _output.hint(hint)

    def _show_event(self, event: Event) -> None:
        from cloudrl.jobs import Ended, Line, Progress
        from cloudrl.jobs.format import describe
        from cloudrl.verl.metrics import plain, without_ansi

        if isinstance(event, Line):
            self._tail.append(event.text)
            if not self._has_progress and (text := plain(event.text).strip()):
                self._line.replace(f"waiting for step 1: {text}")
        elif isinstance(event, Progress):
            self._has_progress = True
            self._line.step(describe(event))
        elif isinstance(event, Ended) and not event.succeeded:
            end = "\n".join(f"  {without_ansi(line)}" for line in self._tail)
            self._say(f"The end of the log:\n{end}")

    def _show_machines(self, fleet: FleetState) -> None:
        """A line when a machine changes its status."""
        for each in fleet.instances:
            if self._machines.get(each.name) != each.status:
                self._machines[each.name] = each.status
                self._say(f"{each.name} ({each.hostname or each.region or 'no address yet'}): {each.status}")


class Pace:
    """Rate over the last ten seconds, and what it says of the rest.

    Args:
        clock: Seconds that never run backwards.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque([(clock(), 0)])

    def describe(self, done_bytes: int, total_bytes: int) -> str:
        """For example `3.1 of 12.4 GB, 250 MB/s, 37 s left`; a rate is there once some time has passed."""
        from cloudrl.jobs.format import duration
        from cloudrl.sdk.amounts import gigabytes

        now = self._clock()
        self._seen.append((now, done_bytes))
        while len(self._seen) > 2 and self._seen[1][0] < now - _RATE_WINDOW_S:
            self._seen.popleft()
        since, before = self._seen[0]
        of = f"{gigabytes(done_bytes)} of " if done_bytes < total_bytes else ""
        parts = [f"{of}{gigabytes(total_bytes)}"]
        if now - since >= 0.5 and done_bytes > before:
            rate = (done_bytes - before) / (now - since)
            parts.append(f"{gigabytes(round(rate))}/s")
            if done_bytes < total_bytes:
                parts.append(f"{duration((total_bytes - done_bytes) / rate)} left")
        return ", ".join(parts)


class _Transfers:
    """Shows bytes now and then, and the end of each transfer once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paces: dict[str, Pace] = {}
        self._ended: set[tuple[str, int]] = set()
        self._shown_at, self._written_at = 0.0, clock()

    def show(self, update: Transfer, line: _StatusLine) -> None:
        now, ended = self._clock(), update.done_bytes >= update.total_bytes
        key = (update.what, update.total_bytes)
        if key in self._ended or (not ended and now - self._shown_at < _SHOW_EVERY_S):
            return
        self._shown_at = now
        pace = self._paces.setdefault(update.what, Pace(self._clock))
        text = f"{update.what}: {pace.describe(update.done_bytes, update.total_bytes)}"
        if ended:
            self._ended.add(key)
            del self._paces[update.what]
        if _output.is_interactive():
            line.replace(text)
        elif ended or now - self._written_at >= _WRITE_EVERY_S:
            self._written_at = now
            _output.note(text)


class _Nodes:
    """The nodes of a cluster that comes up: a table, or a line when one changes its phase."""

    def __init__(self) -> None:
        self._live: Any = None
        self._last: dict[int, str] = {}
        self._attempts = 0

    def show(self, status: Status) -> None:
        from cloudrl.cli._status_table import describe_attempt, node_table

        if _output.is_interactive():
            if self._live is None:
                from rich.live import Live

                self._live = Live(console=_output.console(), refresh_per_second=8, transient=False)
                self._live.start()
            self._live.update(node_table(status))
            return
        for attempt in status.previous_attempts[self._attempts :]:
            _output.note(describe_attempt(attempt))
        self._attempts = len(status.previous_attempts)
        for node in status.nodes:
            rank, phase = node.rank, node.phase.value
            if self._last.get(rank) != phase:
                self._last[rank] = phase
                _output.note(f"rank {rank} ({node.ip}): {phase}")

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._live = None


class _StatusLine:
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
        self.replace(text) if self._rewrites else _output.note(text)

    def close(self) -> None:
        """Go to the next line."""
        if self._is_open:
            sys.stderr.write("\n")
            sys.stderr.flush()
        self._is_open = False
