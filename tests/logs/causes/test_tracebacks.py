"""Tracebacks, and the errors that they end with."""

from collections.abc import Sequence

import pytest

from cloudrl.logs.causes.printed import read_line
from cloudrl.logs.causes.tracebacks import blocks, explained, innermost, own_frame, without_code

CHAIN = """text
Traceback (most recent call last):
  File "a.py", line 1, in f
KeyError: 'first'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in g
ValueError: second
the end"""


def last_failure(lines: Sequence[str]) -> tuple[str, ...]:
    """The last failure of a log, with the tracebacks that it is chained to."""
    failures = list(blocks([read_line(line).text for line in lines]))
    return tuple(lines[failures[-1].start : failures[-1].end]) if failures else ()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("ValueError: Key 'x' is not in struct", "ValueError: Key 'x' is not in struct"),
        ("\x1b[36m(Worker pid=1, ip=10.0.0.2)\x1b[0m torch.OutOfMemoryError: CUDA", "torch.OutOfMemoryError: CUDA"),
        ("ray.exceptions.RayTaskError(KeyError): \x1b[36mray::f()", "ray.exceptions.RayTaskError(KeyError): ray::f()"),
        ("  hydra.errors.ConfigCompositionException: Could not", "hydra.errors.ConfigCompositionException: Could not"),
        ("AssertionError", "AssertionError"),
        ("Error: something", None),
        ("AssertionError at step 3", None),
        ("an AssertionError: in prose", None),
        ("no error here", None),
        ("ValueError:", None),
        ("(AgentLoopWorkerTQ pid=7) CLOUDRL FAILED: 11 of the last 20", "11 of the last 20"),
        ("ValueError: Unknown status: CLOUDRL FAILED: 11 of the last 20", "11 of the last 20"),
        ("Exception: boom", "Exception: boom"),
        ("pyarrow.lib.ArrowInvalid: Could not open", "pyarrow.lib.ArrowInvalid: Could not open"),
        ("requests.exceptions.ReadTimeout: no answer", "requests.exceptions.ReadTimeout: no answer"),
        ("ray.exceptions.RayTaskError(Empty): ray::f()", "ray.exceptions.RayTaskError(Empty): ray::f()"),
        ("[rank8]: KeyError: 1", "KeyError: 1"),
        ("(A pid=1) (EngineCore_DP0 pid=2) ERROR 10-12 11:00:00 [core.py:396] ValueError: no", "ValueError: no"),
        ("  what():  CUDA error: x", "CUDA error: x"),
        ("Aborted", None),
        ("Timeout: 3", None),
        ("Killed", None),
        ("Exception ignored in: <x>", None),
        ("torch.Size: [3]", None),
    ],
)  # fmt: skip
def test_lines_that_name_an_error(line: str, error: str | None):
    assert innermost(line).error == error


def test_the_last_failure_with_what_it_was_raised_from():
    lines = ["Traceback (most recent call last):", "OSError: survived", *CHAIN.splitlines()]
    assert last_failure(lines) == tuple(CHAIN.splitlines()[1:-1])
    assert last_failure(["no error"]) == ()
    assert last_failure(["ValueError: alone", "x"]) == ("ValueError: alone",)


def test_a_message_of_which_ray_has_cut_the_beginning():
    text = (
        'User exception:\n462bba172724b40d1b7546ee02000000, repr=<x>)\n  ^^^^\n  File "a.py", line 1, in f\nKeyError: 1'
    )
    found = innermost(text)
    assert (found.actor_id, found.pid) == ("462bba172724b40d1b7546ee02000000", None)
    assert found.lines == ('  File "a.py", line 1, in f', "KeyError: 1")


HEADER, FRAME, CODE = "Traceback (most recent call last):", '  File "a.py", line 1, in f', "    g()"
CAUSED, HANDLING = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)


@pytest.mark.parametrize("words", [CAUSED, HANDLING])
@pytest.mark.parametrize(
    "first",
    [
        ["ValueError: a"],
        [FRAME, CODE, "ValueError: a"],
        [CODE, "ValueError: a"],
        [],
        ["ValueError: a", "", "Cannot access it.", "Ask for it."],  # a message of several lines without a form
    ],
)
@pytest.mark.parametrize("second", [[HEADER, FRAME, CODE], [FRAME, CODE], []])
def test_a_chain_without_its_headers(first: list[str], words: str, second: list[str]):
    """A log keeps its last lines, and a window of it fewer: the first header is the first thing to be lost."""
    lines = [*first, "", words, "", *second, "OSError: b"]
    found = last_failure(lines)
    assert found[-1] == "OSError: b"
    assert ("ValueError: a" in found) == bool(first)


def test_failures_in_their_order():
    lines = ["hello", HEADER, FRAME, CODE, "KeyError: 1", "goodbye", FRAME, "OSError: 2", "ValueError: 3"]
    assert [(each.start, each.error_at, each.end) for each in blocks(lines)] == [(1, 4, 5), (6, 7, 8), (8, 8, 9)]


