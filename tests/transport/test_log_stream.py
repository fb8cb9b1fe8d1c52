import itertools
import subprocess
import sys

import pytest
from fake_clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import ConnectionFailed, FailedError, Unauthorized
from cloudrl.protocol.backoff import Attempts, Backoff
from cloudrl.transport import log_stream
from cloudrl.transport.log_stream import AgentLog, follow_log, split_lines


class Log:
    """A log in memory that grows by one piece at each silence, and breaks when told to."""

    def __init__(self, pieces: list[bytes], breaks: list[int] | None = None) -> None:
        self.pieces = list(pieces)
        self.written = b""
        self.breaks = list(breaks or [])
        """Bytes that each connection gives before it breaks; afterwards none does."""

    def read(self, offset: int, *, follow: bool):
        if not follow:
            yield self.written[offset:]
            return
        left = self.breaks.pop(0) if self.breaks else None
        while True:
            for chunk in (self.written[offset : offset + 3], b""):
                if left is not None and len(chunk) >= left:
                    if left:
                        yield chunk[:left]
                    raise ConnectionFailed("cut")
                left = None if left is None else left - len(chunk)
                offset += len(chunk)
                yield chunk

    def is_over(self) -> bool:
        if self.pieces:
            self.written += self.pieces.pop(0)
        return not self.pieces


def followed(log: Log, **options: object) -> bytes:
    return b"".join(follow_log(lambda: log, log.is_over, clock=lambda: 0.0, sleep=lambda _: None, **options))


@given(st.lists(st.binary(max_size=9), max_size=8), st.lists(st.integers(0, 12), max_size=12))
def test_every_byte_once_wherever_the_connection_breaks(pieces: list[bytes], breaks: list[int]):
    assert followed(Log(pieces, breaks)) == b"".join(pieces)


def test_a_log_that_is_complete_before_it_is_followed():
    log = Log([])
    log.written = b"one\ntwo"
    assert followed(log) == b"one\ntwo"


def test_pauses_grow_and_shrink_again_after_contact(clock: Clock):
    breaks: list[ConnectionFailed] = []
    log = Log([b"abcdef", b"", b"", b""], breaks=[0, 0, 0, 4, 0])
    list(follow_log(lambda: log, log.is_over, clock=clock, sleep=clock.sleep, on_break=breaks.append))
    assert clock.slept == [0.5, 1.0, 2.0, 0.5, 1.0]
    assert [str(failure) for failure in breaks] == ["cut"] * 5


def test_pauses_have_a_limit(clock: Clock):
    attempts = Attempts(Backoff(first_s=1, longest_s=5), clock=clock, sleep=clock.sleep)
    for _ in range(5000):
        attempts.pause()
    assert clock.slept == [1, 2, 4] + [5] * 4997


def test_it_gives_up_when_nothing_answers_for_long(clock: Clock):
    log = Log([b"abc"], breaks=[0] * 1000)
    with pytest.raises(ConnectionFailed, match="cut"):
        list(follow_log(lambda: log, log.is_over, clock=clock, sleep=clock.sleep, backoff=Backoff(give_up_s=60)))
    assert 60 < clock.now < 80


def test_a_failing_status_is_a_break_too(clock: Clock):
    answers = iter([ConnectionFailed("down"), ConnectionFailed("down"), False, True])

    def is_over() -> bool:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert list(follow_log(lambda: Log([]), is_over, clock=clock, sleep=clock.sleep)) == []
    assert clock.slept == [0.5, 1.0]


def test_a_refused_token_is_not_tried_again(clock: Clock):
    def is_over() -> bool:
        raise Unauthorized("no")

    with pytest.raises(Unauthorized):
        list(follow_log(lambda: Log([]), is_over, clock=clock, sleep=clock.sleep))
    assert clock.slept == []


