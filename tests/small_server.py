"""A server of a few bytes, for clients that are tested against odd ones."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Give each connection to `answer`, in a thread of its own, and close it then; yields the port."""

    def close_after(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            answer(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=close_after, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
