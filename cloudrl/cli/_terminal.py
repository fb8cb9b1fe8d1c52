"""What verbs tell and ask, on a terminal.

Notices are lines, bytes and steps stand on a line that is rewritten, nodes in a table that redraws itself; where no one
watches all of it comes line by line.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from cloudrl.cli import _output
from cloudrl.cli._nodes import node_table
from cloudrl.cli._status_line import StatusLine
from cloudrl.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self

    from cloudrl.cli._screen import Screen
    from cloudrl.jobs import Ended, Event, JobHandle, Progress
    from cloudrl.jobs.look import Look
    from cloudrl.providers.model import Status
    from cloudrl.sdk.callbacks import Question, Transfer, Update, Waiting
    from cloudrl.sdk.progress_lines import ClusterLines, StartLines, TransferPace

_TAIL_LINES = 20
_PAUSED = "waits for a debugger: cloudrl debug"
"""What a task of a job with --debug says when it stops (`cloudrl.node.stop_hook`)."""


class Terminal:
    """A verb's `on_progress` and, by `confirm`, its `confirm`. As a context manager it leaves the terminal tidy.

    Args:
        yes: the user has said -y.
        prints_job: whether the URL of a job that has just been submitted is data.
        curves: metrics that are drawn of a job that is watched, beside reward and validation.

    Attributes:
        job: the last that has been submitted.
        progress: its last step.
        ended: how it has ended.
    """

    job: JobHandle | None = None
    progress: Progress | None = None
    ended: Ended | None = None

    def __init__(self, *, yes: bool = False, prints_job: bool = True, curves: Sequence[str] = ()) -> None:
        self._yes, self._prints_job = yes, prints_job
        self._curves = curves
        self._line, self._nodes = StatusLine(), _Nodes()
        self._start: StartLines | None = None
        self._waiting: Waiting | None = None
        self._text, self._has_progress = "", False
        self._screen: Screen | None = None
        self._warned: set[tuple[str, str]] = set()
        self._paces: dict[tuple[str, int], TransferPace] = {}
        self._tail = deque[str](maxlen=_TAIL_LINES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave what stands there, and go to the next line."""
        self._close_screen()
        self._nodes.close()
        self._line.close()

    def __call__(self, update: Update) -> None:
        """Show one update."""
        from cloudrl.jobs import Ended, JobHandle
        from cloudrl.jobs.look import Look
        from cloudrl.providers.model import Status
        from cloudrl.sdk.callbacks import Notice, Transfer, Waiting

        self._remember(update)
        if isinstance(update, Ended):
            self._close_screen()
        elif isinstance(update, Look):
            self._show_look(update)
            return
        if self._screen is not None:  # the next look has it
            return
        if isinstance(update, Status):
            self._line.close()
            self._nodes.show(update)
            return
        self._nodes.close()
        if isinstance(update, Transfer):
            self._show_transfer(update)
        elif isinstance(update, Notice):
            self._notice(update.text, update.hint)
        elif isinstance(update, JobHandle):
            self._line.close()
            if self._prints_job:
                _output.data(update.url)
        elif isinstance(update, Waiting):
            self._show_start(update)
        else:
            self._show_event(update)

    def busy(self, what: str) -> AbstractContextManager[None]:
        """While a block reports nothing, say on the last line what is being done and for how long.

        For blocks that ask nothing: a clock would write over a question.
        """
        return self._line.busy(what)

    def confirm(self, question: Question) -> bool:
        """Ask; -y answers all but what is explicit.

        Raises:
            InputError: it needs an answer, and there is no terminal to ask on.
        """
        self.close()
        if self._yes and not question.explicit:
            return True
        if _output.is_interactive():
            return _output.ask(question.text)
        if question.default is None:
            raise InputError(f"{question.text} There is no terminal to ask on", hint="Answer yes with -y")
        return question.default

    def _remember(self, update: Update) -> None:
        from cloudrl.jobs import Ended, JobHandle, Line, Progress

        if isinstance(update, Line):
            self._tail.append(update.readable)
        elif isinstance(update, Progress):
            self.progress = update
        elif isinstance(update, JobHandle):
            self.job = update
        elif isinstance(update, Ended):
            self.ended = update

    def _notice(self, text: str, hint: str = "") -> None:
        self._line.close()
        _output.note(text)
        if hint:
            _output.hint(hint)

    def _show_look(self, look: Look) -> None:
        """Shows progress on a terminal. Without a terminal, prints each problem once."""
        if not _output.can_redraw():
            for warning in look.warnings:
                if (warning.kind, warning.of) not in self._warned:
                    self._notice(f"warning: {warning.seen}", warning.remedy)
                self._warned.add((warning.kind, warning.of))
            return
        from cloudrl.cli._screen import Screen
        from cloudrl.cli._watch_view import draw

        if self._screen is None:
            self._nodes.close()
            self._line.close()
            self._screen = Screen()
        self._screen.show(partial(draw, look, curves=self._curves))

    def _close_screen(self) -> None:
        if self._screen is not None:
            self._screen.close()
        self._screen = None

    def _show_transfer(self, update: Transfer) -> None:
        """Now and then how far it is, and its end once."""
        from cloudrl.sdk.progress_lines import TransferPace

        key = update.what, update.total_bytes
        pace = self._paces.setdefault(key, TransferPace(0.2 if self._line.rewrites else 15.0))
        if text := pace.describe(update):
            self._line.show(f"{update.what}: {text}")

    def _show_start(self, waiting: Waiting) -> None:
        """On a line that is rewritten, or a line for each stage."""
        from cloudrl.sdk.progress_lines import StartLines

        if self._start is None:
            self._start = StartLines()
        self._waiting = waiting
        rewritten = ": ".join(filter(None, (f"{waiting}", self._text)))
        for line in [rewritten] if self._line.rewrites else self._start.add(waiting):
            self._line.show(line)

    def _show_event(self, event: Event) -> None:
        from cloudrl.jobs import Ended, Line, Progress
        from cloudrl.verl.metrics import plain, without_ansi

        if isinstance(event, Line):
            text = plain(event.text).strip()
            if text.endswith(_PAUSED):
                self._notice(without_ansi(event.text).strip())
            elif self._line.rewrites and not self._has_progress and text:
                self._text = text
                self._line.show(f"{self._waiting or 'waiting for the first step'}: {text}")
        elif isinstance(event, Progress):
            self._has_progress = True
            self._line.show(f"{event}")
        elif isinstance(event, Ended) and not event.succeeded:
            lines = event.cause.lines if event.cause else self._tail
            end = "\n".join(f"  {without_ansi(line)}" for line in list(lines)[-_TAIL_LINES:])
            what = f"Where it failed first, on {event.cause.where}" if event.cause else "The end of the log"
            self._notice(f"{what}:\n{end}")


class _Nodes:
    """The nodes of a cluster that comes up.

    On a terminal a table. Elsewhere a line when a node changes its phase, and every half a minute what is waited for.

    Args:
        clock: seconds that never run backwards.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: ClusterLines | None = None
        self._live: Any = None

    def show(self, status: Status) -> None:
        """Show how far it is."""
        from cloudrl.sdk.progress_lines import ClusterLines

        if self._lines is None:
            self._lines = ClusterLines(self._clock)
        said = self._lines.add(status)
        if _output.is_interactive():
            if self._live is None:
                from rich.console import Console
                from rich.live import Live

                self._live = Live(console=Console(stderr=True, highlight=False), refresh_per_second=8, transient=False)
                self._live.start()
            self._live.update(node_table(status, self._lines.phase_s))
            return
        for line in said:
            _output.note(line)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._live = None
