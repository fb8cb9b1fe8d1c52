"""What the shell completes, without a network: names that this machine knows."""

from __future__ import annotations

import os
from pathlib import Path


def cluster_names(incomplete: str) -> list[str]:
    """Clusters that this machine has started or attached to, whether they are up or not."""
    home = Path(os.environ.get("CLOUDRL_HOME") or "~/.cloudrl").expanduser()
    folders = [*home.glob("clusters/*/"), *home.glob("dstack/*/*/")]
    return sorted({each.name for each in folders if each.name.startswith(incomplete)})


def recipe_names(incomplete: str) -> list[str]:
    """Recipes that come with cloudrl."""
    from cloudrl import recipes

    return [name for name in recipes.names() if name.startswith(incomplete)]


def provider_names(incomplete: str) -> list[str]:
    """Where a cluster can be started."""
    from cloudrl.providers.registry import PROVIDERS

    return [name for name in PROVIDERS if name.startswith(incomplete)]
