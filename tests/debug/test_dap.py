"""The client of the protocol, against bytes that no debugger sends."""

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fake_clock import Clock

from cloudrl.debug.dap import ConnectionLost, DapClient, NoAnswer, Refused

pytestmark = pytest.mark.io


class Debugger:
    """The other end of a connection, which answers as it is told."""

    def __init__(self) -> None:
        self.theirs, self._ours = socket.socketpair()
        self._file = self._ours.makefile("rb")

    def takes(self) -> dict[str, Any]:
        """The next request."""
        head = self._file.readline()
        self._file.readline()
        message: dict[str, Any] = json.loads(self._file.read(int(head.split(b":")[1])))
        return message

    def sends(self, **message: Any) -> None:
        body = json.dumps(message).encode()
        self.writes(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def writes(self, raw: bytes) -> None:
        self._ours.sendall(raw)

    def close(self) -> None:
        self._file.close()
        self._ours.close()


@pytest.fixture
def debugger() -> Iterator[Debugger]:
    made = Debugger()
    yield made
    made.close()
    made.theirs.close()


@pytest.fixture
def client(debugger: Debugger) -> DapClient:
    return DapClient(debugger.theirs)


def test_frames_may_come_in_pieces_and_together(debugger: Debugger, client: DapClient) -> None:
    number = client.send("threads")
    for name in ("output", "stopped"):
        debugger.sends(type="event", event=name, body={"threadId": 7})
    body = json.dumps({"type": "response", "request_seq": number, "success": True, "body": {"é": 1}}).encode()
    frame = b"X-Other: 1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    pieces = threading.Thread(target=lambda: [debugger.writes(frame[at : at + 1]) for at in range(len(frame))])
    pieces.start()
    assert client.answer(number) == {"é": 1}
    pieces.join()
    assert list(client.events()) == [("stopped", {"threadId": 7})]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n", "a frame has no length"),
        (b"Content-Length: -1\r\n\r\n", "a frame has no length"),
        (b"Content-Length: 99999999999999999\r\n\r\n", "a frame has no length"),
        (b"Content-Length: 33554433\r\n\r\n", "33554432 are the limit"),
        (b"A" * 5000, "a frame has no length"),
        (b"Content-Length: 2\r\n\r\n[]", "a frame is not a message"),
        (b"Content-Length: 2\r\n\r\n{]", "a frame is not a message"),
        (b"Content-Length: 200000\r\n\r\n" + b"[" * 200000, "a frame is not a message"),
    ],
)
def test_what_is_no_frame_ends_the_session(debugger: Debugger, client: DapClient, raw: bytes, said: str) -> None:
    writer = threading.Thread(target=debugger.writes, args=(raw,))
    writer.start()
    with pytest.raises(ConnectionLost, match=said):
        client.request("threads")
    writer.join()


def test_a_refusal_is_said_in_the_debugger_s_words(debugger: Debugger, client: DapClient) -> None:
    number = client.send("evaluate")
    debugger.sends(type="response", request_seq=number, success=False, message="no such frame")
    with pytest.raises(Refused, match="no such frame"):
        client.answer(number)


def test_an_answer_that_comes_too_late_is_dropped(debugger: Debugger, clock: Clock) -> None:
    client = DapClient(debugger.theirs, clock=lambda: clock.now)
    number = client.send("threads")
    clock.now += 1
    with pytest.raises(NoAnswer, match="within 0 s"):
        client.answer(number, timeout_s=0)
    debugger.sends(type="response", request_seq=number, success=True, body={"late": True})
    second = client.send("threads")
    debugger.sends(type="response", request_seq=second, success=True, body={"late": False})
    assert client.answer(second) == {"late": False}


def test_what_the_debugger_asks_is_refused(debugger: Debugger, client: DapClient) -> None:
    debugger.sends(type="request", seq=5, command="runInTerminal", arguments={"args": ["rm"]})
    assert list(client.events()) == []
    answer = debugger.takes()
    assert (answer["request_seq"], answer["success"]) == (5, False)


def test_events_do_not_pile_up(debugger: Debugger, client: DapClient) -> None:
    for number in range(1200):
        debugger.sends(type="event", event="continued", body={"threadId": number})
        debugger.sends(type="event", event="output", body={"output": "x" * 50})
        if number % 20 == 0:
            kept = [*client.events()]
            assert len(kept) <= 21
    with pytest.raises(NoAnswer):
        [client.next_event(0.1) for _ in range(1001)]


def test_a_closed_connection_is_lost(debugger: Debugger, client: DapClient) -> None:
    debugger.close()
    with pytest.raises(ConnectionLost, match=r"closed|broke"):
        client.request("threads")
    client.disconnect()
    with pytest.raises(ConnectionLost):
        client.request("threads")


def test_an_end_that_has_vanished_without_a_word_is_noticed(debugger: Debugger) -> None:
    """A wait without a limit would never end."""
    now = 0.0

    def hours() -> float:
        nonlocal now
        now += 20
        return now

    client = DapClient(debugger.theirs, clock=hours)
    debugger.sends(type="event", event="initialized")
    assert list(client.events()) == []
    number = client.send("evaluate")
    with pytest.raises(ConnectionLost, match="answered nothing for 60 s"):
        client.answer(number, None)
    assert [debugger.takes()["command"] for _ in range(3)] == ["evaluate", "threads", "threads"]
    assert client.is_outstanding(number)


def test_whether_leaving_was_answered(debugger: Debugger, client: DapClient) -> None:
    debugger.sends(type="response", request_seq=1, success=True)
    assert client.disconnect()
    assert not client.disconnect()