def test_what_python_raises_is_known_by_its_place():
    """Names say nothing: `Empty`, `socket.timeout`, anything that a class of the user's is called."""
    for error in ("Empty", "socket.timeout: timed out", "mine.Sorry: no", "Sorry"):
        assert last_failure([HEADER, FRAME, CODE, error]) == (HEADER, FRAME, CODE, error)
        assert last_failure(["done", error]) == ()
    assert last_failure([HEADER, FRAME, CODE, "UserWarning: x"]) == ()


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (
            [
                "RuntimeError: Error(s) in loading state_dict for Q:",
                "\tsize mismatch for a.b: copying",
                "\tsize mismatch",
            ],
            "RuntimeError: Error(s) in loading state_dict for Q: size mismatch for a.b: copying",
        ),
        (
            ["hydra.errors.InstantiationException: Error in call to target 'a':", 'TypeError("no")', "full_key: b"],
            "hydra.errors.InstantiationException: Error in call to target 'a': TypeError(\"no\")",
        ),
        (
            ["RuntimeError: Version mismatch: The cluster was started with:", "    Ray: 2.12.0", "    Python: 3.11.11"],
            "RuntimeError: Version mismatch: The cluster was started with: Ray: 2.12.0",
        ),
        (
            [
                "DistBackendError: unhandled system error",
                "ncclSystemError: System call",
                "Last error:",
                "Connect failed",
            ],
            "DistBackendError: unhandled system error: Connect failed",
        ),
        ([FRAME, "    assert a >= b", "AssertionError"], "AssertionError: assert a >= b"),
        ([FRAME, "    raise NotImplementedError", "NotImplementedError"], "NotImplementedError: in f"),
        (["AssertionError"], "AssertionError"),
        (
            ["terminate called after throwing an instance of 'c10::Error'", "  what():  CUDA error: x"],
            "c10::Error: CUDA error: x",
        ),
        (
            [
                "ValueError: Caught ValueError in DataLoader worker process 0.",
                "Original " + HEADER,
                FRAME,
                "ValueError: x",
            ],
            "ValueError: x",
        ),
    ],
)
def test_an_error_with_what_explains_it(lines: list[str], error: str):
    found = innermost("\n".join(lines))
    assert found.error == error
    assert last_failure(["before", *lines, "", "after"]) == tuple(lines)


def test_code_is_no_message():
    lines = [
        FRAME,
        '    raise ValueError("must be divisible by")',
        FRAME,
        "    x = [",
        "        1]",
        "KeyError: 1",
        "    more",
    ]
    assert without_code(lines) == [FRAME, FRAME, "KeyError: 1", "    more"]


VALIDATED = """Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/vllm/config/model.py", line 5, in __init__
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
{}
    For further information visit https://errors.pydantic.dev/2.11/v/x
step:1"""


@pytest.mark.parametrize(
    ("message", "explanation"),
    [
        ("dtype\n  Input should be 'half' [type=literal_error, input_value='x']", "dtype Input should be 'half'"),
        ("  Value error, 28 heads on 8 GPUs [type=value_error, input_value=A]", "Value error, 28 heads on 8 GPUs"),
    ],
)
def test_what_pydantic_refuses_belongs_to_its_error(message: str, explanation: str):
    lines = VALIDATED.format(message).splitlines()
    (block,) = blocks(lines)
    assert explained(lines, block).endswith(f"1 validation error for ModelConfig: {explanation}")
    assert lines[block.end] == "step:1"


@pytest.mark.parametrize("above", ["", "Job entrypoint command failed with exit code 1, last available logs (...):\n"])
def test_a_trace_begins_with_a_whole_line(above: str):
    """Ray keeps the end of a long message, wherever that begins."""
    cut = 'site-packages/verl/reward.py", line 38, in f\n    asked(\n'
    rest = '  File "/job/a.py", line 3, in g\n    return 1 / 0\nZeroDivisionError: division by zero'
    assert innermost(above + cut + rest).lines == tuple(rest.splitlines())
    assert innermost(rest).lines == tuple(rest.splitlines())


@pytest.mark.parametrize(
    ("path", "frame"),
    [
        ("/job/reward.py", "/job/reward.py, line 5, in score"),
        (
            "/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_9b/mine/a.py",
            "./mine/a.py, line 5, in score",
        ),
        ("/tmp/ray/session_1/working_dir_files/_ray_pkg_9b/cloudrl_files/f3297f3b/a.py", "./a.py, line 5, in score"),
        (f"/data/user-files/{'9b' * 32}/a.py", "./a.py, line 5, in score"),
        ("/tmp/ray/session_1/working_dir_files/_ray_pkg_9b/verl/a.py", "./verl/a.py, line 5, in score"),
        ("/usr/lib/python3/dist-packages/vllm/core.py", ""),
        ("/opt/verl/trainer.py", ""),
        ("<frozen importlib._bootstrap>", ""),
    ],
)
def test_the_users_own_frame_is_the_innermost_of_their_files(path: str, frame: str):
    lines = [f'  File "{path}", line 5, in score', '  File "/usr/lib/python3.11/json/decoder.py", line 1, in decode']
    assert own_frame(lines) == (frame, "")
    assert own_frame([*lines, "ValueError: no"]) == (frame, "")


@pytest.mark.parametrize(
    ("below", "call"),
    [
        (
            "    return verify(answer, gold, timeout=0)\n           ~~~~~~^^^^^^^^^^^^^^^^^^^^^^^^^\n",
            "return verify(answer, gold, timeout=0)",
        ),
        (
            "    return verify(\n        answer,\n        timeout=0,\n    )\n    ^\n",
            "return verify( answer, timeout=0, )",
        ),
        ('    raise ValueError("no")\n', ""),
        ("ValueError: no\n", ""),
        ("", ""),
    ],
)
def test_the_call_in_the_users_frame_is_shown_with_its_arguments(below: str, call: str):
    head, tail = (
        '  File "/job/reward.py", line 5, in score\n',
        '  File "/usr/lib/python3.11/re.py", line 1, in f\n    g(1)\n',
    )
    assert own_frame(f"{head}{below}{tail}ValueError: no".splitlines()) == ("/job/reward.py, line 5, in score", call)
    assert own_frame(f"{head}{below}".splitlines())[1] == call
