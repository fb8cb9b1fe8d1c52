"""A home of its own for every end-to-end test, and proof that nothing of it is left."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from terminal_page import Seen, in_terminal

from cloudrl.providers.local import processes

CLOUDRL = Path(sys.executable).parent / "cloudrl"


class Shell:
    """Runs `cloudrl ...` as a user would, against one private home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "tmp").mkdir()

    def run(
        self, *words: str, timeout_s: float = 900.0, check: bool = True, through: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Wait for its end; `through` is a command that starts it."""
        done = subprocess.run(
            [*through, str(CLOUDRL), *words],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=self.home,
        )
        if check and done.returncode:
            pytest.fail(f"cloudrl {' '.join(words)} exited with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def driver_log(self, cluster: str, jobs: str = "*") -> list[str]:
        """What jobs of a cluster have printed, line by line, also when it is down."""
        said = self.run("logs", "--cluster", cluster, "--log", f"job-driver-{jobs}", "--json").stdout
        return [json.loads(line)["text"] for line in said.splitlines()]

    def in_terminal(self, columns: int, rows: int, *words: str) -> AbstractContextManager[Seen]:
        """The same in a terminal, where a person looks at it."""
        return in_terminal([str(CLOUDRL), *words], columns, rows, env=self.env, cwd=self.home)

    @property
    def env(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "CLOUDRL_", "TORCH"))}
        return {**kept, "CLOUDRL_HOME": str(self.home / "home"), "TMPDIR": str(self.home / "tmp")}

    def states(self) -> list[dict[str, object]]:
        return [json.loads(path.read_text()) for path in self.home.glob("home/clusters/*/cluster.json")]

    def temporary_files(self) -> list[Path]:
        """What verl, torch or Ray have left where temporary files belong."""
        return list((self.home / "tmp").iterdir())

    def leftovers(self) -> list[str]:
        """What a cluster must not leave: processes and temporary folders."""
        found = []
        for state in self.states():
            found += [f"process {pid}" for pid in processes.of_cluster(str(state["id"]))]
            found += [str(state["ray_temp_dir"])] if Path(str(state["ray_temp_dir"])).exists() else []
        return found


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("home"))
    yield shell
    try:
        for state in shell.states():
            shell.run("down", str(state["name"]), "-y", timeout_s=200)
        assert shell.leftovers() == []
    finally:
        for state in shell.states():
            processes.end(str(state["id"]))
            shutil.rmtree(str(state["ray_temp_dir"]), ignore_errors=True)
