"""Bytes both ways between two connections."""

import os
import socket
import threading
from collections.abc import Iterator

import pytest
from patience import SLOWER

from cloudrl.listening.joining import join

pytestmark = pytest.mark.io


class Joined:
    """A client and a debugger, and what joins them."""

    def __init__(self, early: bytes = b"", after_half_s: float = 30.0) -> None:
        self.client, left = self._pair()
        self.debugger, right = self._pair()

        def run() -> None:
            with left, right:
                join(left, right, early, after_half_s=after_half_s)

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    @staticmethod
    def _pair() -> tuple[socket.socket, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            near = socket.create_connection(listener.getsockname(), 10 * SLOWER)
            far, _ = listener.accept()
        near.settimeout(None)  # with one, MSG_WAITALL gives less
        return near, far

    def ends(self) -> bool:
        self.thread.join(10 * SLOWER)
        return not self.thread.is_alive()


@pytest.fixture
def joined() -> Iterator[Joined]:
    both = Joined()
    yield both
    both.client.close()
    both.debugger.close()
    assert both.ends()


def test_both_ways_and_early_bytes_first():
    both = Joined(b"early ")
    both.client.sendall(b"question")
    assert both.debugger.recv(6, socket.MSG_WAITALL) == b"early "
    assert both.debugger.recv(8, socket.MSG_WAITALL) == b"question"
    both.debugger.sendall(b"answer")
    assert both.client.recv(6, socket.MSG_WAITALL) == b"answer"
    both.client.close()
    assert both.debugger.recv(1) == b""
    both.debugger.close()
    assert both.ends()


def test_the_end_of_one_way_leaves_the_other(joined: Joined):
    joined.client.sendall(b"last words")
    joined.client.shutdown(socket.SHUT_WR)
    assert joined.debugger.recv(100, socket.MSG_WAITALL) == b"last words"
    for piece in (b"the answer ", b"comes in pieces"):
        joined.debugger.sendall(piece)
        assert joined.client.recv(len(piece), socket.MSG_WAITALL) == piece


def test_a_side_that_does_not_read_holds_up_the_other_and_loses_nothing(joined: Joined):
    sent = os.urandom(12_000_000)
    sender = threading.Thread(target=joined.debugger.sendall, args=(sent,), daemon=True)
    sender.start()
    sender.join(0.3)
    assert sender.is_alive()  # it is not kept in memory
    assert joined.client.recv(len(sent), socket.MSG_WAITALL) == sent


def test_a_side_that_forgets_to_end_is_given_up():
    both = Joined(after_half_s=0.1)
    both.client.close()
    assert both.ends()
    assert both.debugger.recv(1) == b""
    both.debugger.close()


def test_a_connection_that_breaks_ends_both(joined: Joined):
    joined.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    joined.client.close()  # a reset
    assert joined.debugger.recv(1) == b""
    assert joined.ends()
