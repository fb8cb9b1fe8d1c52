"""Asks NCCL's monitor on this machine, RAS, how far each rank of each communicator is.

NCCL's processes listen at `localhost:28028`, or where `NCCL_RAS_ADDR` says (NCCL 2.24 and later, on by default; 2.30.7,
src/ras/client_support.cc). Whoever reaches the port may ask for anything without a secret, so it is asked on loopback
only, with fixed commands, and is never relayed.

All NCCL processes of a machine share the port (SO_REUSEPORT): a connection reaches any of them, also one of a rollout
engine, which knows other communicators, or one that is stopped and never answers. So RAS is asked several times.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import time
from typing import Any, Callable, List, Mapping, Optional, Tuple

from cloudrl.hangs.ras import Mismatch, parse

_VARIABLE = "NCCL_RAS_ADDR"
_DEFAULT = "localhost:28028"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_TRIES, _ALL_S = 8, 8.0
_GREETING_S, _ONE_S, _COLLECT_S = 1.0, 5.0, 2
"""For the first line, which a stopped process never sends; for a whole answer; and for which RAS itself waits for
ranks that do not answer."""
_MOST_BYTES, _LINE_BYTES = 16 << 20, 4096
_GREETING = b"SERVER PROTOCOL "


def ask(address: str = "", *, clock: Callable[[], float] = time.monotonic) -> Tuple[Tuple[Mismatch, ...], str]:
    """All mismatches that the monitors on this machine know, each once, and the last answer as it came.

    Nothing, and "", where none listens or answers, and for an address that is not this machine's loopback. Takes at
    most 8 s.

    Args:
        address: as in NCCL_RAS_ADDR, "" for NCCL's default.
        clock: seconds that never run backwards.
    """
    place = loopback(address or _DEFAULT)
    found: List[Mismatch] = []
    text, deadline = "", clock() + _ALL_S
    for _ in range(_TRIES if place is not None else 0):
        left_s = deadline - clock()
        if left_s <= 0 or place is None:
            break
        try:
            answer = _answer(place, min(_ONE_S, left_s), clock)
        except ConnectionRefusedError:
            break
        except (OSError, ValueError):
            continue
        text = answer or text
        found += [mismatch for mismatch in parse(answer) if mismatch not in found]
    return tuple(found), text


def address_of(job: Mapping[str, Any]) -> str:
    """Where the job's own environment puts NCCL's monitor, else the node's; "" for NCCL's default."""
    given = job.get("runtime_env")
    variables = given.get("env_vars") if isinstance(given, dict) else None
    own = variables.get(_VARIABLE) if isinstance(variables, dict) else None
    return str(own or os.environ.get(_VARIABLE) or "")


def loopback(address: str) -> Optional[Tuple[str, int]]:
    """Host and port of an address as NCCL takes it, `host:port` or `[::1]:port`; None if it is not loopback."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    is_port = port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536
    return (host, int(port)) if host in _LOOPBACK and is_port else None


def _answer(place: Tuple[str, int], limit_s: float, clock: Callable[[], float]) -> str:
    """One status. JSON where this NCCL has it, else text; "" from a server that is no RAS.

    Raises:
        OSError: nothing listens, or it does not answer in time.
    """
    deadline = clock() + limit_s
    with socket.create_connection(place, _GREETING_S) as connection, connection.makefile("rb") as reader:
        if not ipaddress.ip_address(connection.getpeername()[0]).is_loopback:
            return ""  # whatever `localhost` means here
        for command in ("client protocol 2", f"timeout {_COLLECT_S}", "set format json"):
            connection.sendall(f"{command}\n".encode())
            line = reader.readline(_LINE_BYTES)  # of the last one an error before NCCL 2.28: it stays with text
            if command.startswith("client") and not line.startswith(_GREETING):
                return ""
        connection.sendall(b"verbose status\n")
        parts, size = [], 0
        while size < _MOST_BYTES and clock() < deadline:
            connection.settimeout(max(0.05, deadline - clock()))
            part = b""
            with contextlib.suppress(socket.timeout):
                part = reader.read1(1 << 16)
            if not part:
                break
            parts.append(part)
            size += len(part)
    return b"".join(parts).decode("utf-8", "replace")
