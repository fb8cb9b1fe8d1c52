"""`cloudrl --help` imports nothing that is not needed; `make bench-help` has its CPU time."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.io

HEAVY = (
    "dstack",
    "ray",
    "torch",
    "verl",
    "transformers",
    "datasets",
    "pyarrow",
    "numpy",
    "httpx2",
    "aiohttp",
    "huggingface_hub",
    "click",
    "rich",
)
CODE = """
import sys
sys.argv = ["cloudrl", *{words}]
from cloudrl.cli.main import main
stdout, sys.stdout = sys.stdout, open("/dev/null", "w")
try:
    main()
except SystemExit as end:
    code = end.code
sys.stdout.close()
sys.stdout = stdout
print([code, [name for name in {heavy} if name in sys.modules]])
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["submit", "--help"],
        ["jobs", "logs", "--help"],
        ["data", "prepare", "--help"],
        ["checkpoints", "merge", "--help"],
    ],
)
def test_help_imports_nothing_heavy(words: list[str], run_python: Callable[[str], str]) -> None:
    code, loaded = ast.literal_eval(run_python(CODE.format(words=words, heavy=HEAVY)))
    assert not code
    assert loaded == []


def test_the_list_of_commands_needs_no_specification(run_python: Callable[[str], str]) -> None:
    assert ast.literal_eval(run_python(CODE.format(words=["--help"], heavy=("pydantic",)))) == [0, []]


def test_a_mistyped_command_gets_the_nearest_name(run_python: Callable[[str], str]) -> None:
    code = (
        "import subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'cloudrl.cli.main', 'submt'], capture_output=True, text=True)\n"
        "print([done.returncode, 'submit' in done.stderr])"
    )
    assert ast.literal_eval(run_python(code)) == [2, True]
