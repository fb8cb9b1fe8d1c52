"""What this node knows of the processes of jobs: samples in each heartbeat, and stacks when somebody asks."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Collection, Dict, Iterable, Mapping, Tuple

from cloudrl.node.background import repeat
from cloudrl.node.job_processes import JobProcesses
from cloudrl.node.looks import Looks
from cloudrl.node.masking import Masker
from cloudrl.node.stops import Stops
from cloudrl.node.usage import EVERY_S
from cloudrl.protocol.job_work import LookedAt


class JobLooks:
    """One node's.

    Args:
        folder: of this node alone.
        rank: of the node.
        stops: of the node; no training hangs while a debugger holds it.
    """

    def __init__(self, folder: Path, rank: int, stops: Stops) -> None:
        self._looks = Looks(folder, rank)
        self._processes = JobProcesses(self._looks.note, lambda: stops.has_notes)

    def start(
        self, env: Mapping[str, str], tell: Callable[..., object], warn: Callable[[str], object]
    ) -> Dict[str, str]:
        """Sample from now on; returns the variables of Ray with which jobs note their phase.

        Args:
            env: of the node.
            tell: takes the samples, for the node's report.
            warn: gets the reason why nothing is sampled.
        """
        try:
            variables = self._looks.prepare(env)
        except OSError as error:
            warn(f"warning: the phases of jobs are not seen on this node: {error}")
            return {}
        repeat(lambda: tell(work=self._processes.sample()), EVERY_S)
        return variables

    def look(self, secrets: Iterable[str], nodes: Collection[str]) -> Tuple[LookedAt, ...]:
        """The processes of jobs with their stacks.

        Args:
            secrets: that are masked.
            nodes: addresses of the cluster's other nodes.
        """
        return self._looks.look(self._processes, Masker(secrets), nodes)
