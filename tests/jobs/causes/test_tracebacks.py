"""Tracebacks, and the errors that they end with."""

import pytest

from cloudrl.jobs.causes.tracebacks import error_of, innermost, last_failure

CHAIN = """text
Traceback (most recent call last):
  File "a.py", line 1, in f
KeyError: 'first'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in g
ValueError: second
the end"""


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
    ],
)  # fmt: skip
def test_lines_that_name_an_error(line: str, error: str | None):
    assert error_of(line) == error


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
