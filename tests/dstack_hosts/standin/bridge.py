"""Bridge networking, as Docker has it: a network of the containers of one host, whose ports are mapped to loopback.

Nothing is translated on the way out: from a container only its own host can be reached, the rest is refused at once.
Source: dstack, runner/internal/shim/docker.go (bindPorts, extractPorts); Docker's docker-proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from . import config
from .root import run

NAME, BITS, GATEWAY = "docker0", 16, "172.17.0.1"
_LINK_S = 20.0
_made = threading.Lock()


def free_address(used: Iterable[str]) -> str:
    """An address for a container."""
    taken = set(used)
    return next(address for n in range(2, 255) if (address := f"172.17.0.{n}") not in taken)


def connect(pid: int) -> None:
    """Lay a cable from the bridge into the network of a container's process."""
    cable = f"veth{pid}"
    with _made:
        if NAME not in {name for _, name in socket.if_nameindex()}:
            run("ip", "link", "add", NAME, "type", "bridge")
            run("ip", "addr", "add", f"{GATEWAY}/{BITS}", "dev", NAME)
            run("ip", "link", "set", NAME, "up")
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
            run("ip", "rule", "add", "iif", NAME, "unreachable")
    run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    run("ip", "link", "set", cable, "master", NAME, "up")


def configure(address: str, bits: int, gateway: str) -> None:
    """Wait for the cable, then configure this end of it: it is made once this process exists."""
    deadline = time.monotonic() + _LINK_S
    while "eth0" not in {name for _, name in socket.if_nameindex()}:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{address}: no eth0 after {_LINK_S:.0f} s")
        time.sleep(0.01)
    run("ip", "link", "set", "lo", "up")
    run("ip", "addr", "add", f"{address}/{bits}", "dev", "eth0")
    run("ip", "link", "set", "eth0", "up")
    run("ip", "route", "add", "default", "via", gateway)


def publish(pid: int, address: str, ports: Iterable[str], log: Path) -> list[dict[str, int]]:
    """Map ports of a container to free ones of the host's loopback, for as long as process `pid` lives."""
    words = [sys.executable, "-IS", str(config.PROGRAM), "docker-proxy", str(pid), address, *ports]
    with log.open("ab") as errors:
        proxy = subprocess.Popen(
            words, cwd="/", start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        )
    assert proxy.stdout is not None
    mapping: list[dict[str, int]] = json.loads(proxy.stdout.readline())
    return mapping


def docker_proxy(words: list[str]) -> int:
    """Print the mapping and forward connections until the process ends."""
    pid, address, *ports = words
    asyncio.run(_proxy(int(pid), address, [int(port) for port in ports]))
    return 0


async def _proxy(pid: int, address: str, ports: list[int]) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(os.pidfd_open(pid), ended.set)
    mapping = []
    for port in ports:
        server = await asyncio.start_server(functools.partial(_forward, address, port), "127.0.0.1", 0)
        mapping.append({"host": server.sockets[0].getsockname()[1], "container": port})
    print(json.dumps(mapping), flush=True)
    await ended.wait()


async def _forward(address: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError), contextlib.closing(writer):
        there_reader, there_writer = await asyncio.open_connection(address, port)
        with contextlib.closing(there_writer):
            await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()
    target.write_eof()
