"""Whatever logs and Ray's records hold, the finder ends in time and raises nothing."""

import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudrl.logs.causes import Evidence, LogTail
from cloudrl.logs.causes.finder import find_cause
from cloudrl.logs.causes.tracebacks import blocks, innermost
from cloudrl.protocol.ray_state import RayState

pytestmark = pytest.mark.timeout(120)
HEADER = "Traceback (most recent call last):"
CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
PREFIXES = (
    "",
    "(TaskRunner pid=1) ",
    "\x1b[36m(WorkerDict pid=7, ip=10.0.0.2)\x1b[0m ",
    "(vLLMHttpServer pid=7) (EngineCore_DP0 pid=9) ERROR 10-12 11:00:00 [core.py:396] ",
    "[rank8]: ",
    "ERROR 10-12 11:00:00 [core.py:396] ",
    "(raylet) [2025-08-21 06:51:00,280 E 1 1] (raylet) node_manager.cc:1: ",
)
ERRORS = st.sampled_from(
    [
        "ValueError: a", "KeyError: 'b'", "AssertionError", "pyarrow.lib.ArrowInvalid: c", "mine.Sorry: d", "Empty",
        "RuntimeError: CUDA error: device-side assert triggered", "RuntimeError: Error(s) in loading state_dict for Q:",
        "ray.exceptions.RayTaskError(KeyError): ray::A.f() (pid=7, ip=10.0.0.2)", "RuntimeError: broken",
        "OSError: [Errno 28] No space left", "  what():  boom", "Worker exit type: SYSTEM_ERROR Worker exit detail: x",
    ]
)  # fmt: skip
OTHERS = st.sampled_from(
    ["", "step:1 - a:1", "\tsize mismatch", "    ^^^^", "Killed", "Compile with `TORCH_USE_CUDA_DSA`", HEADER]
)
FRAMES = st.lists(
    st.sampled_from([['  File "a.py", line 1, in f', "    g()"], ['  File "/ray/_private/w.py", line 2, in h']]),
    max_size=3,
)


@st.composite
def tracebacks(draw: st.DrawFn) -> list[str]:
    """Tracebacks that are chained, with their headers or without, between other lines."""
    lines = list[str]()
    for words in [*draw(st.lists(st.sampled_from(CHAINED), max_size=4)), None]:
        lines += [HEADER] * draw(st.booleans())
        lines += [line for frame in draw(FRAMES) for line in frame]
        lines += [draw(ERRORS)] * draw(st.booleans())
        lines += draw(st.lists(OTHERS, max_size=2))
        lines += ["", words, ""] if words else []
    return lines


@st.composite
def logs(draw: st.DrawFn) -> tuple[str, ...]:
    """Several of them, nested and behind prefixes, in a log of which both ends are cut off anywhere."""
    prefixed = [
        draw(st.sampled_from(PREFIXES)) + line
        for part in draw(st.lists(tracebacks(), min_size=1, max_size=3))
        for line in part
    ]
    start = draw(st.integers(0, len(prefixed)))
    return tuple(prefixed[start : draw(st.integers(start, len(prefixed)))])


def task(message: str) -> dict[str, object]:
    row = {"task_id": "a", "name": "a", "state": "FAILED", "error_type": "TASK_EXECUTION_EXCEPTION", "node_id": "n1"}
    return {**row, "error_message": message, "worker_pid": 7, "end_time_ms": 1}


def evidences(lines: tuple[str, ...], message: str) -> Iterator[Evidence]:
    """The lines in each kind of log, without Ray's state and with it."""
    kept = [LogTail(name, 0, lines) for name in ("job-driver-x.log", "worker-w3-01-3.err", "raylet.out", "-")]
    dead = {
        "worker_id": "w3",
        "exit_type": "SYSTEM_ERROR",
        "pid": 3,
        "node_id": "n0",
        "exit_detail": message,
        "end_time_ms": 2,
    }
    actors = ({"actor_id": f"{3:032x}", "class_name": "Rank", "pid": 3, "node_id": "n0"},)
    rows = {"tasks": (task(message),), "workers": (dead,), "actors": actors}
    yield from (Evidence(logs=[log]) for log in kept)
    for job in ({}, {"message": message, "end_time": 1}, {"driver_exit_code": 134}):
        yield Evidence(RayState(saved_at=0.0, job=job, **rows), {"n0": 0, "n1": 1}, kept)


def ends_in_time(lines: tuple[str, ...], message: str) -> None:
    began = time.process_time()
    for evidence in evidences(lines, message):
        found = find_cause(evidence)
        assert found is None or found.error
    assert time.process_time() - began < 5


@settings(deadline=None)
@given(logs(), logs())
def test_chained_tracebacks_cut_anywhere(lines: tuple[str, ...], message: tuple[str, ...]):
    list(blocks(lines))
    innermost("\n".join(message))
    ends_in_time(lines, "\n".join(message))


@settings(deadline=None)
@given(logs())
def test_blocks_are_in_order_and_apart(lines: tuple[str, ...]):
    at = 0
    for block in blocks(lines):
        assert at <= block.start <= block.error_at < block.end <= len(lines)
        at = block.end


@settings(deadline=None)
@given(st.lists(st.text(max_size=60) | ERRORS | OTHERS, max_size=8), st.text(max_size=60), st.text(max_size=60))
def test_any_text_at_all(lines: list[str], message: str, detail: str):
    ends_in_time(tuple(lines), message)
    ends_in_time((message,), detail)


ENDLESS = (
    "a", "File ", '  File "', "ray::", "ValueError: ", "a.", "(a pid=1) ", "[rank1]: ", "\x1b[", "| ", "Assertion ",
    " ", "No such file or directory",
)  # fmt: skip


@pytest.mark.parametrize("piece", ENDLESS)
def test_lines_of_any_length(piece: str):
    """A million characters over which a pattern could go again and again."""
    line = piece * (10**6 // len(piece))
    ends_in_time((line,) * 5, line)
    ends_in_time((line[:200],) * 100, line)


def test_a_line_of_a_hundred_million_characters():
    ends_in_time((HEADER, "ValueError: " + "a" * 10**8), "x")
