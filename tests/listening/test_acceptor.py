"""Connections on real sockets before they are admitted: their number, bytes and time have limits."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from patience import SLOWER

from cloudrl.listening.acceptor import Acceptor, Limits

pytestmark = pytest.mark.io

Connect = Callable[..., socket.socket]
FEW = Limits(pending=4, head_bytes=100, head_s=60.0, grace_s=0.05)


class Accepting:
    """An acceptor that admits `hello.`, refuses `no.` with words and everything else without."""

    def __init__(self, limits: Limits, is_welcome: Callable[[Any], bool] = lambda _: True) -> None:
        self.admitted: list[tuple[socket.socket, bytes]] = []
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=limits.backlog)
        self.acceptor = Acceptor(
            self.listening, is_complete=lambda received, before: b"." in received[before:], refusal_of=self.refusal_of,
            hand_over=self.hand_over, is_welcome=is_welcome, limits=limits,
        )  # fmt: skip
        self.thread = threading.Thread(target=self.acceptor.serve_forever)

    def refusal_of(self, received: bytes) -> bytes | None:
        if received.startswith(b"fault"):
            raise ValueError("a fault of ours")
        return None if received.startswith(b"hello.") else b"refused" if received.startswith(b"no.") else b""

    def hand_over(self, connection: socket.socket, _address: Any, received: bytes) -> None:
        if received == b"hello. fault":
            raise RuntimeError("a fault of ours")
        self.admitted.append((connection, received))
        connection.send(b"welcome")

    def connect(self, sent: bytes = b"") -> socket.socket:
        connection = socket.create_connection(self.listening.getsockname(), 10 * SLOWER)
        connection.sendall(sent)
        return connection

    def close(self) -> None:
        self.acceptor.close()
        self.thread.join(10 * SLOWER)
        self.listening.close()
        for connection, _ in self.admitted:
            connection.close()


@contextlib.contextmanager
def accepting(limits: Limits = FEW, **more: Any) -> Iterator[Accepting]:
    made = Accepting(limits, **more)
    made.thread.start()
    try:
        yield made
    finally:
        made.close()


def read(connection: socket.socket) -> bytes:
    """What comes first, or b"" at the end."""
    with contextlib.suppress(ConnectionError):
        return connection.recv(100)
    return b""


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30 * SLOWER
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_admitted_with_all_that_was_read() -> None:
    with accepting() as made, made.connect(b"hel") as one, made.connect(b"hello. and more") as two:
        assert read(two) == b"welcome"
        one.sendall(b"lo.")
        assert read(one) == b"welcome"
        assert [received for _, received in made.admitted] == [b"hello. and more", b"hello."]


@pytest.mark.parametrize(("sent", "answer"), [(b"no.", b"refused"), (b"what.", b""), (b"x" * 100, b"")])
def test_refused(sent: bytes, answer: bytes) -> None:
    with accepting() as made, made.connect(sent) as one:
        assert read(one) == answer
        assert made.admitted == []


def test_who_is_refused_while_it_sends_gets_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudrl.listening.acceptor._DRAIN_S", 60.0)
    with accepting() as made, made.connect(b"no.") as one:
        one.sendall(b"x" * 300_000)
        until(lambda: sum(each.discarded_bytes for each in made.acceptor._refused.values()) > 200_000)
        assert [each.received for each in made.acceptor._refused.values()] == [b""], "nothing of it is kept"
        one.shutdown(socket.SHUT_WR)
        assert read(one) == b"refused"
        assert read(one) == b""


def test_the_oldest_of_too_many_is_cut_and_no_other() -> None:
    with accepting() as made, ExitStack() as stack:
        strangers = [stack.enter_context(made.connect(b"x")) for _ in range(4)]
        time.sleep(0.1)
        assert all(map(is_open, strangers))
        with made.connect(b"hello.") as one:
            assert read(one) == b"welcome"
        assert list(map(is_open, strangers)) == [False, True, True, True]


def test_one_that_sends_nothing_yet_has_one_other_cut() -> None:
    with accepting() as made, ExitStack() as stack:
        strangers = [stack.enter_context(made.connect(b"x")) for _ in range(4)]
        time.sleep(0.1)
        with made.connect() as one:
            until(lambda: not is_open(strangers[0]))
            one.sendall(b"hello.")
            one.setblocking(True)
            assert read(one) == b"welcome"
        assert list(map(is_open, strangers)) == [False, True, True, True]


def test_who_has_been_admitted_once_is_cut_last() -> None:
    with accepting() as made, ExitStack() as stack:
        with made.connect(b"hello.") as one:
            assert read(one) == b"welcome"
        known = [stack.enter_context(made.connect()) for _ in range(3)]
        stranger = stack.enter_context(socket.socket())
        stranger.bind(("127.0.0.2", 0))
        stranger.connect(made.listening.getsockname())
        time.sleep(0.1)
        with made.connect(b"hello.") as one:
            assert read(one) == b"welcome"
        assert all(map(is_open, known))
        assert not is_open(stranger)


def test_what_has_been_sent_is_read_before_any_is_cut() -> None:
    """As after a time without a processor: all of them wait in the kernel, with their heads."""
    made = Accepting(FEW)
    with ExitStack() as stack:
        ours = [stack.enter_context(made.connect(b"hello.")) for _ in range(50)]
        made.thread.start()
        stack.callback(made.close)
        assert [read(each) for each in ours] == [b"welcome"] * 50


def test_no_time_helps_those_who_dribble() -> None:
    with accepting(Limits(head_s=0.2)) as made, made.connect() as one:
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while is_open(one):
                one.setblocking(True)
                one.sendall(b"x")
                time.sleep(0.02)
                assert time.monotonic() - began < 5 * SLOWER
        assert time.monotonic() - began > 0.1


@pytest.mark.parametrize("sent", [b"hello.", b"no."])
def test_who_is_not_welcome_gets_no_answer(sent: bytes) -> None:
    with accepting(is_welcome=lambda address: address[0] != "127.0.0.1") as made, made.connect(sent) as one:
        assert read(one) == b""
        assert made.admitted == []


def test_without_descriptors_clients_wait_and_nothing_spins(capfd: pytest.CaptureFixture[str]) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with accepting(Limits(pending=1000, grace_s=0.05)) as made, ExitStack() as stack:
        with made.connect(b"hello.") as one:  # it is up, with the descriptors that it needs itself
            assert read(one) == b"welcome"
        waiting = [stack.enter_context(socket.socket()) for _ in range(6)]
        free = stack.enter_context(socket.socket()).fileno() + 3
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
            for each in waiting:
                each.connect(made.listening.getsockname())
            waiting[-1].sendall(b"hello.")
            waiting[-1].settimeout(10 * SLOWER)
            cpu = time.process_time()
            assert read(waiting[-1]) == b"welcome"
            time.sleep(0.3)
            assert time.process_time() - cpu < 0.2
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("sent", [b"fault.", b"hello. fault"])
def test_a_fault_of_ours_is_printed_once_and_ends_nothing(sent: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with accepting() as made:
        for _ in range(3):
            with made.connect(sent) as one:
                assert read(one) == b""
        with made.connect(b"hello.") as one:
            assert read(one) == b"welcome"
    assert capfd.readouterr().err.count("Error: a fault of ours") == 1


@pytest.mark.parametrize("has_begun", [False, True])
def test_it_ends(has_begun: bool) -> None:
    made = Accepting(FEW)
    with made.connect(b"hel") as one:
        if has_begun:
            made.thread.start()
            until(lambda: bool(made.acceptor._strangers))
        made.acceptor.close()
        if not has_begun:
            made.thread.start()
        made.thread.join(10 * SLOWER)
        assert not made.thread.is_alive()
        made.listening.close()
        assert read(one) == b""


def test_limits_grow_with_the_nodes() -> None:
    assert Limits.for_nodes(2) == Limits()
    many = Limits.for_nodes(1000)
    assert (many.pending, many.backlog) == (4000, 4000)