class Agent:
    """An agent's log endpoint, four bytes an answer at most. Each answer sees the next state of the file."""

    def __init__(self, *states: bytes | None) -> None:
        self.states = list(states)

    def job_log(self, submission_id: str, offset: int) -> tuple[bytes, int] | None:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return None if state is None else (state[offset : offset + 4], len(state))


def test_the_agent_is_asked_for_what_is_missing():
    slept: list[float] = []
    log = AgentLog(Agent(None, None, b"abc", b"abc", b"abcdefghij"), "job", sleep=slept.append)
    stream = log.read(0, follow=True)
    assert [next(stream) for _ in range(7)] == [b"", b"", b"abc", b"", b"defg", b"hij", b""]
    assert slept == [0.1, 0.2, 0.1]
    assert b"".join(log.read(2, follow=False)) == b"cdefghij"


def test_a_log_that_was_replaced_is_noticed():
    log = AgentLog(Agent(b"long log", b"new"), "job-1", sleep=lambda _: None)
    with pytest.raises(FailedError, match=r"log of job-1 has 3 bytes, and 4 were read before"):
        list(log.read(0, follow=True))


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"a\nb\n"], ["a", "b"]),
        ([b"a\nb"], ["a", "b"]),
        ([b"a", b"b", b"\n", b"c"], ["ab", "c"]),
        ([b"a\r", b"\nb\n"], ["a", "b"]),
        ([b"10%\r20%\r", b"30%\n"], ["10%", "20%", "30%"]),
        ([b"\n\na\n"], ["", "", "a"]),
        ([b"\xe4\xbd", b"\xa0\n"], ["你"]),
        ([b"caf\xc3"], ["caf�"]),
        ([b"\xff\n\xfe"], ["�", "�"]),
        ([b"a\x0bb\xe2\x80\xa8c\x1cd\n"], ["a\x0bb\u2028c\x1cd"]),
        ([b"a\r"], ["a"]),
        ([], []),
    ],
)
def test_lines(chunks: list[bytes], lines: list[str]):
    assert list(split_lines(chunks)) == lines


@given(st.binary(), st.lists(st.integers(0, 40), max_size=10))
def test_where_the_bytes_are_cut_makes_no_difference(data: bytes, cuts: list[int]):
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(places)]
    assert list(split_lines(pieces)) == list(split_lines([data]))


def test_a_very_long_line_comes_whole_as_soon_as_it_is_complete():
    lines = split_lines(itertools.chain([b"x" * 10_000] * 200, [b"\n"], (pytest.fail("read on") for _ in "x")))
    assert len(next(lines)) == 2_000_000


INTERRUPTED = """
import random, signal
from types import SimpleNamespace as Some
from cloudrl.protocol.exchange import Response
from cloudrl.transport.log_stream import RayLog, follow_log

def open_log(*_, **__):
    nothing = lambda: None
    return Response(200, {}, Some(read1=lambda: b"bytes", abort=nothing, close=nothing))

job = Some(driver_node_id="node", log_name="log")
log = RayLog(Some(get_job=lambda _: job, open_log=open_log), "one")
signal.signal(signal.SIGALRM, signal.default_int_handler)
for _ in range(400):
    try:
        chunks = follow_log(lambda: log, lambda: False)
        next(chunks)
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.003))
        for chunk in chunks:
            pass
    except KeyboardInterrupt:
        pass
"""


@pytest.mark.io
def test_ctrl_c_while_chunks_come_leaves_no_lock_taken():
    """In a process of its own: where one is left taken, all wait for ever."""
    subprocess.run([sys.executable, "-c", INTERRUPTED], check=True, timeout=120)


def test_a_line_without_an_end_comes_in_parts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_stream, "_LONGEST_LINE", 100)
    lines = list(split_lines([b"x" * 60] * 5 + [b"\nshort\n"]))
    assert ("".join(lines[:-1]), lines[-1]) == ("x" * 300, "short")
    assert max(map(len, lines)) <= 160
