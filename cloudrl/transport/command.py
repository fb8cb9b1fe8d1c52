"""Commands of other programs, such as ssh, whose output has a limit in bytes and in time."""

import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple

from cloudrl.foreign import LIMIT_BYTES, Malformed

_PIECE_BYTES = 64 << 10
_ATOMIC_BYTES = 512
"""So many bytes a pipe that is ready takes without waiting (POSIX: PIPE_BUF, at least)."""


class Done(NamedTuple):
    """What a command has said, and its status."""

    status: int
    stdout: bytes
    stderr: bytes


def run(
    words: Sequence[str],
    data: bytes = b"",
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    limit_bytes: int = LIMIT_BYTES,
) -> Done:
    """Run a command to its end; it is killed where it says too much or takes too long.

    Args:
        words: The command line.
        data: Its standard input.
        timeout_s: For all of it.
        env: Its environment; that of this process for None.
        limit_bytes: The most that it may write to each of standard output and standard error.

    Raises:
        Malformed: It has written more than the limit.
        TimeoutError: It has not ended in time.
    """
    deadline = time.monotonic() + timeout_s
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=env) as process:
        try:
            stdout, stderr = _talk(process, memoryview(data), deadline, limit_bytes)
            status = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        finally:
            process.kill()  # nothing, where it has ended
            _close(process)
    return Done(status, stdout, stderr)


def _talk(process: subprocess.Popen[bytes], data: memoryview, deadline: float, limit_bytes: int) -> tuple[bytes, bytes]:
    """Both of its outputs, while it takes its input."""
    stdin, outputs = process.stdin, (process.stdout, process.stderr)
    printed: dict[object, bytearray] = {stream: bytearray() for stream in outputs}
    with selectors.DefaultSelector() as selector:
        for stream, event in ((stdin, selectors.EVENT_WRITE), *((output, selectors.EVENT_READ) for output in outputs)):
            if stream is not None:
                selector.register(stream, event)
        while selector.get_map():
            if (left_s := deadline - time.monotonic()) <= 0:
                raise TimeoutError
            for key, _ in selector.select(left_s):
                ready: Any = key.fileobj
                if stdin is not None and ready is stdin:
                    data = _give(stdin, data)
                    is_over = not data
                else:
                    is_over = not _take(ready, printed[ready], limit_bytes)
                if is_over:
                    selector.unregister(ready)
                    with suppress(BrokenPipeError):
                        ready.close()
    stdout, stderr = (bytes(output) for output in printed.values())
    return stdout, stderr


def _give(stream: Any, data: memoryview) -> memoryview:
    """What is still to be written after a piece; a command that reads no more gets no more."""
    try:
        return data[os.write(stream.fileno(), data[:_ATOMIC_BYTES]) :] if data else data
    except BrokenPipeError:
        return data[:0]


def _take(stream: IO[bytes], printed: bytearray, limit_bytes: int) -> bool:
    """Whether there may be more."""
    piece = os.read(stream.fileno(), _PIECE_BYTES)
    printed += piece
    if len(printed) > limit_bytes:
        raise Malformed(f"it says more than {limit_bytes:,} bytes")
    return bool(piece)


def _close(process: subprocess.Popen[bytes]) -> None:
    """What a child of the command may still hold open is not waited for."""
    for stream in (process.stdin, process.stdout, process.stderr):
        with suppress(OSError):
            if stream is not None:
                stream.close()
