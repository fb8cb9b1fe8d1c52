"""What clusters have left on disks when they ended, as far as this machine has seen it.

Nobody can look at the disk of a machine on which no agent runs. So `cloudrl down` notes what lies there, beside the
task that it has sent, and who deletes the fleet or the volume is told.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from cloudrl.providers.dstack import state

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_FILE = "left.json"


@dataclass(frozen=True)
class Left:
    """The checkpoints of one cluster.

    Attributes:
        cluster: its name.
        fleet: the one that its machines belong to.
        hosts: addresses of its machines.
        volumes: network volumes that the checkpoints lie on; none where they lie on the machines.
        checkpoints: one line each, for a person.
    """

    cluster: str
    fleet: str | None
    hosts: Sequence[str]
    volumes: Sequence[str]
    checkpoints: Sequence[str]


def remember(project: str, left: Left) -> None:
    """Note what a cluster leaves; what was noted of its name before is replaced."""
    folder = state.folder(project, left.cluster)
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{_FILE}.part"
    part.write_text(json.dumps(asdict(left)), encoding="utf-8")
    part.replace(folder / _FILE)


def on_machines(project: str, hosts: Iterable[str]) -> list[Left]:
    """What lies on the own disks of these machines."""
    there = set(hosts)
    return [each for each in _all(project) if not each.volumes and there & set(each.hosts)]


def on_volume(project: str, volume: str) -> list[Left]:
    """What lies on a network volume."""
    return [each for each in _all(project) if volume in each.volumes]


def _all(project: str) -> list[Left]:
    found = []
    for path in sorted(state.root().joinpath(project).glob(f"*/{_FILE}")):
        try:
            found.append(Left(**json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):  # of another release, or cut short
            continue
    return [each for each in found if each.checkpoints]
