"""A user's own machine, from which ssh reaches the login node and nothing else."""

import sys
from pathlib import Path
from subprocess import CompletedProcess

from .cluster import SlurmNodes


class Laptop:
    """Types commands in root's home of the machine that has no Slurm."""

    def __init__(self, slurm: SlurmNodes) -> None:
        self._node = slurm.laptop

    def write(self, name: str, text: str) -> None:
        """A file in the home."""
        (self._node.path("/root") / name).write_text(text)

    def run(self, *words: str, timeout_s: float = 120.0) -> CompletedProcess[str]:
        """Type a command of this Python, such as `cloudrl`."""
        program = str(Path(sys.executable).with_name(words[0]))
        env = {"CLOUDRL_HOME": "/root/.cloudrl", "COLUMNS": "200"}
        return self._node.run(program, *words[1:], env=env, cwd="/root", timeout_s=timeout_s)

    def types(self, *words: str, code: int = 0, timeout_s: float = 120.0) -> str:
        """All that a command says; it must end with this status."""
        done = self.run(*words, timeout_s=timeout_s)
        assert done.returncode == code, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr
