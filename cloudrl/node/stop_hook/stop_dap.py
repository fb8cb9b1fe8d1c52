"""debugpy: one port a process on loopback, for its whole life, and a note as long as one of its threads stands."""

import contextlib
import functools
import os
import sys
import threading
from types import FrameType
from typing import Any, Iterator, Mapping

from .stop_notes import (
    FOLDER,
    LOCAL,
    STATE,
    Note,
    frame_of_user,
    is_worth_a_look,
    next_number,
    noted,
    place_of,
    place_of_error,
    ray_worker,
    say,
    take_breakpoints,
    text_of,
)  # fmt: skip

_LOOPBACK = "127.0.0.1"
_SUSPENDED_WITH_ANOTHER = 105
"""Stop reason of a thread that stands since another one has hit a breakpoint (pydevd: CMD_THREAD_SUSPEND)."""

_listening = threading.Lock()


def stop(*_: Any, **__: Any) -> None:
    """`breakpoint()`: wait for a client, and stop in the caller's next line."""
    frame = frame_of_user(sys._getframe(1))
    place = place_of(frame, frame.f_lineno)
    if _wait_for_client(place):
        import pydevd

        pydevd.settrace(
            suspend=True, trace_only_current_thread=True, patch_multiprocessing=False, stop_at_frame=frame,
            notify_stdin=False,
        )  # fmt: skip


def post_mortem() -> None:
    """Stop where the exception that is being handled was raised; Ray calls it when a task has failed."""
    error = sys.exc_info()
    if not is_worth_a_look(error):
        return
    place = {**place_of_error(error[2]), "reason": text_of(error)}
    if _wait_for_client(place):
        import pydevd

        thread, debugger = threading.current_thread(), pydevd.get_global_debugger()
        info = debugger.set_additional_thread_info(thread)
        info.is_tracing += 1
        try:
            debugger.stop_on_unhandled_exception(debugger, thread, info, error)
        finally:
            info.is_tracing -= 1


def _wait_for_client(place: Mapping[str, Any]) -> bool:
    """Listen, leave a note, wait; False where that is impossible here."""
    try:
        import debugpy
    except ImportError:
        say(f"{place['file']}:{place['line']} is passed over: this node's Python has no debugpy")
        return False
    port = _listen(debugpy)
    if port == 0:
        say(f"{place['file']}:{place['line']} is passed over: a forked process has no debugger of its own")
        return False
    number = next_number()
    with Note(port, place, number=number), _paused_for_ray():
        LOCAL.expected = number
        if not debugpy.is_client_connected():
            say(f"{place['reason']} at {place['file']}:{place['line']} waits for a debugger: cloudrl debug")
        debugpy.wait_for_client()
    return True


def _listen(debugpy: Any) -> int:
    """The port at which this process can be debugged, the same for its whole life; 0 where it can have none."""
    with _listening:
        if STATE["pid"] == 0:
            debugpy.configure(subProcess=False)  # a child of a debugged process would wait for a client of its own
            import pydevd  # there since `configure` has loaded debugpy's own
            from _pydevd_bundle.pydevd_dont_trace_files import DONT_TRACE, PYDEV_FILE

            # no stack shows these frames, and no step enters them
            DONT_TRACE.update(dict.fromkeys(filter(_is_ours, os.listdir(FOLDER)), PYDEV_FILE))
            STATE["port"] = debugpy.listen((_LOOPBACK, 0))[1]
            STATE["pid"] = os.getpid()
            _note_suspensions(pydevd.PyDB)
            os.register_at_fork(after_in_child=_leave_alone)
            worker = ray_worker()
            if worker is not None:  # for Ray's own list of workers, which Ray's VS Code extension reads
                worker.set_debugger_port(STATE["port"])
        take_breakpoints()  # debugpy takes them when it listens
        return int(STATE["port"]) if STATE["pid"] == os.getpid() else 0


def _leave_alone() -> None:
    """In a forked child: no tracing any more, which would wait for locks of threads that it does not have."""
    import pydevd_tracing

    pydevd_tracing.SetTrace(None)
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None:
        monitoring.free_tool_id(monitoring.DEBUGGER_ID)


def _is_ours(name: str) -> bool:
    return name.startswith("stop_") and name.endswith(".py")


def _note_suspensions(debugger: Any) -> None:
    """Have a note as long as a thread stands, wherever a client lets it stop."""
    wait = debugger.do_wait_suspend

    @functools.wraps(wait)
    def do_wait_suspend(self: Any, thread: Any, frame: FrameType, event: str, arg: Any, *args: Any, **more: Any) -> Any:
        if getattr(thread, "stop_reason", None) == _SUSPENDED_WITH_ANOTHER:
            return wait(self, thread, frame, event, arg, *args, **more)
        with noted(lambda: _note_of(frame, event, arg)):  # this runs in a trace function: no error may leave it
            return wait(self, thread, frame, event, arg, *args, **more)

    debugger.do_wait_suspend = do_wait_suspend


def _note_of(frame: FrameType, event: str, arg: Any) -> Note:
    number, LOCAL.expected = getattr(LOCAL, "expected", None), None
    place = place_of(frame, frame.f_lineno)
    if event == "exception" and isinstance(arg, tuple) and len(arg) == 3:
        place = {**place_of_error(arg[2]), "reason": text_of(arg)}
    return Note(STATE["port"], place, number=number or next_number())


@contextlib.contextmanager
def _paused_for_ray() -> Iterator[None]:
    """Ray's list of workers has it as paused meanwhile."""
    worker = ray_worker()
    paused = getattr(worker, "worker_paused_by_debugger", contextlib.nullcontext)
    with paused():
        yield
