"""`cloudrl --help` is quick, and imports nothing that is not needed."""

from __future__ import annotations

import ast
import os
import sys
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
CPU_LIMIT_S = 0.3
"""Twice what an idle machine needs: this fails on a new heavy import, not on a slow day."""


def _cpu_s(*words: str) -> float:
    """CPU seconds, user and system, of one run."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        pid = os.posix_spawn(words[0], words, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, null, 1)])
    finally:
        os.close(null)
    _, status, usage = os.wait4(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return usage.ru_utime + usage.ru_stime


def test_cpu_time(record_property: Callable[[str, object], None]) -> None:
    measured = min(_cpu_s(sys.executable, "-m", "cloudrl.cli.main", "--help") for _ in range(7))
    record_property("cpu_s", measured)
    sys.stdout.write(f"cloudrl --help: {measured:.3f} s of CPU\n")
    assert measured < CPU_LIMIT_S


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


def test_a_command_is_built_when_it_is_called(run_python: Callable[[str], str]) -> None:
    code = (
        "import typer, sys\nfrom cloudrl.cli.main import COMMANDS, app\ngroup = typer.main.get_command(app)\n"
        "before = list(group.commands)\ngroup.get_command(None, 'jobs')\n"
        "print([before, list(group.commands), list(COMMANDS) == group.list_commands(None)])"
    )
    assert ast.literal_eval(run_python(code)) == [[], ["jobs"], True]


def test_a_mistyped_command_gets_the_nearest_name(run_python: Callable[[str], str]) -> None:
    code = (
        "import subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'cloudrl.cli.main', 'submt'], capture_output=True, text=True)\n"
        "print([done.returncode, 'submit' in done.stderr])"
    )
    assert ast.literal_eval(run_python(code)) == [2, True]
