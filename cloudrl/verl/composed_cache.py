"""Composed configurations of earlier calls, in the user's cache: composing them with Hydra takes a second of CPU.

A file is named by its content: the files of the release, the configuration's name and the overrides. Its folder and
the files are this user's alone. What cannot be kept or read is composed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloudrl.foreign import parse_object, read_file
from cloudrl.private_files import make_folder, refuse_foreign, write_file
from cloudrl.protocol.secret_names import is_secret_override
from cloudrl.user_cache import cache_folder
from cloudrl.verl.keys import EXPERIMENT

_FORMAT, _KEPT, _MAX_BYTES = 1, 64, 2_000_000
_FOLDER = "composed"
_STAMPED = re.compile(r"[A-Za-z0-9._-]{1,100}-\d{8}-\d{6}")
"""A run's name with its time, as `jobs/pipeline.py: name_run` makes it: the only difference between two calls."""
_ANY_RUN = "any-run-of-cloudrl-00000000-000000"


def key_of(folder: Path, config_name: str, words: Sequence[str]) -> str | None:
    """The name of a composed configuration; None if it must not be kept: its values may be secret.

    Args:
        folder: the release's files.
        config_name: as for `compose`.
        words: overrides.
    """
    if any(is_secret_override(word.partition("=")[0]) for word in words):
        return None
    files = [(path.name, entry.st_size, entry.st_mtime_ns) for path in sorted(folder.rglob("*"))
             if (entry := path.stat())]  # fmt: skip
    text = json.dumps([_FORMAT, str(folder), files, config_name, list(words)])
    text = text.replace(run_of(words), _ANY_RUN)
    return hashlib.sha256(text.encode()).hexdigest()


def run_of(words: Sequence[str]) -> str:
    """The name of the run, if it ends in a time; else one that is nowhere."""
    names = (word.partition("=")[2] for word in words if word.startswith(f"{EXPERIMENT}="))
    return next((name for name in names if _STAMPED.fullmatch(name)), _ANY_RUN)


def read(key: str | None, run: str = _ANY_RUN) -> Mapping[str, Any] | None:
    """What was kept under a key, for a run; None if there is nothing that can be used."""
    if key is None:
        return None
    path = cache_folder(_FOLDER) / f"{key}.json"
    try:
        refuse_foreign(path)
        return parse_object(read_file(path, _MAX_BYTES).decode().replace(_ANY_RUN, run))
    except (OSError, ValueError):
        return None


def keep(key: str | None, value: Mapping[str, Any], run: str = _ANY_RUN) -> None:
    """Keep what JSON gives back as it is, and the newest files only."""
    if key is None:
        return
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        return
    if len(text) > _MAX_BYTES or json.loads(text) != value:
        return
    folder = cache_folder(_FOLDER)
    with contextlib.suppress(OSError):
        make_folder(folder)
        write_file(folder / f"{key}.json", text.replace(run, _ANY_RUN))
        files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in files[_KEPT:]:
            path.unlink(missing_ok=True)
