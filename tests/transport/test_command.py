"""Commands whose output has a limit."""

import sys

import pytest

from cloudrl.foreign import Malformed
from cloudrl.transport.command import run

pytestmark = pytest.mark.io

ENDLESS = ["sh", "-c", "while :; do echo 0123456789012345678901234567890123456789; done"]


def test_both_outputs_and_the_status():
    done = run(["sh", "-c", "cat; echo bad >&2; exit 3"], b"in" * 200_000, timeout_s=20)
    assert done == (3, b"in" * 200_000, b"bad\n")


def test_input_that_is_not_read():
    assert run(["true"], b"x" * 1_000_000, timeout_s=20).status == 0


def test_an_output_without_an_end():
    for words in (ENDLESS, ["sh", "-c", f"{ENDLESS[2]} >&2"]):
        with pytest.raises(Malformed, match="it says more than 1,000,000 bytes"):
            run(words, timeout_s=20, limit_bytes=1_000_000)


@pytest.mark.parametrize("words", [["sleep", "60"], ["sh", "-c", "while :; do echo x; sleep 0.05; done"]])
def test_one_that_does_not_end(words: list[str]):
    with pytest.raises(TimeoutError):
        run(words, timeout_s=0.2)


def test_one_that_has_closed_its_outputs():
    script = "import os, time; os.close(0); os.close(1); os.close(2); time.sleep(60)"
    with pytest.raises(TimeoutError):
        run([sys.executable, "-S", "-c", script], timeout_s=1.0)


def test_a_child_that_keeps_the_pipe_open():
    with pytest.raises(TimeoutError):
        run(["sh", "-c", "sleep 3 & exit 0"], timeout_s=0.3)
