"""Scripts that import verl, each in a process of its own: a fork of one that has imported what verl imports.

torch, transformers and Ray take 5 s of CPU time, which the tests of a part of the suite pay once; verl itself takes
half a second.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

IMPORTED = ["tensordict", "transfer_queue", "peft", "datasets", "ray.util.state", "fastapi", "aiohttp", "hydra.utils"]
_FILES = ("given", "said", "errors")


class Script:
    """One that runs, of a file or of a text. Its environment is `environ` alone, but for what was imported before."""

    def __init__(
        self,
        script: Path | str,
        arguments: Sequence[object] = (),
        *,
        given: str = "",
        environ: Mapping[str, str] = os.environ,
        folder: Path | None = None,
    ) -> None:
        self._files = Path(tempfile.mkdtemp())
        for name in _FILES:
            (self._files / name).write_text(given if name == "given" else "")
        words = [str(argument) for argument in arguments]
        self._process: BaseProcess = _server().Process(
            target=_run, args=(script, words, {**environ}, str(folder or Path.cwd()), str(self._files))
        )
        self._process.start()

    def end(self, timeout_s: float = 900) -> list[str]:
        """The lines that it has printed; a script that fails ends the test with what it has said."""
        self._process.join(timeout_s)
        self._process.kill()
        self._process.join()
        said, errors = ((self._files / name).read_text() for name in _FILES[1:])
        shutil.rmtree(self._files)
        assert self._process.exitcode == 0, said[-2000:] + errors[-4000:]
        return said.splitlines()


def _server() -> multiprocessing.context.ForkServerContext:
    """Started at the first script, and ended with this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", *IMPORTED])  # pytest is the main module, which each fork imports again
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # it is read when torch is imported
        forkserver.ensure_running()
    return context


def _run(script: Path | str, arguments: list[str], environ: dict[str, str], folder: str, files: str) -> None:
    os.environ.clear()
    os.environ.update(environ)
    for number, name in enumerate(_FILES):
        with Path(files, name).open("r" if name == "given" else "w") as file:
            os.dup2(file.fileno(), number)
    os.chdir(folder)
    sys.stdin = os.fdopen(0)
    sys.argv = [str(script) if isinstance(script, Path) else "-c", *arguments]
    if isinstance(script, Path):
        sys.path.insert(0, str(script.parent))
    code = script.read_text() if isinstance(script, Path) else script
    main = sys.modules["__main__"] = type(sys)("__main__")
    main.__file__ = str(script)
    exec(compile(code, str(script) if isinstance(script, Path) else "<script>", "exec"), vars(main))
