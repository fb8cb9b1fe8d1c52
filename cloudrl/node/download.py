"""A model from the Hub, counted while it comes: in the child that downloads it, under the image's Python."""

from __future__ import annotations

import importlib.util
import json
import os
import threading
import time
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Callable, Iterator, Mapping, Optional

from cloudrl.private_files import write_file
from cloudrl.protocol.progress import Fetching, Rate
from cloudrl.protocol.wire import to_json

_OTHER_FORMATS = ["*.pth", "*.gguf", "*.onnx", "original/*", "consolidated*"]
"""Of the same weights; they are not downloaded."""
_COUNT_S = 1.0


def hub_cache(env: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps models (huggingface_hub/constants.py: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME)."""
    if env.get("HF_HUB_CACHE"):
        return Path(env["HF_HUB_CACHE"]).expanduser()
    cache = Path(env.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return Path(env.get("HF_HOME") or cache / "huggingface").expanduser() / "hub"


def progress_file(result: Path) -> Path:
    """Where a child with this result file says how far it is."""
    return result.with_suffix(".progress")


def download(name: str, progress: Path) -> Path:
    """Download a model, and write how far it is into a file every second; returns its folder."""
    # hub versions before 1.0 download through hf_transfer where it is installed, and read the switch when they
    # are imported; later ones use Xet by themselves
    if int(metadata.version("huggingface_hub").split(".")[0]) < 1 and importlib.util.find_spec("hf_transfer"):
        os.environ["HF_HUB_ENABLE_HF_TRANSFER"] = "1"
    import huggingface_hub

    blobs = hub_cache(os.environ) / f"models--{name.replace('/', '--')}" / "blobs"
    with counting(blobs, progress, lambda: repository_bytes(name)):
        return Path(huggingface_hub.snapshot_download(name, ignore_patterns=_OTHER_FORMATS))


def repository_bytes(name: str) -> Optional[int]:
    """The size of all files of a model that are downloaded; None where the Hub does not say."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import filter_repo_objects

    files = HfApi().model_info(name, files_metadata=True, timeout=10.0).siblings or []
    wanted = filter_repo_objects(files, ignore_patterns=_OTHER_FORMATS, key=lambda file: file.rfilename)
    return sum(file.size or 0 for file in wanted) or None


@contextmanager
def counting(
    folder: Path, progress: Path, total: Callable[[], Optional[int]], clock: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """Write `Fetching` into `progress` every second while the block downloads into a folder.

    Args:
        folder: whose files are counted, also those that are not whole yet.
        progress: the file.
        total: asks for the bytes that there will be; what it raises means that they are unknown.
        clock: seconds that never run backwards.
    """
    ended = threading.Event()

    def count() -> None:
        total_bytes = None
        with suppress(Exception):  # the download itself says what is wrong with name, login or network
            total_bytes = total()
        rate = Rate(clock(), folder_bytes(folder))
        while not ended.is_set():
            done = folder_bytes(folder)
            counted = done if total_bytes is None else min(done, total_bytes)
            with suppress(OSError):  # a full disk ends the download by itself
                write_file(progress, json.dumps(to_json(Fetching("", counted, total_bytes, rate.add(clock(), done)))))
            ended.wait(_COUNT_S)

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


def folder_bytes(folder: Path) -> int:
    """Size of the files in a folder, without those in folders below; 0 where it does not exist."""
    size_bytes = 0
    with suppress(OSError):
        for entry in os.scandir(folder):
            with suppress(OSError):  # moved to its final name meanwhile
                size_bytes += entry.stat().st_size
    return size_bytes
