"""What runs under the image's Python, with the image's packages: one data set, one model, the check of the imports."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Mapping, Sequence, Tuple, Type

from cloudrl.child_process import Child
from cloudrl.data.hub import http_errors
from cloudrl.errors import CloudrlError
from cloudrl.node.compute_process import fork_all
from cloudrl.node.download import download, progress_file
from cloudrl.node.failure import describe, error_code, is_transient
from cloudrl.private_files import write_file
from cloudrl.protocol.options import MADE_ON_NODES
from cloudrl.protocol.wire import from_json, to_json

_REMEDIES = {
    "MKL_THREADING_LAYER": "numpy's MKL clashes with libgomp: add the set-up command `pip install -U numpy`, "
    "or env MKL_SERVICE_FORCE_INTEL=1 (vllm issue 10759)",
    "libcudart": "the image's CUDA libraries do not fit its torch: take the image of this verl release",
    **dict.fromkeys(
        ("driver on your system is too old", "driver version is insufficient", "forward compatibility was attempted"),
        "the driver of this machine is older than the CUDA of the image: update it there, or take an image with an "
        "older CUDA (--image)",
    ),
    "system not yet initialized": "the fabric manager of this machine does not run: `systemctl start "
    "nvidia-fabricmanager` there, or another machine",
    **dict.fromkeys(
        ("No CUDA GPUs are available", "Found no NVIDIA driver", "torch sees"),
        "the container does not have all GPUs of this machine: start it with them (docker run --gpus all), and turn "
        "MIG off (nvidia-smi -mig 0)",
    ),
    "Torch not compiled with CUDA": "the torch of this image is for CPUs: take the image of this verl release",
    "undefined symbol": "a package was compiled for another torch: take the image of this verl release",
}
"""By words of the error, which are its code, too."""


@dataclass(frozen=True)
class ChildResult:
    """What a child leaves in its `--result` file: what it has made, or why it failed.

    Attributes:
        path: the folder of a model.
        reason: why it failed, in one line for a person.
        code, transient: as in `Failure`; a command of the user's blames the network by status 75 (sysexits.h).
    """

    path: str = ""
    reason: str = ""
    code: str = ""
    transient: bool = False

    @classmethod
    def read(cls, file: Path, child: Child) -> ChildResult:
        """What a child that has ended has left; of one that crashed, its exit status and the last line of its log."""
        try:
            return from_json(cls, json.loads(file.read_text()))
        except (OSError, ValueError):
            status, lines = child.poll(), [line.strip() for line in child.tail().splitlines()]
            last_line = next(filter(None, reversed(lines)), f"its child exited with {status}")
            return cls(reason=last_line, code=f"exit {status}", transient=status == os.EX_TEMPFAIL)


def explain_import(result: ChildResult, log: str) -> Tuple[str, str]:
    """Reason and code of a failed import, by what the child has left and the last lines that it wrote.

    MKL ends the process itself, so that its words stand in the log alone.
    """
    return explain(result.reason, result.code, log)


def explain(reason: str, code: str, log: str = "") -> Tuple[str, str]:
    """Reason with its remedy and code of what is known, by words in the reason or the log; else both as they are."""
    for mark, remedy in _REMEDIES.items():
        if mark in f"{reason}\n{log}":
            return f"{reason} -> {remedy}", mark
    return reason, code


def main(argv: Sequence[str]) -> int:
    """`data TEXT --to DIR`, `model NAME --to DIR` or `imports MODULE ... [--to DIR]`, each with `--result FILE`.

    Returns the exit code. What fails in an expected way is said in one last line, all else with its traceback.
    """
    parser = argparse.ArgumentParser(prog="cloudrl-node.pyz")
    parser.add_argument("command", choices=WORK)
    parser.add_argument("subjects", nargs="+")
    parser.add_argument("--to", type=Path, default=Path())
    parser.add_argument("--result", type=Path, required=True)
    args = parser.parse_args(argv)
    try:
        path, computing = WORK[args.command](args.subjects, args.to, progress_file(args.result))
        write_file(args.result, json.dumps(to_json(ChildResult(str(path)))))
    except Exception as error:
        result = ChildResult("", describe(error), error_code(error), is_transient(error))
        with contextlib.suppress(OSError):  # a full disk may be what is to be said
            write_file(args.result, json.dumps(to_json(result)))
        if not isinstance(error, _expected_errors()):
            raise
        print(result.reason, file=sys.stderr)
        return 1
    for pid in computing:  # they would end with this process
        os.waitpid(pid, 0)
    return 0


Done = Tuple[Path, Sequence[int]]
"""Where the result of a subcommand is, and the processes of its own that go on."""


def _data(texts: Sequence[str], folder: Path, _progress: Path) -> Done:
    """Prepare one data set, a name or JSON text, and say how far it is."""
    from cloudrl.data import prepare

    # the default would end it at once, and leave half a file behind
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        [text] = texts
        prepare(text, folder, say=lambda line: print(line, file=sys.stderr, flush=True))
    finally:
        signal.signal(signal.SIGTERM, before)
    return folder, ()


def _model(names: Sequence[str], folder: Path, progress: Path) -> Done:
    """Have a model on this node; returns where it is."""
    [name] = names
    if name in MADE_ON_NODES:
        from cloudrl.verl_cpu.tiny_model import make_tiny_model

        make_tiny_model(str(folder / name), kind=name)
        return folder / name, ()
    if name.startswith("/"):
        path = Path(name)
        if not (path / "config.json").is_file():
            raise FileNotFoundError(f"{path} has no config.json, so it is not a Hugging Face model folder")
        return path, ()
    return download(name, progress), ()


def _expected_errors() -> Tuple[Type[Exception], ...]:
    """What is said in one line."""
    return (CloudrlError, OSError, ValueError, ImportError, RuntimeError, *http_errors())


def _imports(modules: Sequence[str], folder: Path, _progress: Path) -> Done:
    """Import all of them in this one process, in order, as a job will: a broken image is seen before the job is.

    With a folder, GPUs compute as soon as torch is there; see `fork_all`.
    """
    computing: Sequence[int] = ()
    for name in modules:
        try:
            importlib.import_module(name)
        except (ImportError, OSError, RuntimeError, ValueError, AttributeError) as error:
            raise CloudrlError(f"import {name}: {describe(error)}") from error
        if name == "torch" and folder != Path():
            computing = fork_all(folder)
    return Path(), computing


WORK: Mapping[str, Callable[[Sequence[str], Path, Path], Done]] = {
    "data": _data, "model": _model, "imports": _imports,
}  # fmt: skip
