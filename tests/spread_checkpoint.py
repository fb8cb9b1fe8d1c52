"""Lays a run out over nodes with disks of their own, as multi-node training leaves it."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from cloudrl.saves.names import OF_LOADER, TRACKER

_RANK = re.compile(r"_world_size_(\d+)_rank_(\d+)\.")
_WRITER = re.compile(r"__(\d+)_\d+\.distcp")


def spread(run: Path, folders: Sequence[Path], *, driver: int = 0) -> None:
    """Copy each file of a run to the node that would have written it.

    The first ranks go to the first node, and so on; what belongs to no rank to that of rank 0; the tracker and the
    state of the data loader to the driver's.

    Args:
        run: A whole run, such as `checkpoints/demo`.
        folders: The checkpoint folder of each node; the run is in each of them under its own name.
        driver: The index of the node where the driver ran.
    """
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        name = path.relative_to(run)
        match, writer = _RANK.search(name.name), _WRITER.fullmatch(name.name)
        of_no_rank = driver if name.name == TRACKER or OF_LOADER.fullmatch(name.name) else 0
        node = int(match[2]) * len(folders) // int(match[1]) if match else of_no_rank
        if writer:  # Megatron's; these runs have as many ranks as nodes
            node = int(writer[1]) % len(folders)
        target = Path(folders[node]) / run.name / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
