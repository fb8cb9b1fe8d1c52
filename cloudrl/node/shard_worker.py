"""The child that computes over shards, under the image's Python: checksums, and values in fewer bits.

It lives as long as its agent, is asked over a Unix socket, and gets the open file with each question, so it opens
nothing by itself. Values go straight to the socket of whoever has asked the agent for them.

    question, one datagram of JSON, with descriptors    answer, JSON until the end of the stream
    {"do": "crc32", "offset", "count", "start"}             {"size_bytes", "crc32"}             [file, answer]
    {"do": "cast", "offset", "count", "wanted"}             {"sent"}                            [file, answer, to]
    anything                                            {"error"}, and "unreadable" if the file is to blame

A blank before the answer for each piece of the work that is done says that the child is alive: a sum takes minutes, and
a read on a volume that hangs takes for ever.
"""

import argparse
import contextlib
import json
import os
import socket
import threading
import zlib
from typing import Any, Callable, Dict, List, Mapping, Sequence

from cloudrl.protocol.limits import CASTS

_CHUNK_BYTES = 1 << 20
"""Small enough for what is in work to stay in the processor's cache."""
SEND_TIMEOUT_S = 60.0


class Unreadable(OSError):
    """The file, and nothing else, is to blame."""


def main(argv: Sequence[str]) -> int:
    """`shards --fd N`: answer until the agent's end of the socket is closed."""
    parser = argparse.ArgumentParser(prog="cloudrl-node.pyz shards")
    parser.add_argument("--fd", type=int, required=True)
    asked = socket.socket(fileno=parser.parse_args(argv).fd)
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, 4096, 3)
        if not message:
            return 0
        threading.Thread(target=_answer, args=(message, descriptors), daemon=True).start()


def crc32(file: int, offset: int, count: int, start: int, alive: Callable[[], None]) -> Dict[str, int]:
    """How many bytes there are from `offset` on, at most `count`, and their CRC-32.

    `start` is the CRC-32 of what stands before them, if that is to be included. `alive` is called after each piece.

    Raises:
        Unreadable: see there.
    """
    size, value = 0, start
    while size < count:
        chunk = _read(file, min(_CHUNK_BYTES, count - size), offset + size)
        if not chunk:
            break
        alive()
        size, value = size + len(chunk), zlib.crc32(chunk, value)
    return {"size_bytes": size, "crc32": value}


def cast(content: bytes, wanted: str) -> bytes:
    """Little-endian values of float32 in fewer bits, rounded to nearest, ties to even, as torch does on a CPU.

    A float16 that is too large becomes infinite; NaN stays NaN: 0x7FC0 in bfloat16 (torch 2.13,
    headeronly/util/BFloat16.h: round_to_nearest_even), a quiet one with what bits there is room for in float16.
    """
    import numpy as np

    bits = np.frombuffer(content, "<u4")
    nan = np.isnan(bits.view("<f4"))
    if wanted == "F16":
        with np.errstate(over="ignore", invalid="ignore"):
            half = bits.view("<f4").astype("<f2")
        half.view("<u2")[nan] = (bits[nan] >> 16 & 0x8000) | (bits[nan] >> 13 & 0x3FF) | 0x7E00
        return half.tobytes()
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    result = rounded.view("<u2")[1::2].copy()
    result[nan] = 0x7FC0
    return result.tobytes()


def _read(file: int, count: int, offset: int) -> bytes:
    try:
        return os.pread(file, count, offset)
    except OSError as error:
        raise Unreadable(error.errno, error.strerror) from error


def _answer(message: bytes, descriptors: List[int]) -> None:
    """One question; whatever goes wrong is the answer, so that the client does not wait."""
    file, answer, *to = descriptors

    def alive() -> None:
        os.write(answer, b" ")

    with contextlib.ExitStack() as stack:
        for descriptor in descriptors:
            stack.callback(os.close, descriptor)
        value: Mapping[str, Any]
        try:
            request = json.loads(message)
            if request.pop("do") == "crc32":
                value = crc32(file, alive=alive, **request)
            else:
                with socket.socket(fileno=os.dup(to[0])) as client:
                    value = {"sent": _send_cast(file, client, request, alive)}
        except Unreadable as error:
            value = {"error": error.strerror, "unreadable": True}
        except Exception as error:  # noqa: BLE001  it goes back to the agent, which waits
            value = {"error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(OSError):
            os.write(answer, json.dumps(value).encode())


def _send_cast(file: int, to: socket.socket, request: Dict[str, Any], alive: Callable[[], None]) -> int:
    to.settimeout(SEND_TIMEOUT_S)
    wanted, offset, sent = request["wanted"], request["offset"], 0
    width = CASTS["F32", wanted]
    remaining = request["count"] * width
    while remaining:
        chunk = _read(file, min(remaining, _CHUNK_BYTES), offset)
        chunk = chunk[: len(chunk) // width * width]
        if not chunk:  # a job has cut the file meanwhile
            break
        values = cast(chunk, wanted)
        alive()
        to.sendall(values)
        alive()
        offset, remaining, sent = offset + len(chunk), remaining - len(chunk), sent + len(values)
    return sent
