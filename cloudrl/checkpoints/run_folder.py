"""A folder of this machine that becomes a run of one step: what belongs to the step, and the tracker that names it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudrl.private_files import write_file
from cloudrl.saves.inventory import Checkpoint
from cloudrl.saves.names import OF_STEP, RESUME_FROM, RESUME_MODE, TRACKER, step_folder
from cloudrl.saves.places import FileCopy
from cloudrl.saves.scan import read_small

_MOST_DIGITS = 19


@dataclass(frozen=True)
class RunOfStep:
    """A folder from which a job can go on: a run of one step, with the tracker that names it.

    Attributes:
        folder: of the run.
        step: the training step.
    """

    folder: Path
    step: int

    @property
    def path(self) -> Path:
        """The folder of the step."""
        return self.folder / step_folder(".", self.step)


def track(folder: Path, step: int) -> list[str]:
    """Name the step in the tracker, unless that names a later one which is there: a resume would lose that work."""
    tracker = folder / TRACKER
    text = (read_small(tracker, follow_links=True) or "").strip()
    if text.isdecimal() and len(text) < _MOST_DIGITS and int(text) > step and (folder / f"{OF_STEP}{text}").is_dir():
        how = f"{RESUME_MODE}=resume_path {RESUME_FROM}={folder.absolute() / step_folder('.', step)}"
        return [f"{tracker} still names step {text}, which is there and later. To go on from step {step}: {how}"]
    write_file(tracker, str(step), mode=0o666)
    return []


def files_of(roles: Sequence[Checkpoint]) -> dict[str, FileCopy]:
    """Path below the step -> the file."""
    files = {name: copies[0] for role in roles for name, copies in role.step_files.items()}
    for role in roles:
        files |= {below_step(role, name, copies[0]): copies[0] for name, copies in role.files.items()}
    return dict(sorted(files.items()))


def below_step(role: Checkpoint, name: str, file: FileCopy) -> str:
    """As it is there: verl's SFT trainer has no folder for a role."""
    step = f"{step_folder(role.run, role.step)}/"
    return file.path.removeprefix(step) if file.path.startswith(step) else f"{role.role}/{name}"
