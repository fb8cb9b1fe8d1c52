"""The folder of one local cluster: who it is, its key, its logs and its volume.

~/.cloudrl/clusters/NAME/
    cluster.json         what `up` has decided: id, ports, folders
    key                  the secret, 0600
    lock                 held by the command that works on this cluster
    node-0/, node-1/     each agent's logs and outcome
    data/                prepared data and made models
    checkpoints/         the volume, unless the cluster declares another folder; `down` leaves it
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from cloudrl.errors import CloudrlError, InputError
from cloudrl.foreign import parse_json, read_file
from cloudrl.private_files import open_file, write_file
from cloudrl.protocol.wire import from_json
from cloudrl.providers.state_folder import home, make_state_folder


def root() -> Path:
    """The folder of all local clusters."""
    return home() / "clusters"


@dataclass(frozen=True)
class LocalState:
    """What `cluster.json` holds.

    Attributes:
        id: new at each `up`; every process of the cluster carries it as CLOUDRL_RUN_ID.
        ip: the address that all nodes share; Ray does not take 127.0.0.1 for more than one.
        ray_temp_dir: Ray's folder, with a short path since it has Unix sockets; gone after `down`.
        agent_ports: one a rank.
        service_ports: those that were chosen for services.
        checkpoint_dir: the volume; "" for the usual one.
        boot_id: of this machine when the cluster was started.
        is_down: whether it was ended by `down`, or its start was given up.
    """

    name: str
    id: str
    nodes: int
    ip: str
    gcs_port: int
    dashboard_port: int
    client_port: int
    agent_ports: tuple[int, ...]
    ray_temp_dir: str
    checkpoint_dir: str = ""
    service_ports: tuple[int, ...] = ()
    boot_id: str = ""
    is_down: bool = False

    @property
    def folder(self) -> Path:
        """This cluster's folder."""
        return root() / self.name

    @property
    def ports(self) -> tuple[int, ...]:
        """All TCP ports that were chosen for it."""
        return (self.gcs_port, self.dashboard_port, self.client_port, *self.agent_ports, *self.service_ports)

    def node_dir(self, rank: int) -> Path:
        """Logs and outcome of one agent."""
        return self.folder / f"node-{rank}"

    @property
    def key_file(self) -> Path:
        """The secret."""
        return self.folder / "key"

    @property
    def checkpoints(self) -> Path:
        """The volume."""
        return Path(self.checkpoint_dir) if self.checkpoint_dir else self.folder / "checkpoints"

    @property
    def started_at(self) -> float | None:
        """When `up` made its key, in seconds since the epoch; None if it has none yet."""
        with suppress(FileNotFoundError):
            return self.key_file.stat().st_mtime
        return None

    @property
    def data(self) -> Path:
        """Prepared data and made models."""
        return self.folder / "data"

    def write(self) -> None:
        """Write `cluster.json`, whole or not at all."""
        make_state_folder(self.folder)
        write_file(self.folder / "cluster.json", json.dumps(asdict(self), indent=1) + "\n")


def read(name: str) -> LocalState | None:
    """The state of a cluster; None if absent.

    Raises:
        CloudrlError: the file is there and cannot be understood.
    """
    path = root() / name / "cluster.json"
    if not path.is_file():
        return None
    try:
        return from_json(LocalState, parse_json(read_file(path)))
    except (OSError, ValueError) as error:
        raise CloudrlError(f"{path} cannot be read: {error}", hint=f"Remove it: rm {path}") from error


def names() -> list[str]:
    """All clusters of which there is something, by name."""
    return sorted(path.parent.name for path in root().glob("*/cluster.json")) if root().is_dir() else []


def boot_id() -> str:
    """Changes whenever this machine is started (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold the cluster for one command; the lock goes with the process, however that ends.

    Raises:
        InputError: another command holds it, or the folder cannot be made.
    """
    folder = root() / name
    make_state_folder(folder)
    with open(folder / "lock", "a+", opener=open_file) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise InputError(
                f"another cloudrl command (process {holder}) is working on cluster {name!r}",
                hint=f"Wait for it, or end it with: kill {holder}",
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
