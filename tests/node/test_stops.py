"""Notes of processes that wait for a debugger, and which ports they open to a relay."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import SLOWER

from cloudrl.node import stops as module
from cloudrl.node.stop_hook.stop_notes import started_at
from cloudrl.node.stops import Stops
from cloudrl.protocol.failures import ApiError, ErrorCode

pytestmark = pytest.mark.io


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def stops(tmp_path: Path) -> Stops:
    found = Stops(tmp_path, 3, belongs=lambda: {os.getpid()})
    found.prepare({})
    return found


def note(listener: socket.socket, **changes: Any) -> dict[str, Any]:
    own = {"id": "1-1", "pid": os.getpid(), "started": started_at(os.getpid()), "port": listener.getsockname()[1]}
    return {**own, "debugger": "debugpy", "method": "run", "since": time.time(), **changes}


def leave(tmp_path: Path, what: Any, name: str = "1-1.json") -> Path:
    path = tmp_path / "stops-3" / name
    path.write_text(what if isinstance(what, str) else json.dumps(what))
    return path


def test_a_stop_and_its_port(stops: Stops, listener: socket.socket, tmp_path: Path):
    leave(tmp_path, note(listener, rank=1, reason="ValueError: no"))
    [stop] = stops.listing()
    assert (stop.node, stop.rank, stop.method, stop.reason, stop.attached) == (3, 1, "run", "ValueError: no", False)
    with stops.connect(stop.port):
        assert stops.listing()[0].attached


@pytest.mark.parametrize(
    "wrong",
    [
        {"pid": 1},  # no process of this cluster
        {"pid": 4_000_000},
        {"started": 1},  # its number is another's now
        {"port": 1},  # no process listens there
        {"port": -1},
        {"port": 1 << 16},
        {"port": "22"},
        {"port": [22]},
        {"port": True},
        {"pid": str(os.getpid())},
        {"since": float("nan")},
        {"since": 1e12},
        {"since": float("-inf")},
        {"since": -1.0},
        {"rank": -1},
        {"rank": 1 << 40},
        {"rank": "1"},
        {"method": 1},
        {"id": None},
    ],
    ids=str,
)
def test_what_is_no_stop_opens_nothing(stops: Stops, listener: socket.socket, tmp_path: Path, wrong: dict[str, Any]):
    leave(tmp_path, note(listener, **wrong))
    assert stops.listing() == ()
    with pytest.raises(ApiError) as refused:
        stops.connect(listener.getsockname()[1])
    assert refused.value.code is ErrorCode.NO_DEBUGGER


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "[" * 10_000, '"x"', "{}" + " " * 20_000])
def test_what_is_no_note(stops: Stops, tmp_path: Path, text: str):
    leave(tmp_path, text)
    assert stops.listing() == ()


def test_links_and_pipes_are_not_followed(stops: Stops, listener: socket.socket, tmp_path: Path):
    (tmp_path / "elsewhere").write_text(json.dumps(note(listener)))
    (tmp_path / "stops-3" / "1-1.json").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "stops-3" / "2-1.json")
    assert stops.listing() == ()


def test_a_port_that_is_open_to_others_is_no_debuggers(stops: Stops, tmp_path: Path):
    with socket.create_server(("0.0.0.0", 0)) as server:
        leave(tmp_path, note(server))
        assert stops.listing() == ()


def test_a_port_of_another_users(stops: Stops, listener: socket.socket, tmp_path: Path, monkeypatch):
    leave(tmp_path, note(listener))
    assert stops.listing()
    monkeypatch.setattr(module.os, "getuid", lambda: os.geteuid() + 1)
    assert stops.listing() == ()


def test_notes_of_the_dead_go(stops: Stops, listener: socket.socket, tmp_path: Path):
    path = leave(tmp_path, note(listener, pid=4_000_000))
    assert stops.listing() == ()
    assert not path.exists()


def test_a_note_survives_a_look_in_which_its_process_is_missing(listener: socket.socket, tmp_path: Path):
    found: set[int] = set()
    stops = Stops(tmp_path, 3, belongs=lambda: found)
    stops.prepare({})
    path = leave(tmp_path, note(listener))
    assert stops.listing() == ()
    assert path.exists()
    found.add(os.getpid())
    assert len(stops.listing()) == 1


def test_a_note_survives_a_proc_that_cannot_be_read(stops: Stops, listener: socket.socket, tmp_path: Path, monkeypatch):
    path = leave(tmp_path, note(listener))
    with monkeypatch.context() as patched:
        patched.setattr(module, "started_at", lambda _pid: int("no number"))
        assert stops.listing() == ()
    assert path.exists()
    assert len(stops.listing()) == 1


@pytest.mark.parametrize("name", ["{}.json", "{}.json.part"])
def test_what_is_no_note_hides_none(stops: Stops, listener: socket.socket, tmp_path: Path, name: str):
    old, new = ([leave(tmp_path, "{", name.format(f"0-{n}-{each}")) for n in range(1100)] for each in ("old", "new"))
    for path in old:
        os.utime(path, (1, 1))
    leave(tmp_path, note(listener), "9-9.json")
    assert len(stops.listing()) == 1
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in new)  # it may be being written


def test_notes_of_others_processes_hide_none(stops: Stops, listener: socket.socket, tmp_path: Path):
    for number in range(1100):
        leave(tmp_path, note(listener, pid=1, started=started_at(1)), f"0-{number}.json")
    leave(tmp_path, note(listener), "9-9.json")
    assert len(stops.listing()) == 1


def test_a_folder_among_the_notes_goes(stops: Stops, tmp_path: Path):
    (tmp_path / "stops-3" / "x.json" / "y").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    (tmp_path / "stops-3" / "link").symlink_to(tmp_path / "kept")
    stops.prepare({})
    assert not list((tmp_path / "stops-3").iterdir())
    assert (tmp_path / "kept").exists()


def test_the_folders_are_its_own_and_empty_at_the_start(stops: Stops, listener: socket.socket, tmp_path: Path):
    left = leave(tmp_path, note(listener))
    found = stops.prepare({"PYTHONPATH": "/mine"})
    assert not left.exists()
    assert {name: (tmp_path / name).stat().st_mode & 0o777 for name in ("stops-3", "debug-3")} == {
        "stops-3": 0o700, "debug-3": 0o700,
    }  # fmt: skip
    assert found["CLOUDRL_DEBUGGER_PYTHONPATH"] == f"{tmp_path}/debug-3:/mine"


def test_the_next_sitecustomize_runs_too(stops: Stops, tmp_path: Path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("print('the next one')")
    env = {"PYTHONPATH": f"{tmp_path}/debug-3:{tmp_path}/site"}
    code = "import sys; print(sys.modules['sitecustomize'].__file__, breakpoint)"
    said = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=30 * SLOWER
    )
    assert said.stdout == f"the next one\n{tmp_path}/site/sitecustomize.py <built-in function breakpoint>\n"
    assert said.stderr == ""


def test_a_node_without_debugpy(monkeypatch):
    assert module.debuggers() == ("debugpy", "pdb")

    def version(_name: str) -> "str | None":
        return found

    monkeypatch.setattr(module.metadata, "version", version)
    found: str | None
    cases = {"1.8.0": 2, "2.0": 2, "1.10.1": 2, "1.7.9": 1, "unknown": 1, "2": 2, "1": 1, "1.8rc1": 2, "": 1, None: 1}
    for found, known in cases.items():
        assert len(module.debuggers()) == known, found


def test_folders_that_cannot_be_made_cost_debuggers_alone(tmp_path: Path):
    (tmp_path / "stops-3").write_text("")
    told: list[object] = []
    warned: list[str] = []
    assert module.ready(Stops(tmp_path, 3), {}, tell=lambda **known: told.append(known), warn=warned.append) == {}
    assert told == [{"debuggers": ()}]
    assert warned[0].startswith("warning: jobs cannot be debugged on this node: ")
    (tmp_path / "stops-3").unlink()
    assert module.ready(Stops(tmp_path, 3), {}, tell=lambda **known: told.append(known), warn=warned.append)
    assert (told[1:], len(warned)) == ([{"debuggers": ("debugpy", "pdb")}], 1)
