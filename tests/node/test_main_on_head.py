"""verl's main program is run with its controller on the head; a stand-in has what is looked at."""

import subprocess
import sys
from pathlib import Path

import pytest

from cloudrl.node import main_on_head

PROGRAM = """
import os
import sys


class TaskRunnerV1:
    @classmethod
    def options(cls, **options):
        return Placed(options)


class Placed:  # as Ray's: it has no options of its own
    def __init__(self, options):
        self.options_ = options

    def remote(self):
        return self.options_


def main():
    assert os.environ["HYDRA_MAIN_MODULE"] == "__main__"
    print(sys.argv[1:], TaskRunnerV1.remote(), TaskRunnerV1.options(runtime_env={}).remote())
"""

HEAD = "{'resources': {'node:__internal_head__': 0.001}, 'num_cpus': 0"


@pytest.mark.parametrize(
    ("text", "controller"),
    [(PROGRAM, f"{HEAD}}} {HEAD}, 'runtime_env': {{}}}}"),
     ("import sys\ndef main():\n    print(sys.argv[1:], None)\n", "None")],
    ids=["verl", "a fork without that controller"],
)  # fmt: skip
def test_the_program_runs_with_its_own_arguments(tmp_path: Path, text: str, controller: str) -> None:
    (tmp_path / "program.py").write_text(text)
    (tmp_path / "cloudrl_on_head.py").write_text(Path(main_on_head.__file__).read_text())
    command = [sys.executable, "-m", "cloudrl_on_head", "program", "trainer.nnodes=2", "+a=1"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout == f"['trainer.nnodes=2', '+a=1'] {controller}\n"
