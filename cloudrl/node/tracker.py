"""Keeps a job whose own command says where it goes on from starting at a damaged step.

verl then goes on from the step that its tracker names. A node that has lost power may have cut a file of that step;
each further start would fail on it.
"""

import shlex
from collections import defaultdict
from pathlib import Path
from typing import Any, Callable, DefaultDict, List, Mapping, Optional

from cloudrl.errors import CheckpointError, InputError
from cloudrl.private_files import write_file
from cloudrl.saves.aggregate import local_inventory
from cloudrl.saves.inventory import Checkpoint
from cloudrl.saves.names import RESUME_MODE, TRACKER
from cloudrl.saves.resume import damaged_resume


def point_at_whole_step(job: Mapping[str, Any], say: Callable[[str], object]) -> Optional[int]:
    """Have verl's tracker name the newest whole step where it names a damaged one. No checkpoint is touched.

    Args:
        job: The body of `POST /api/jobs/`. A job that does not leave the step to the tracker is left alone.
        say: Is told what was done, or that no step is whole.

    Returns:
        The step from which verl goes on, 0 for the beginning; None if the tracker does not tell.
    """
    folder = str((job.get("metadata") or {}).get("cloudrl_checkpoints") or "")
    if not folder or f"{RESUME_MODE}=auto" not in shlex.split(str(job.get("entrypoint"))):
        return None
    steps: DefaultDict[int, List[Checkpoint]] = defaultdict(list)
    try:
        for checkpoint in local_inventory(Path(folder)).checkpoints:
            steps[checkpoint.step].append(checkpoint)
        damaged = damaged_resume(steps)
        if damaged is not None and damaged.instead is not None:
            write_file(Path(folder) / TRACKER, str(damaged.instead), mode=0o644)
    except InputError:  # there is no folder: a first start
        return 0
    except (CheckpointError, OSError):  # a volume that fails: verl says what it is
        return None
    if damaged is not None:
        then = f"{TRACKER} now names step {damaged.instead}" if damaged.instead is not None else "no step is whole"
        say(f"warning: {folder}: {damaged.why}; {then}")
        return damaged.instead
    return next((step for step, roles in steps.items() if any(role.resumes for role in roles)), 0)
