"""Tiny models that earlier clusters of this machine have made, in the user's cache: half a minute of CPU time each.

A folder of the cache is named by what decides the weights: the sources that make them, and the version of torch.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cloudrl.private_files import make_folder, refuse_foreign
from cloudrl.protocol.options import MADE_ON_NODES
from cloudrl.providers.local.state import LocalState
from cloudrl.render.agent import python_sources
from cloudrl.user_cache import cache_folder

_SOURCES = ("verl_cpu", "data/addition.py", "data/capitals.py", "data/capitals.jsonl")


def bring_models(cluster: LocalState) -> None:
    """Copy what the cache has into a cluster's folder, where the agents would make it. Raises nothing."""
    for name in MADE_ON_NODES:
        with suppress(OSError):
            kept = _folder() / name
            refuse_foreign(kept)
            _copy(kept, _models(cluster) / name)


def keep_models(cluster: LocalState) -> None:
    """Copy what the agents have made into the cache. Raises nothing: a full disk costs the next start its time."""
    for name in MADE_ON_NODES:
        with suppress(OSError):
            make_folder(_folder())
            _copy(_models(cluster) / name, _folder() / name)


def _copy(source: Path, to: Path) -> None:
    """Copy a folder, which appears whole or not at all; one that is there already stays as it is."""
    if not source.is_dir() or to.exists():
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f".{to.name}-{secrets.token_hex(4)}")
    try:
        shutil.copytree(source, part)
        part.rename(to)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _models(cluster: LocalState) -> Path:
    """As `node/fetch.py: models_dir` has it."""
    return cluster.data / "models"


def _folder() -> Path:
    return cache_folder("models") / _key()


@cache
def _key() -> str:
    digest = hashlib.sha256(_torch_version().encode())
    for name, content in sorted(python_sources(_SOURCES)):
        digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest()[:16]


def _torch_version() -> str:
    with suppress(PackageNotFoundError):
        return version("torch")
    return ""
