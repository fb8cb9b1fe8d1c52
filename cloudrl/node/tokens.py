"""The key that the tokens of a cluster are derived from, and the files that processes of a node read them from.

On dstack, a run of two or more nodes has the same private key `~/.ssh/dstack_job` on every node, made anew at
each resubmission (dstack 0.22, runner/internal/executor); elsewhere, and with one node, the key is a random
file that only its owner can read. Nothing secret stands in the rendered task. dstack's server makes its key and sends
it to the nodes; a client reads the key from the head through SSH, each time that it connects, and writes it nowhere.
"""

import fcntl
import os
import secrets
from pathlib import Path
from typing import Optional

from cloudrl.errors import InputError
from cloudrl.private_files import make_folder, open_file, write_file
from cloudrl.protocol.tokens import Tokens

PEER_TOKEN = "peer-token"  # noqa: S105 - a name
"""The file, in the run folder of an agent, that services of several nodes know each other by."""


def read_or_make_key(path: Path) -> bytes:
    """The key at `path`; made there, for its owner only, if it is missing or empty."""
    make_folder(path.parent)
    with os.fdopen(open_file(path, os.O_RDWR | os.O_CREAT), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed: a second maker waits for the whole key
        key = file.read()
        if not key:
            key = secrets.token_hex(32).encode()
            file.write(key)
        return key


def write_tokens(tokens: Tokens, run_dir: Path) -> Path:
    """Write those that processes of this node read from files; returns the file of Ray's."""
    ray = run_dir / "ray-token"
    write_file(ray, tokens.ray)
    write_file(run_dir / PEER_TOKEN, tokens.peers)
    return ray


def node_key(nodes: int, run_dir: Path, key_file: Optional[Path]) -> bytes:
    """This node's key: the given file, dstack's job key, or, with one node, a file of its own.

    Args:
        nodes: size of the cluster; dstack gives its key to two or more.
        run_dir: where a single node keeps its own key, as `key`.
        key_file: the provider's, when it has one.

    Raises:
        InputError: several nodes have no key in common. dstack writes none for a user whose home is `/` (0.21.2,
            runner/internal/runner/executor.go), and nodes with keys of their own would refuse each other for ever.
    """
    job_key = Path("~/.ssh/dstack_job").expanduser()
    if key_file is not None:
        return key_file.read_bytes()
    if nodes > 1:
        if not job_key.exists():
            user, home = os.getuid(), Path.home()
            raise InputError(
                f"a cluster of {nodes} nodes, and no key that all have: no {job_key} (user {user}, home {home})",
                hint="Run as a user with a home folder of its own, such as user: root",
            )
        return job_key.read_bytes()
    return read_or_make_key(run_dir / "key")
