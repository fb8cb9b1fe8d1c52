"""pdb over a connection, Ray's legacy debugger: a port of loopback for each stop."""

import contextlib
import sys
from types import FrameType
from typing import Any, Mapping, Optional

from .stop_notes import (
    LOCAL,
    Note,
    frame_of_user,
    is_worth_a_look,
    next_number,
    noted,
    place_of,
    place_of_error,
    ray_worker,
    say,
    text_of,
)  # fmt: skip
from .stop_peer import guard

_LOOPBACK = "127.0.0.1"


def stop(breakpoint_uuid: Any = None, *_: Any, **__: Any) -> None:
    """`breakpoint()`: listen, wait for a client, and stop in the caller's next line."""
    worker, frame = ray_worker(), frame_of_user(sys._getframe(1))
    if worker is not None and getattr(worker, "debugger_breakpoint", b"") != b"":
        return  # as Ray has it: a client steps into another task already
    uuid = breakpoint_uuid.decode() if isinstance(breakpoint_uuid, bytes) else breakpoint_uuid
    _connect_pdb(place_of(frame, frame.f_lineno), uuid).set_trace(frame=frame)


def post_mortem() -> None:
    """Let a client look at the exception that is being handled."""
    error = sys.exc_info()
    if is_worth_a_look(error):
        _connect_pdb({**place_of_error(error[2]), "reason": text_of(error)}, None).post_mortem()


def _connect_pdb(place: Mapping[str, Any], uuid: Optional[str]) -> Any:
    from ray.util import rpdb

    LOCAL.place = place
    if ray_worker() is not None:  # Ray's way publishes it for `ray debug`, too
        return rpdb._connect_ray_pdb(host=_LOOPBACK, port=0, patch_stdstreams=False, quiet=True, breakpoint_uuid=uuid)
    session = rpdb._RemotePdb(uuid, quiet=True)
    session.listen()
    return session


class _Unheard:
    """Lets pdb live without a connection."""

    def handle_command_def(self, line: str) -> Any:
        """A line of `commands`, which would take the end of a connection for one, again and again."""
        return True if line == "EOF" else super().handle_command_def(line)  # type: ignore[misc]

    def message(self, msg: Any, *args: Any) -> None:
        with contextlib.suppress(OSError, ValueError):  # also outside of `interaction`
            super().message(msg, *args)  # type: ignore[misc]

    def error(self, msg: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().error(msg)  # type: ignore[misc]


def remote_pdb(rpdb: Any) -> Any:
    """Ray's pdb over a connection, on loopback, with notes, and for which the end of a connection is `continue`.

    Ray 2.60's own takes it for `quit`, which ends the task.
    """

    class RemotePdb(_Unheard, rpdb._RemotePdb):
        def __init__(self, breakpoint_uuid: Any, **more: Any) -> None:
            super().__init__(breakpoint_uuid, **{**more, "host": _LOOPBACK, "port": 0, "ip_address": "localhost"})

        def listen(self) -> None:
            guard(self._listen_socket)
            self._debugger_port = self._listen_socket.getsockname()[1]
            place = getattr(LOCAL, "place", None) or place_of(sys._getframe(1), 0)
            self._first_number: Optional[int] = next_number()
            with contextlib.ExitStack() as stack:
                stack.callback(self._listen_socket.close)
                with Note(self._debugger_port, place, number=self._first_number):
                    say(f"{place['reason']} at {place['file']}:{place['line']} waits for a debugger: cloudrl debug")
                    super().listen()
                stack.pop_all()  # it stays for as long as the connection
            self._reason = place["reason"]

        def interaction(self, frame: Optional[FrameType], trace: Any, *args: Any) -> None:
            number, self._first_number = self._first_number or next_number(), None

            def note() -> Note:
                place = place_of_error(trace) if frame is None else place_of(frame, frame.f_lineno)
                return Note(self._debugger_port, {**place, "reason": self._reason}, number=number)

            with noted(note):
                try:
                    super().interaction(frame, trace, *args)
                except (OSError, ValueError):  # the connection has broken
                    self._go_on()
            self._reason = "breakpoint"

        def post_mortem(self, traceback: Any = None) -> None:  # noqa: ARG002  as Ray's is called
            self.reset()
            self.interaction(None, sys.exc_info()[2])
            self._go_on()

        def __restore(self) -> None:
            self.clear_all_breaks()  # no client is left to see them
            super()._RemotePdb__restore()
            self._listen_socket.close()

        def do_EOF(self, arg: str) -> Any:  # noqa: N802  pdb's name
            return self.do_continue(arg)

        def _go_on(self) -> None:
            self.clear_all_breaks()
            self.set_continue()
            with contextlib.suppress(OSError, ValueError):
                self.handle.connection.close()
            with contextlib.suppress(OSError):
                self._listen_socket.close()

    return RemotePdb
