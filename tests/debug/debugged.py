"""A process that waits for a debugger as a worker of Ray does (Ray 2.60, ray/util/debugpy.py), without Ray."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from child_processes import ended
from patience import SLOWER

from cloudrl.debug.console import Console
from cloudrl.debug.dap import DapClient
from cloudrl.debug.session import End, Session
from cloudrl.protocol.stops import Stop

_HOOK = """
import sys, threading
import debugpy

debugpy.configure(subProcess=SUB_PROCESS)
_, port = debugpy.listen(("127.0.0.1", 0))
print(port, flush=True)
import pydevd  # debugpy has put it on the path

def stop():
    debugpy.wait_for_client()
    pydevd.settrace(stop_at_frame=sys._getframe().f_back)

def post_mortem():
    debugpy.wait_for_client()
    py_db, thread = pydevd.get_global_debugger(), threading.current_thread()
    info = py_db.set_additional_thread_info(thread)
    info.is_tracing += 1
    try:
        py_db.stop_on_unhandled_exception(py_db, thread, info, sys.exc_info())
    finally:
        info.is_tracing -= 1
"""

PROGRAM = """
    from hook import post_mortem, stop
    import lessons

    def train(steps, name):
        total = 0
        for step in range(steps):
            total = lessons.add(total, step)
        stop()
        total = lessons.add(total, 100)
        rows = [name, total]
        return rows

    print("result", train(3, "a\\x1b[31mred\\nline"), flush=True)
"""
LESSONS = """
    def add(total, more):
        '''Adds \x1b]0;title\x07.'''
        result = total + more
        return result
"""
FAILING = """
    from hook import post_mortem, stop

    def score(answer):
        right = 42
        return int(answer) == right

    try:
        score("forty")
    except ValueError:
        post_mortem()
    print("done", flush=True)
"""


class Debugged:
    """The process, from its start until it ends.

    Attributes:
        folder: where its sources are.
        stop: as an agent would name it.
    """

    def __init__(self, folder: Path, process: subprocess.Popen[str], reason: str) -> None:
        self.folder, self.process = folder, process
        assert process.stdout is not None
        self.port = int(process.stdout.readline())
        self.stop = Stop(
            "1", 0, process.pid, self.port, job="job-1", actor="WorkerDict", rank=1, method="train",
            file=f"{folder}/main.py", line=9, cwd=str(folder), reason=reason, since=time.time(),
        )  # fmt: skip

    def dial(self) -> socket.socket:
        """A connection to its debugger, as the agent's relay gives one."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def rest(self) -> list[str]:
        """What it prints until it ends."""
        out, _ = self.process.communicate(timeout=30 * SLOWER)
        assert self.process.returncode == 0
        return str(out).splitlines()


@contextlib.contextmanager
def debugged(
    folder: Path, program: str = PROGRAM, *, reason: str = "breakpoint", sub_process: bool = False
) -> Iterator[Debugged]:
    """Start it."""
    folder.mkdir(exist_ok=True)
    for name, text in (("main", program), ("lessons", LESSONS)):
        (folder / f"{name}.py").write_text(textwrap.dedent(text).lstrip())
    (folder / "hook.py").write_text(_HOOK.replace("SUB_PROCESS", str(sub_process)))
    environment = {**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1", "PYDEVD_USE_SYS_MONITORING": "0"}
    with subprocess.Popen(
        [sys.executable, "main.py"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as process, ended(process):  # fmt: skip
        yield Debugged(folder, process, reason)


class Typist:
    """Types lines, and has what was shown; a function among the lines is called in their place.

    Attributes:
        shown: results and notes, in their order.
        prompts: those that were answered.
    """

    def __init__(self, lines: Sequence[str | Callable[[], str]]) -> None:
        self._lines = [*lines]
        self.shown: list[str] = []
        self.prompts: list[str] = []

    def read(self, prompt: str) -> str:
        self.prompts.append(prompt)
        if not self._lines:
            raise EOFError
        line = self._lines.pop(0)
        return line if isinstance(line, str) else line()

    def console(self, confirm: Callable[[str], bool] = lambda _question: True) -> Console:
        """Where results and notes are shown alike."""
        return Console(self.read, self.shown.append, self.shown.append, confirm)

    @property
    def text(self) -> str:
        return "\n".join(self.shown)

    def between(self, first: str, last: str) -> str:
        """What was shown from one text up to another."""
        return self.text.partition(first)[2].partition(last)[0]


def typed(
    process: Debugged, *lines: str | Callable[[], str], folder: Path | None = None, confirm: bool = True
) -> tuple[End, Typist]:
    """A session with it, in which these lines are typed."""
    typist = Typist(lines)

    def asked(question: str) -> bool:
        typist.shown.append(f"[{question}]")
        return confirm

    console = Console(typist.read, typist.shown.append, lambda text: typist.shown.append(f"[{text}]"), asked)
    session = Session(DapClient(process.dial(), open_another=process.dial), process.stop, console, folder=folder)
    return session.run(), typist


def opened(process: Debugged, *lines: str | Callable[[], str], **options: Any) -> tuple[Session, Typist]:
    """A session that has not begun, for lines that change it."""
    typist = Typist(lines)
    return Session(DapClient(process.dial()), process.stop, typist.console(), **options), typist


def interrupt_soon() -> None:
    """Ctrl-C, in a second."""
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, as it does in a program that is not a test."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
