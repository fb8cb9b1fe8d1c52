"""What this machine knows of a cluster on Slurm: `$CLOUDRL_HOME/slurm-clusters/NAME/cluster.json`."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cloudrl.foreign import parse_json, read_file
from cloudrl.private_files import write_file
from cloudrl.protocol.wire import from_json
from cloudrl.providers.slurm.login import Login
from cloudrl.providers.slurm.run_folder import RunFolder
from cloudrl.providers.state_folder import home, make_state_folder


def root() -> Path:
    """The folder of all of them. Not `slurm`, which on a login node is the run folder of jobs."""
    return home() / "slurm-clusters"


@dataclass(frozen=True)
class SlurmState:
    """One cluster.

    Attributes:
        login: where Slurm's commands are; "" for this machine.
        run_dir: what all jobs share, as the shell there reads it.
        log: of the Slurm job.
        is_over: whether its end was seen; the login node need not be asked any more.
    """

    name: str
    login: str
    job_id: int
    run_dir: str
    log: str
    checkpoint_dir: str
    is_over: bool = False

    @property
    def target(self) -> str:
        """What a tunnel to it leads to."""
        return str(self.job_id)

    @property
    def folder(self) -> Path:
        """Files of ssh and of the tunnel."""
        return root() / self.name

    @property
    def started_at(self) -> float | None:
        """When this machine has submitted it, in seconds since the epoch; None if another one has."""
        with suppress(OSError):
            return (self.folder / "cluster.json").stat().st_mtime
        return None

    @property
    def run_folder(self) -> RunFolder:
        """Its folder on the nodes."""
        return RunFolder(Login(self.login), self.run_dir, self.job_id)

    def write(self) -> None:
        """Write it, whole or not at all."""
        make_state_folder(self.folder)
        write_file(self.folder / "cluster.json", json.dumps(asdict(self), indent=1) + "\n")

    def end(self) -> None:
        """Note that it is over, unless a newer cluster has the name."""
        if read(self.name) == self:
            replace(self, is_over=True).write()


def read(name: str) -> SlurmState | None:
    """What is known of a cluster, None where nothing is."""
    try:
        return from_json(SlurmState, parse_json(read_file(root() / name / "cluster.json")))
    except (OSError, ValueError):
        return None


def names() -> list[str]:
    """All that anything is known of."""
    return sorted(path.parent.name for path in root().glob("*/cluster.json"))
