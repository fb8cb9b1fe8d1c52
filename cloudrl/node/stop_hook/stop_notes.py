"""The files that say which thread stands where, and what both debuggers need to know of their process."""

import builtins
import contextlib
import functools
import itertools
import json
import os
import re
import sys
import threading
import time
import traceback
from types import FrameType, TracebackType
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple

FOLDER = os.path.dirname(os.path.abspath(__file__))
STATE: Dict[str, Any] = {"port": 0, "pid": 0}
"""Of this process: folder of the notes, job, debugger, what `breakpoint()` does; and debugpy's port, and since which
process it has it."""
LOCAL = threading.local()
"""Of a thread that is going to stand in a moment: the number of that stop, and its place."""

_TEXT_LIMIT = 500
_RAYS = ("ray/util/rpdb.py", "ray/util/debugpy.py")
_numbers = itertools.count(1)


class Note:
    """The file that says that this thread stands, for as long as it does."""

    def __init__(self, port: int, place: Mapping[str, Any], *, number: int) -> None:
        self._port, self._place, self._id = port, place, f"{os.getpid()}-{number}"
        self._path = os.path.join(STATE["folder"], f"{self._id}.json")

    def __enter__(self) -> None:
        part = f"{self._path}.part"
        try:
            fields = self._fields()
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                json.dump(fields, file)
            os.replace(part, self._path)
        except Exception as error:
            with contextlib.suppress(OSError):
                os.unlink(part)
            place = f"{self._place['file']}:{self._place['line']}"
            raise Unnoted(f"no note of the stop at {place} can be written: {error}") from error

    def _fields(self) -> Dict[str, Any]:
        pid = os.getpid()
        return {
            **self._place, "id": self._id, "pid": pid, "started": started_at(pid), "port": self._port,
            "debugger": STATE["debugger"], "job": STATE["job"], "actor": _actor(), "rank": _rank(),
            "cwd": _cwd(), "since": time.time(),
        }  # fmt: skip

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)


class Unnoted(Exception):
    """A stop that would not be seen: waiting for a client would never end."""


@contextlib.contextmanager
def noted(make: Callable[[], Note]) -> Iterator[None]:
    """A note while a client is connected: what fails in it is said, and the client has its stop."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(make())
        except Exception as error:  # noqa: BLE001  whatever it is, a trace function must not raise it
            say(f"`cloudrl debug` does not list this stop: {error!r}")
        yield


def started_at(pid: int) -> int:
    """When a process was started, in ticks since the machine was; with its id it is never another's (proc(5))."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[19])


def next_number() -> int:
    """The number of the next stop of this process."""
    return next(_numbers)


def place_of(frame: FrameType, line: int) -> Dict[str, Any]:
    """Where a frame stands, as a note has it."""
    code = frame.f_code
    file = code.co_filename
    if not file.startswith("<"):
        with contextlib.suppress(OSError):  # a relative name, and the current directory has been deleted
            file = os.path.abspath(file)
    return {"method": code.co_name, "file": file, "line": line, "reason": "breakpoint"}


def place_of_error(trace: Optional[TracebackType]) -> Dict[str, Any]:
    """The innermost line of a traceback outside Ray's own code, else its last one."""
    steps = list(traceback.walk_tb(trace))
    # the package alone: code that was sent with a job is below Ray's folder for temporary files, /tmp/ray
    package = os.path.dirname(getattr(sys.modules.get("ray"), "__file__", None) or "/no-ray/") + os.sep
    chosen = next((step for step in reversed(steps) if not step[0].f_code.co_filename.startswith(package)), steps[-1])
    return place_of(*chosen)


def frame_of_user(frame: FrameType) -> FrameType:
    """The first frame from here on up that belongs neither to this file nor to Ray's debuggers."""
    current: Optional[FrameType] = frame
    while current is not None and _is_hidden(current.f_code.co_filename):
        current = current.f_back
    return current or frame


def _is_hidden(file: str) -> bool:
    return file.endswith(_RAYS) or file.startswith(FOLDER)


def is_worth_a_look(error: Tuple[Any, Any, Any]) -> bool:
    """Whether a person wants to see it: no end on purpose, such as a cancelled task or pdb's `quit`."""
    name = type(error[1]).__name__
    return isinstance(error[1], Exception) and error[2] is not None and not re.search("Cancel|BdbQuit", name)


def text_of(error: Sequence[Any]) -> str:
    """An error as a note has it, of what `sys.exc_info` gives."""
    try:
        words = str(error[1])
    except Exception as failure:  # noqa: BLE001  a user's class may fail in it
        words = f"(no text: {type(failure).__name__})"
    return f"{getattr(error[0], '__name__', error[0])}: {words}"[:_TEXT_LIMIT]


def _actor() -> str:
    worker = ray_worker()
    if worker is None:
        return "process"
    if worker.mode == 0:  # ray/_private/worker.py: SCRIPT_MODE
        return "driver"
    actor = worker.actors.get(worker.actor_id)
    return "task" if actor is None else type(actor).__name__[:_TEXT_LIMIT]


def _rank() -> Optional[int]:
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() and len(text) < 6 else None


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def ray_worker() -> Any:
    """Ray's worker of this process, None where it is not connected."""
    module = sys.modules.get("ray._private.worker")
    worker = getattr(module, "global_worker", None)
    return worker if worker is not None and worker.connected else None


def take_breakpoints() -> None:
    """`breakpoint()` comes here, whatever Ray and debugpy make of it meanwhile."""
    sys.breakpointhook = sys.__breakpointhook__ = STATE["breakpoint"]
    builtins.breakpoint = STATE["breakpoint"]


def never_raising(work: Callable[..., None]) -> Callable[..., None]:
    """The same, but what fails in it is said, and the job goes on. `BdbQuit` is a client's wish."""

    @functools.wraps(work)
    def safely(*args: Any, **kwargs: Any) -> None:
        try:
            work(*args, **kwargs)
        except Exception as error:
            if type(error).__name__ == "BdbQuit":
                raise
            is_unnoted = isinstance(error, Unnoted)
            say(
                f"{error}; it is passed over"
                if is_unnoted
                else f"the debugger cannot be used here: {traceback.format_exc()}"
            )

    return safely


def say(text: str) -> None:
    """Tell whoever reads the job's log, if anybody can: a job lives also where its stderr is closed or broken."""
    with contextlib.suppress(Exception):
        if sys.stderr is not None:  # with None it would be the standard output
            print(f"cloudrl: {text}", file=sys.stderr, flush=True)
