"""`cloudrl --help` imports nothing that is not needed; `make bench-help` has its CPU time."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.io

HEAVY = (
    "dstack", "ray", "torch", "verl", "transformers", "datasets", "pyarrow", "numpy", "httpx2", "aiohttp",
    "huggingface_hub", "click", "rich",
)  # fmt: skip
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


@pytest.mark.parametrize("command", ["", "submit", "jobs logs", "data prepare", "checkpoints merge", "retriever serve"])
def test_help_imports_nothing_heavy(command: str, run_python: Callable[[str], str]) -> None:
    words = [*command.split(), "--help"]
    code, loaded = ast.literal_eval(run_python(CODE.format(words=words, heavy=HEAVY)))
    assert not code
    assert loaded == []


def test_the_list_of_commands_needs_no_specification(run_python: Callable[[str], str]) -> None:
    assert ast.literal_eval(
        run_python(CODE.format(words=["--help"], heavy=("pydantic", "cloudrl.providers.model")))
    ) == [0, []]


def test_a_traceback_on_request_changes_no_exit_code(home: Path) -> None:
    command = (str(Path(sys.executable).with_name("cloudrl")), "status", "nowhere")
    done = subprocess.run(command, env={**os.environ, "CLOUDRL_DEBUG": "1"}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    "modules",
    [
        "cloudrl.cli.check, cloudrl.sdk.runs, cloudrl.jobs.pipeline, cloudrl.jobs.submit",
        "cloudrl.cli.jobs, cloudrl.sdk.find",
    ],
)
def test_check_and_jobs_list_import_only_their_own_part_of_the_sdk(
    modules: str, run_python: Callable[[str], str]
) -> None:
    """`make bench-help` has their CPU time."""
    others = (
        "cloudrl.checkpoints", "cloudrl.debug", "cloudrl.logs.causes.finder", "cloudrl.report", "cloudrl.rewards",
        "cloudrl.scripts.imported", "cloudrl.sdk.watching",
    )  # fmt: skip
    code = f"import sys, {modules}; print([name for name in {(*HEAVY, *others)} if name in sys.modules])"
    assert ast.literal_eval(run_python(code)) == []
