"""Commands for dstack where its server is not configured, not there, or silent."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from child_processes import ended
from patience import SLOWER
from typed_command import Run

from cloudrl.providers.slurm import provider as slurm

pytestmark = pytest.mark.io

UP = ("up", "lab", "--on", "dstack", "-y")


@pytest.fixture(autouse=True)
def unknown_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has never used dstack."""
    monkeypatch.setenv("HOME", str(home))
    for name in ("DSTACK_SERVER_URL", "DSTACK_TOKEN", "DSTACK_PROJECT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "words", [UP, ("run", "grpo", "-y"), ("fleet", "list"), ("volume", "list"), ("attach", "dstack/lab")]
)
def test_no_server_is_configured(run: Run, words: tuple[str, ...]) -> None:
    run(*words).ended(2, "no dstack server is configured", "dstack server", "dstack project add")


@pytest.mark.parametrize("what", ["fleet", "volume"])
def test_slurm_alone_has_no_machines_to_rent(run: Run, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(slurm, "is_here", lambda: True)
    run(what, "list").ended(2, "no dstack server is configured", "dstack project add")


def test_who_is_not_asked_for_a_cluster_is_said(run: Run) -> None:
    run("attach", "lab").ended(2, "there is no cluster 'lab'\n", "Not asked, since it is not configured: dstack")


def test_a_limit_of_the_cost_needs_the_server_or_a_price(run: Run) -> None:
    assert run("up", "lab", "--on", "dstack", "--max-cost", "9", "--dry-run").code == 2
    done = run("up", "lab", "--on", "dstack", "--max-cost", "9", "--set", "price_per_hour=3", "--dry-run").ended(0)
    assert "--max-cost 9 \\\n" in done.out
    run("task", "create", "lab", "--max-cost", "9", "--dry-run").ended(
        2, "max_cost 9 needs the price of the cluster", "price_per_hour"
    )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("DSTACK_SERVER_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setenv("DSTACK_TOKEN", "token")
        monkeypatch.setenv("DSTACK_PROJECT", "main")
        yield listener


def test_nobody_answers(run: Run, server: socket.socket) -> None:
    server.close()
    run("fleet", "list").ended(5, f"no dstack server answers at {os.environ['DSTACK_SERVER_URL']}", "Is it running?")


def test_a_token_that_is_refused(run: Run, server: socket.socket) -> None:
    def refuse() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

    threading.Thread(target=refuse, daemon=True).start()
    run("fleet", "list").ended(5, "refuses the token for project 'main'", "dstack project add --name NAME")


def test_ctrl_c_before_anything_was_submitted(server: socket.socket) -> None:
    asked = threading.Event()

    def take() -> None:
        server.settimeout(30 * SLOWER)
        connection, _ = server.accept()
        connection.recv(10)
        asked.set()
        connection.recv(1 << 16)  # until the other side hangs up
        connection.close()

    threading.Thread(target=take, daemon=True).start()
    words = [sys.executable, "-m", "cloudrl.cli.main", *UP, "--gpu", "none"]
    with (
        subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process,
        ended(process),
    ):
        assert asked.wait(30 * SLOWER)
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=30 * SLOWER)
    assert process.returncode == 130, text
    assert "error: interrupted; nothing was started" in text
    assert "Traceback" not in text
