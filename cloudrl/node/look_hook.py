"""In each Python process that Ray starts: SIGUSR2 writes the stacks of all threads, and verl's timers note the phase.

It imports nothing of ours: the agent lays it as `cloudrl_look_hook` into a folder with a `sitecustomize` that calls
`install`, and puts that folder on the PYTHONPATH of `ray start`. Nothing of verl is replaced but the name of its timer,
`verl.utils.profiler.marked_timer` (verl 0.9.1), which only trainers use; it runs as before between the two notes.
"""

import contextlib
import faulthandler
import functools
import json
import os
import signal
import sys
import threading
import time
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence, Tuple

_TIMERS = "verl.utils.profiler"
_OUTSIDE = "step"
_ENDED = 16
"""Phases that a note remembers: more than end between two looks of the agent."""
_kept: List[int] = []
"""Descriptors that `faulthandler` writes to."""


def install(environ: Mapping[str, str]) -> None:
    """Make this process ready; called once, before anything else is imported."""
    folder = environ.get("CLOUDRL_LOOKS_DIR")
    if not folder or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
        _catch(folder)
        os.register_at_fork(after_in_child=functools.partial(_catch_again, folder))
        signal.signal = _withdrawing(signal.signal)
    sys.meta_path.insert(0, _AfterTimers(folder))


def _catch(folder: str) -> None:
    """Have SIGUSR2 write the stacks into a file of this process: `PID-DESCRIPTOR.stacks`."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        path = os.path.join(folder, f"{os.getpid()}.part")
        descriptor = os.open(path, flags, 0o600)
        os.rename(path, os.path.join(folder, f"{os.getpid()}-{descriptor}.stacks"))
        faulthandler.register(signal.SIGUSR2, file=descriptor, all_threads=True)
        for old in _kept:
            with contextlib.suppress(OSError):
                os.close(old)
        _kept[:] = [descriptor]


def _catch_again(folder: str) -> None:
    """After a fork: as in the parent, unless the process has taken the signal for itself."""
    if _kept:
        _catch(folder)


def _withdrawing(set_handler: Callable[..., Any]) -> Callable[..., Any]:
    """`signal.signal` that closes our file once the process handles SIGUSR2 itself: then the agent sends it none."""

    @functools.wraps(set_handler)
    def set_signal(number: Any, handler: Any) -> Any:
        before = set_handler(number, handler)
        while number == signal.SIGUSR2 and _kept:
            with contextlib.suppress(OSError):
                os.close(_kept.pop())
        return before

    return set_signal


class PhaseNotes:
    """The file that says in which phase this process is: `PID.phase`.

    Args:
        folder: where it is.
        clock: seconds that never run backwards.
        now: seconds since the epoch.
    """

    def __init__(
        self, folder: str, *, clock: Callable[[], float] = time.perf_counter, now: Callable[[], float] = time.time
    ) -> None:
        self._path, self._clock, self._now = os.path.join(folder, f"{os.getpid()}.phase"), clock, now
        self._open: List[Tuple[str, float]] = []
        self._ended: List[Tuple[int, str, float]] = []
        self._thread: Optional[int] = None

    def begin(self, phase: str) -> Optional[Tuple[str, float]]:
        """A timer starts; those of other threads than the first one's are left out, with None.

        Returns:
            What `end` is called with: timers of coroutines end in any order.
        """
        if self._thread is None:
            self._thread = threading.get_ident()
        if self._thread != threading.get_ident():
            return None
        timer = phase, self._clock()
        self._open.append(timer)
        self._write(phase)
        return timer

    def end(self, timer: Optional[Tuple[str, float]]) -> None:
        """A timer that was started has ended."""
        if timer is not None and timer in self._open:
            self._open.remove(timer)
            phase, began = timer
            number = self._ended[-1][0] + 1 if self._ended else 1
            self._ended = [*self._ended, (number, phase, round(self._clock() - began, 3))][-_ENDED:]
            self._write(self._open[-1][0] if self._open else _OUTSIDE)

    def _write(self, phase: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            note = {"phase": phase, "since": round(self._now(), 3), "ended": self._ended, "job_id": _job_id()}
            part = f"{self._path}.part"
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(part, flags, 0o600), "w") as file:
                file.write(json.dumps(note))
            os.replace(part, self._path)


def noting(timer: Callable[..., Any], notes: PhaseNotes) -> Callable[..., Any]:
    """A timer of verl's that also notes the phase."""

    @functools.wraps(timer)
    @contextlib.contextmanager
    def marked_timer(name: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        with timer(name, *args, **kwargs):
            noted = notes.begin(str(name))
            try:
                yield
            finally:
                notes.end(noted)

    return marked_timer


def _job_id() -> str:
    """Ray's own id of this process's job, "" outside of Ray."""
    ray = sys.modules.get("ray")
    try:
        if ray is None or not ray.is_initialized():  # to ask for its context would start a Ray
            return ""
        return str(ray.get_runtime_context().get_job_id())
    except Exception:  # noqa: BLE001  whatever Ray says: the training goes on
        return ""


class _AfterTimers:
    """Wraps the timer as soon as its module has been imported."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Any = None) -> Any:
        """What the next finder says, its loader followed by the change."""
        if name != _TIMERS:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next((spec for finder in finders if (spec := finder.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                if hasattr(module, "marked_timer"):
                    module.marked_timer = noting(module.marked_timer, PhaseNotes(self._folder))

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
