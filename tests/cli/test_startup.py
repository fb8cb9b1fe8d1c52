"""`cloudrl --help` imports nothing that is not needed; `make bench-help` has its CPU time."""

import ast
from collections.abc import Callable

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
