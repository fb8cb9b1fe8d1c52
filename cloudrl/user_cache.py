"""Where this user's programs keep what can be made again."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """The folder of this name in cloudrl's part of the cache: below `$XDG_CACHE_HOME`, by default `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "cloudrl", name)
