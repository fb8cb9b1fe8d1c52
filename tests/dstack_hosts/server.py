"""The real dstack server of a lab, on loopback of the lab's network."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import namespaces
from .cloud import BACKEND
from .standin.config import PROGRAM

_UP_S = 300.0
_DOWN_S = 40.0
_FAST = Path(__file__).with_name("fast_server.py")


class Server:
    """The dstack server. Made by `Lab`.

    Args:
        lab_process: the lab's first process.
        home: HOME of the server, and of the clients, whose configuration it writes.
        log: file of its output.
        fast: short polling intervals instead of dstack's own.
        settings: more variables, such as DSTACK_SERVER_LOG_QUOTA_PER_JOB_HOUR.
    """

    port = 3000

    def __init__(
        self, lab_process: int, home: Path, log: Path, token: str, *, fast: bool, settings: Mapping[str, str]
    ) -> None:
        self._lab_process = lab_process
        self._home = home
        self._fast = fast
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.log = log
        self.token = token

    @property
    def url(self) -> str:
        """Where it answers, inside the lab's network."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, timeout_s: float = _UP_S) -> None:
        """Start it and wait until it answers. Raises TimeoutError with the end of its log."""
        self._write_backends()
        with self.log.open("ab") as log:
            self._process = namespaces.popen(
                self._lab_process, namespaces.in_folder(self._home, self._command()), env=self._environment(),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + timeout_s
        with namespaces.network_of(self._lab_process):
            while not self._answers():
                if time.monotonic() > deadline or self._process.poll() is not None:
                    end = self.log.read_text(errors="replace")[-3000:]
                    raise TimeoutError(f"the dstack server does not answer at {self.url}:\n{end}")
                time.sleep(0.1)

    def stop(self) -> None:
        """End it as Ctrl-C in its terminal would, and wait."""
        if self._process is None or self._process.poll() is not None:
            return
        os.kill(namespaces.inside(self._process), signal.SIGINT)
        self._process.wait(_DOWN_S)

    def be_patient(self, patient: bool) -> None:
        """Whether a host may be silent for minutes, as with dstack's own intervals, or for 15 s; until `start`."""
        if self._fast and self._process is not None:
            os.kill(namespaces.inside(self._process), signal.SIGUSR1 if patient else signal.SIGUSR2)

    def forget(self) -> None:
        """Collect its process after the lab's end."""
        if self._process is not None:
            self._process.wait(_DOWN_S)

    def call(self, path: str, body: Mapping[str, Any], timeout_s: float = 30.0) -> Any:
        """POST to the server's API, such as "/api/project/main/runs/get". Raises urllib.error.HTTPError."""
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), method="POST")
        request.add_header("Authorization", f"Bearer {self.token}")
        request.add_header("Content-Type", "application/json")
        with namespaces.network_of(self._lab_process), urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return json.loads(answer.read() or b"null")

    def _write_backends(self) -> None:
        """The server's own file of backends, where the lab has a cloud."""
        if "LAB_CLOUD" in self._settings:
            folder = self._home / ".dstack/server"
            folder.mkdir(parents=True, exist_ok=True)
            backend = {"type": BACKEND, "creds": {"type": "api_key", "api_key": "none"}}
            (folder / "config.yml").write_text(json.dumps({"projects": [{"name": "main", "backends": [backend]}]}))

    def _command(self) -> list[str]:
        if self._fast:
            return [sys.executable, str(_FAST), str(self.port)]
        dstack = str(Path(sys.executable).with_name("dstack"))
        return [dstack, "server", "-y", "--host", "127.0.0.1", "--port", str(self.port)]

    def _environment(self) -> dict[str, str]:
        return {
            "HOME": str(self._home),
            "TMPDIR": str(self._home.parent / "tmp"),  # what it has there when it is killed ends with the lab
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG": "C.UTF-8",
            "DSTACK_SERVER_DIR": str(self._home / ".dstack/server"),
            "DSTACK_SERVER_ADMIN_TOKEN": self.token,
            "DSTACK_SERVER_HOST": "127.0.0.1",
            "DSTACK_SERVER_PORT": str(self.port),
            "DSTACK_UPDATE_DEFAULT_PROJECT": "1",  # writes the client's configuration without asking
            "DSTACK_DEFAULT_CREDS_DISABLED": "1",  # no cloud of the developer's
            "DSTACK_SERVER_LOG_LEVEL": "DEBUG",
            "DSTACK_SERVER_LOG_FORMAT": "standard",
            "DSTACK_SHIM_DOWNLOAD_URL": f"file://{PROGRAM}",
            "DSTACK_RUNNER_DOWNLOAD_URL": f"file://{PROGRAM}",
            **self._settings,
        }

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/healthcheck", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
