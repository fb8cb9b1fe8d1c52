"""What all tests share."""

from __future__ import annotations

import atexit
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import omegaconf.base
import pytest
import typer.main
from dstack_hosts.fixtures import dstack_lab, dstack_pair  # noqa: F401 - fixtures
from fake_clock import Clock
from fake_local import FakeLocal
from hints import faults
from hypothesis import settings
from parts import FOLDERS
from slurm_nodes.fixtures import shared_slurm, slurm  # noqa: F401 - fixtures
from typed_command import Run, Typed

from cloudrl.cli.main import main

# The same examples in every run; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("repeatable", max_examples=30, derandomize=True, deadline=None, database=None)
settings.register_profile("explore", max_examples=2000, deadline=None, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


# Half of the time to collect the tests would go to looking for garbage among what has just been imported.
gc.disable()


_sessions: list[pytest.Session] = []


def pytest_sessionstart(session: pytest.Session) -> None:
    _sessions.append(session)


def _interrupt(number: int, _frame: object) -> None:
    """Ctrl-C and SIGTERM end the tests: it is said where, and fixtures clean up. A SIGTERM after it changes nothing.

    SIGTERM also does during a test that catches KeyboardInterrupt; Ctrl-C may be what such a test is about.
    """
    signal.signal(signal.SIGTERM, lambda *_: None)
    if number == signal.SIGTERM:
        for session in _sessions:
            session.shouldstop = "SIGTERM"
    raise KeyboardInterrupt


# Ctrl-C also where a shell without job control has started this in the background, with Ctrl-C ignored.
for _signal in (signal.SIGINT, signal.SIGTERM):
    signal.signal(_signal, _interrupt)
# nohup ignores the hangup, and what is started here would inherit that: a handler does the same for this process alone.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)
_HANDLERS = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

# Where libraries look when they are imported, which is before any fixture. Theirs would be the user's own caches.
_CACHES = tempfile.mkdtemp(prefix="cloudrl-caches-")
atexit.register(shutil.rmtree, _CACHES, ignore_errors=True)
os.environ["HF_HOME"] = f"{_CACHES}/huggingface"
os.environ["XDG_CACHE_HOME"] = f"{_CACHES}/cache"
os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{_CACHES}/torchinductor"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


_WITHOUT = re.compile(r"not \w+( and not \w+)*")
_MARKS_OF_A_FILE = re.compile(r"^pytestmark = (?:.*(?:\n[ \])].*)*)", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file whose every test `-m "not ... and not ..."` leaves out is not imported: some import torch, or dstack."""
    left_out = re.findall(r"not (\w+)", config.option.markexpr) if _WITHOUT.fullmatch(config.option.markexpr) else []
    if not left_out or not collection_path.match("test_*.py") or not collection_path.is_file():
        return None
    found = _MARKS_OF_A_FILE.search(collection_path.read_text())
    marks = set(re.findall(r"\bmark\.(\w+)", found[0])) if found else set()
    for marker in marks & FOLDERS.keys():
        _check_place(collection_path.relative_to(config.rootpath).as_posix(), marker)
    return True if marks & set(left_out) else None


def pytest_collection_finish() -> None:
    """What was imported is there to stay: to look through it again and again would take seconds."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 100)  # what tests import later on is there to stay, too


def _check_place(name: str, marker: str) -> None:
    """Tests of the labs are where `make test` looks for them."""
    if not name.startswith(FOLDERS[marker]):
        raise pytest.UsageError(f"{name} is marked {marker}, and is in none of {', '.join(FOLDERS[marker])}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What repeats another test at length runs with CLOUDRL_SLOW=1, as `make test-slow` sets it."""
    for marker in FOLDERS:
        for item in items:
            if item.get_closest_marker(marker):
                _check_place(item.nodeid, marker)
    if not os.environ.get("CLOUDRL_SLOW"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: CLOUDRL_SLOW=1 or make test-slow"))


@pytest.fixture(scope="session", autouse=True)
def made_once() -> None:
    """What libraries make anew each time, and only read.

    Typer makes all commands for each that is typed, and OmegaConf parses the 118 interpolations of verl's configuration
    for each that is composed: more than half of the time of both.
    """
    typer.main.get_command = cache(typer.main.get_command)
    omegaconf.base.parse = cache(omegaconf.base.parse)


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the code under test and all that it starts put into the machine's /tmp ends with pytest's own folders.

    verl, for one, leaves a lock file there for each checkpoint. A short path: sockets are below it.
    """
    folder = tmp_path_factory.getbasetemp() / "T"
    folder.mkdir()
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = str(folder)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare a text with a file byte by byte; `pytest --update-golden` rewrites the file instead."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        assert path.read_bytes().decode() == text

    return compare


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the repository."""
    return Path(__file__).parent.parent


@pytest.fixture
def run_python() -> Callable[[str], str]:
    """Run code in a new Python and return what it printed."""

    def run(code: str) -> str:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        return done.stdout

    return run


@pytest.fixture(autouse=True)
def _same_signals() -> Iterator[None]:
    """Handlers that a test changes, as the end of our command line does, are back for the next one."""
    yield
    for number, handler in _HANDLERS.items():
        signal.signal(number, handler)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Type a command. What it then hints at must be something that can be typed."""

    def typed(*words: str) -> Typed:
        monkeypatch.setattr(sys, "argv", ["cloudrl", *words])
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        shown = "\n".join(line.partition("→ ")[2] for line in output.err.splitlines() if "→ " in line)
        assert faults(shown) == []
        return Typed(code, output.out, output.err)

    return typed


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """$CLOUDRL_HOME; the working directory is beside it."""
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


@pytest.fixture
def lab(home: Path) -> Iterator[FakeLocal]:
    """A local cluster `lab` that is READY: real files and ports, a stand-in behind them."""
    with FakeLocal("lab") as fake:
        yield fake
