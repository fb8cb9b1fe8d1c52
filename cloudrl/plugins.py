"""Which providers are installed: those that come with cloudrl, and those that other packages have as entry points.

Standard library only: the command line and the fields of a cluster need their names, and none of their modules.
"""

from functools import cache
from pathlib import Path

GROUP = "cloudrl.providers"
"""The group of entry points: a provider's name, and its class as `module:Class`."""
DEFAULT = "local"
"""The provider that starts a cluster where the user names none; a job to be run chooses by `default_provider`."""


def own_providers() -> dict[str, str]:
    """Name -> class of those in `cloudrl/providers/`, which a checkout has without being installed."""
    names = {file.parent.name for file in (Path(__file__).parent / "providers").glob("*/provider.py")}
    return {
        name: f"{GROUP}.{name}.provider:{name.capitalize()}Provider"
        for name in sorted(names, key=lambda name: (name != DEFAULT, name))
    }


@cache
def providers() -> dict[str, str]:
    """Name -> class of all. Of clusters that are over, the first provider's counts."""
    from importlib.metadata import entry_points  # takes longer than all else here, and help needs none of it

    others = {point.name: point.value for point in sorted(entry_points(group=GROUP))}
    return own_providers() | {name: others[name] for name in others if name not in own_providers()}
