"""A lab: stand-in hosts, the real dstack server, and a place for its clients.

All of it lives in namespaces without names and in one folder. A guardian takes both away when the process that
started the lab ends, however it ends.
"""

from __future__ import annotations

import io
import os
import py_compile
import secrets
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import namespaces
from .client import Client, Entered, Forked, client_environment
from .guarded import Guarded
from .hosts import Host
from .requirements import why_not
from .runs import Runs, until
from .server import Server
from .standin.config import HostConfig

if TYPE_CHECKING:
    from .cloud import Cloud

_MAIN = "import sys\n\nfrom standin.main import main\n\nsys.exit(main(sys.argv))\n"
_PREFORK = Path(__file__).with_name("prefork.py")
_NETWORK = "10.77.0"  # inside the lab's own network namespace: two labs may both use it
_START_S = 180.0
_END_S = 60.0
_HIDDEN = ("/root/", "/home/", "/tmp/", "/var/tmp/")  # private to each host, see standin/root.py


class LabUnavailable(Exception):
    """This machine cannot run a lab; the message says why."""


class Lab:
    """Hosts and a server, from `start` or `with` to `stop`, or to the end of this process.

    Args:
        hosts: how many.
        folder: where everything is, which must not exist or be empty, and is removed at the end. A short path:
            it will hold the sockets of ssh. None for a new one in the folder for temporary files.
        fast: the server's polling intervals divided by ten.
        settings: more environment of the server.
        guarded: False for a lab that goes on when this process ends, until `end`.
        cloud: what the server rents from; the hosts are then its machines, and have no power until they are rented.
        own: hosts beside those, which have power: name -> fields of `HostConfig`.
        host: fields of `HostConfig` that all hosts share, such as `images`.

    Raises:
        LabUnavailable: on `start`, where the machine cannot do it.
    """

    def __init__(
        self,
        hosts: int = 2,
        folder: Path | None = None,
        *,
        fast: bool = True,
        settings: Mapping[str, str] | None = None,
        guarded: bool = True,
        cloud: Cloud | None = None,
        own: Mapping[str, Mapping[str, Any]] | None = None,
        **host: Any,
    ) -> None:
        self._own = dict(own or {})
        self._names = [*(f"node{index}" for index in range(hosts)), *self._own]
        self._folder = folder
        self._fast = fast
        self._settings = dict(settings or {})
        self._guarded = guarded
        self.cloud = cloud
        self._host_fields = host
        self._namespaces: Guarded | None = None
        self._forker: subprocess.Popen[bytes] | None = None
        self.first_process = 0
        """The process whose namespaces the lab is."""
        self._servers: list[Server] = []
        self._clients: list[Client] = []
        self._starting = threading.Lock()  # users of one lab may type at the same time
        self.hosts: list[Host] = []

    def __enter__(self) -> Lab:
        self.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the hosts and the server at once, and wait for both."""
        reason = why_not()
        if reason:
            raise LabUnavailable(reason)
        self.folder = self._folder or Path(tempfile.mkdtemp(prefix="dstack-lab-", dir="/tmp"))
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start_namespaces()
            self._start_parts()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything and wait until nothing of it is left. A second call does nothing."""
        guarded, self._namespaces = self._namespaces, None
        if guarded is None:
            return
        if self.cloud is not None:
            self.cloud.stop()
        guarded.stop()
        for host in self.hosts:
            host.forget()
        for server in self._servers:
            server.forget()
        if self._forker is not None:
            self._forker.wait(_END_S)
        for client in self._clients:
            client.close()

    @property
    def runs(self) -> Runs:
        """The runs of its server."""
        return Runs(self)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a client: an own HOME, which has the server's address and token."""
        return client_environment(self.home)

    def popen(self, *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Client:
        """Start a command where the server and the hosts can be reached."""
        environment = {**self.environment, **(env or {})}
        if words[0] in ("cloudrl", "dstack") and not env:  # some libraries read variables when they are imported
            process: Entered | Forked = Forked(self._forker_socket(), list(words), cwd or self.home, environment)
        else:
            process = Entered(self.first_process, list(words), cwd or self.home, environment)
        client = Client(list(words), process)
        with self._starting:
            self._clients = [*(other for other in self._clients if not other.closed), client]
        return client

    def run(
        self, *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there to its end. Raises TimeoutError, after killing it."""
        return self.popen(*words, cwd=cwd, env=env).finish(timeout_s)

    def network(self) -> AbstractContextManager[None]:
        """Put the calling thread into the lab's network: for dstack's Python API, or a plain HTTP client."""
        return namespaces.network_of(self.first_process)

    def create_fleet(
        self, name: str = "lab", hosts: tuple[int, ...] | None = None, *, blocks: int = 1, timeout_s: float = 120.0
    ) -> None:
        """Make an SSH fleet of some hosts, or of all, with the CLI, and wait until it is idle."""
        chosen = [self.hosts[index] for index in hosts] if hosts else self.hosts
        path = self.folder / f"{name}.fleet.dstack.yml"
        hosts_yaml = "".join(f"    - hostname: {host.address}\n      blocks: {blocks}\n" for host in chosen)
        path.write_text(
            f"type: fleet\nname: {name}\nplacement: cluster\nssh_config:\n"
            f"  user: root\n  identity_file: {self.fleet_key}\n  hosts:\n{hosts_yaml}"
        )
        done = self.runs.apply(path, timeout_s=timeout_s)

        def is_idle() -> bool:
            found = self.server.call("/api/project/main/fleets/get", {"name": name})
            return [instance["status"] for instance in found["instances"]] == ["idle"] * len(chosen)

        until(is_idle, timeout_s, lambda: f"fleet {name} is not idle:\n{done.stdout}")

    def _forker_socket(self) -> Path:
        """The socket of `prefork`, which is started when it is first needed."""
        path = self.folder / "prefork"
        with self._starting:
            if not path.exists():
                self._start_forker(path)
        return path

    def _start_forker(self, path: Path) -> None:
        words = namespaces.in_folder(self.home, [sys.executable, str(_PREFORK), str(path)])
        with (self.folder / "prefork.log").open("ab") as log:
            self._forker = namespaces.popen(
                self.first_process, words, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + _START_S
        while not path.exists():
            if time.monotonic() > deadline or self._forker.poll() is not None:
                raise ChildProcessError((self.folder / "prefork.log").read_text())
            time.sleep(0.05)

    def _start_namespaces(self) -> None:
        self.home, self.fleet_key = self.folder / "home", self.folder / "fleet_key"
        for folder in (self.home, self.folder / "tmp"):
            folder.mkdir()
        self._namespaces = Guarded(self.folder, f"{_NETWORK}.1/24", guarded=self._guarded)
        self.first_process = self._namespaces.first_process

    def _start_parts(self) -> None:
        (self.folder / "standin.pyz").write_bytes(_pack(sys.executable))
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.fleet_key)]
        subprocess.run(words, check=True, timeout=30)
        self.hosts = [self._make_host(index) for index in range(len(self._names))]
        self._resolve_names()
        token = secrets.token_hex(16)
        log = self.folder / "server.log"
        if self.cloud is not None:
            self.cloud.start(self.folder, self.hosts[: len(self.hosts) - len(self._own)])
            self._settings |= self.cloud.environment
        self.server = Server(self.first_process, self.home, log, token, fast=self._fast, settings=self._settings)
        self._servers = [self.server]
        powered = [host for host in self.hosts if self.cloud is None or host.name in self._own]
        for host in powered:
            host.power_on()
        self.server.start()
        for host in powered:
            host.wait_until_up()

    def _resolve_names(self) -> None:
        """For the server and its clients; hosts and containers have an own /etc/hosts."""
        path = self.folder / "etc-hosts"
        path.write_text("127.0.0.1 localhost\n" + "".join(f"{each.address} {each.name}\n" for each in self.hosts))
        words = ["mount", "--bind", str(path), "/etc/hosts"]
        subprocess.run([*namespaces.enter(self.first_process), *words], check=True, timeout=30)

    def _make_host(self, index: int) -> Host:
        addresses = {name: f"{_NETWORK}.{11 + number}" for number, name in enumerate(self._names)}
        name = self._names[index]
        fields: dict[str, Any] = {
            "name": name,
            "address": addresses[name],
            "gateway": f"{_NETWORK}.1",
            "hosts": addresses,
            "admin_key": self.fleet_key.with_suffix(".pub").read_text(),
            "version": metadata.version("dstack"),
            "python": sys.executable,
            "path_first": str(Path(sys.executable).parent),
            "binds": hidden_folders(),
        }
        config = HostConfig(**{**fields, **self._host_fields, **self._own.get(name, {})})
        return Host(self.first_process, config, self.folder / "hosts" / name, self.folder / "disks" / name, index)


def _pack(python: str) -> bytes:
    """The bytes of `standin.pyz`: a zip that starts itself with a Python that the hosts see, isolated."""
    buffer = io.BytesIO()
    buffer.write(f"#!{python} -IS\n".encode())
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("__main__.py", _MAIN)
        for path in sorted((Path(__file__).parent / "standin").glob("*.py")):
            archive.write(path, f"standin/{path.name}")
            archive.writestr(f"standin/{path.name}c", _compiled(path))
    return buffer.getvalue()


def _compiled(path: Path) -> bytes:
    """Bytecode that is taken without a look at the source: to compile it at each start would take longer."""
    with tempfile.NamedTemporaryFile(suffix=".pyc") as file:
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(path), file.name, doraise=True, invalidation_mode=mode)
        return Path(file.name).read_bytes()


def hidden_folders() -> list[str]:
    """Folders of this Python and of this repository that a host would not see by itself."""
    repository = Path(__file__).resolve().parents[2]
    python = Path(os.path.realpath(sys.executable)).parent.parent
    wanted = [Path(sys.prefix), Path(sys.base_prefix), python, repository]
    root = os.stat("/").st_dev
    hidden = {str(path) for path in wanted if f"{path}/".startswith(_HIDDEN) or path.stat().st_dev != root}
    return sorted(path for path in hidden if not any(path.startswith(f"{other}/") for other in hidden))
