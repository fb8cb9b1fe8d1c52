"""A cloud whose machines are the lab's hosts: what it offers, what is rented, and what that costs.

The server's side is `cloud_backend.py`, a `Compute` of dstack's own kind, which asks here over a socket. A machine
that is rented gets power, an empty disk and the server's user data, which install the shim as on a real machine.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from .hosts import Host

BACKEND = "vultr"  # a type of dstack's that needs no further package; nothing of Vultr is used


@dataclass(frozen=True)
class MachineType:
    """One row of the cloud's price list. Its disk is as large as is asked for.

    Attributes:
        name: as the cloud calls it.
        price: dollars an hour on demand; None where it is not offered so.
        spot_price: dollars an hour as spot; None if absent.
        gpu: name and memory in GiB; None without GPUs.
        amd: whether the GPUs are AMD's.
        gpus: how many.
        capacity: machines there are on demand at once.
        spot_capacity: the same for spot.
    """

    name: str
    price: float | None = 1.0
    spot_price: float | None = None
    gpu: tuple[str, int] | None = None
    amd: bool = False
    gpus: int = 0
    cpus: int = 16
    memory_gib: int = 64
    region: str = "east"
    zones: tuple[str, ...] = ("east-1",)
    capacity: int = 8
    spot_capacity: int = 8


@dataclass
class Machine:
    """A machine that is or was rented; times as `time.time()` gives them."""

    id: str
    type: MachineType
    spot: bool
    host: Host
    rented_at: float
    ended_at: float | None = None

    @property
    def dollars(self) -> float:
        """What it has cost until its end, or until now."""
        hours = ((self.ended_at or time.time()) - self.rented_at) / 3600
        return hours * self.price

    @property
    def price(self) -> float:
        """Dollars an hour."""
        price = self.type.spot_price if self.spot else self.type.price
        assert price is not None
        return price


@dataclass
class Cloud:
    """What a lab rents from. Given to `Lab(cloud=...)`, which starts and ends it.

    Attributes:
        types: the price list. It may be changed while the lab runs, as may all other fields.
        boot_s: from the order to power; a machine's own `pull_s` stands in `Lab(pull_s=...)`.
        machines: all that were ever rented, in that order.
    """

    types: list[MachineType]
    boot_s: float = 0.0
    machines: list[Machine] = field(default_factory=list)

    def start(self, folder: Path, hosts: list[Host]) -> None:
        """Answer the server's backend at a socket in `folder`, until `stop`."""
        self._all_hosts = hosts
        self._hosts = itertools.cycle(hosts)
        self._lock = threading.RLock()
        # without a key: a handshake that a client leaves half done would hold up all others, and the end
        self._listener = Listener(str(folder / "cloud"))
        self._is_stopped = False
        self._server = threading.Thread(target=self._serve, name="cloud", daemon=True)
        self._server.start()

    def stop(self) -> None:
        """Stop answering, and leave the hosts alone: they end with the lab."""
        self._is_stopped = True
        # closed while the thread waits in it, that would accept from the next listener that gets its descriptor
        Client(self._listener.address).close()
        self._server.join()
        self._listener.close()
        with self._lock:
            for machine in self.rented:
                machine.ended_at = time.time()

    @property
    def environment(self) -> dict[str, str]:
        """What the server has to be told to find it."""
        return {"LAB_CLOUD": str(self._listener.address)}

    @property
    def rented(self) -> list[Machine]:
        """The machines that cost money now."""
        with self._lock:
            return [machine for machine in self.machines if machine.ended_at is None]

    def interrupt(self, machine: Machine, *, notice_s: float = 0.0) -> None:
        """Take a spot machine away, as clouds do: its power goes, it is billed no longer, the server is not told.

        With notice its system is asked to shut down so many seconds before; nothing of dstack listens to what a cloud
        announces (dstack 0.22.5; its issue 2732).
        """
        if notice_s:
            machine.host.shut_down()
            _later(notice_s, self.terminate, machine.id)
        else:
            self.terminate(machine.id)

    def limit(self, name: str, **capacities: Any) -> None:
        """Change how many machines of a type there are: `capacity`, `spot_capacity`."""
        with self._lock:
            self.types = [replace(each, **capacities) if each.name == name else each for each in self.types]

    def offers(self) -> list[tuple[MachineType, bool, bool]]:
        """(type, spot, whether one is to be had) for each price."""
        with self._lock:
            return [
                (each, spot, self._free(each, spot=spot) > 0)
                for each in self.types
                for spot, price in ((False, each.price), (True, each.spot_price))
                if price is not None
            ]

    def create(self, name: str, spot: bool, user_data: str) -> str | None:
        """Rent a machine; its id, or None without capacity."""
        with self._lock:
            chosen = next(each for each in self.types if each.name == name)
            host = self._idle_host()
            if self._free(chosen, spot=spot) < 1 or host is None:
                return None
            machine = Machine(f"i-{len(self.machines)}", chosen, spot, host, time.time())
            self.machines.append(machine)
        data = yaml.safe_load(user_data)
        keys, commands = data["ssh_authorized_keys"], data["runcmd"]
        vendor = "amd" if chosen.amd else "nvidia"
        host.config = replace(host.config, keys=keys, commands=commands, gpus=chosen.gpus, gpu_vendor=vendor)
        _later(self.boot_s, self._boot, machine)
        return machine.id

    def describe(self, machine_id: str) -> tuple[str, str]:
        """(state, address): booting, running or ended. The address is there from the order on."""
        with self._lock:
            machine = self._machine(machine_id)
            if machine.ended_at is not None:
                return "ended", ""
            return ("running" if machine.host.is_up else "booting"), machine.host.address

    def terminate(self, machine_id: str) -> None:
        """End a machine. One that is gone, or never was, is not an error."""
        with self._lock, contextlib.suppress(StopIteration):
            self._end(self._machine(machine_id))

    def _machine(self, machine_id: str) -> Machine:
        return next(machine for machine in self.machines if machine.id == machine_id)

    def _free(self, wanted: MachineType, *, spot: bool) -> int:
        used = sum((m.type.name, m.spot) == (wanted.name, spot) for m in self.rented)
        return (wanted.spot_capacity if spot else wanted.capacity) - used

    def _idle_host(self) -> Host | None:
        """The next host after the last rented one, so that a replacement has another address."""
        busy = [machine.host for machine in self.rented]
        if len(busy) == len(self._all_hosts):
            return None
        return next(host for host in self._hosts if host not in busy)

    def _boot(self, machine: Machine) -> None:
        with self._lock:
            if machine.ended_at is None:
                machine.host.replace_disk()
                machine.host.power_on()

    def _end(self, machine: Machine) -> None:
        if machine.ended_at is None:
            machine.ended_at = time.time()
            machine.host.kill()

    def _serve(self) -> None:
        while not self._is_stopped:
            with contextlib.suppress(EOFError, ConnectionError):  # the server may have ended
                connection = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection[Any, Any]) -> None:
        verbs: dict[str, Callable[..., Any]] = {
            "offers": self.offers,
            "create": self.create,
            "describe": self.describe,
            "terminate": self.terminate,
        }
        with connection, contextlib.suppress(EOFError, ConnectionError):  # the server may have ended
            verb, *words = connection.recv()
            connection.send(verbs[verb](*words))


def _later(seconds: float, action: Callable[..., None], *words: Any) -> None:
    timer = threading.Timer(seconds, action, words)
    timer.daemon = True
    timer.start()
