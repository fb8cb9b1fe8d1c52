"""What this node knows of the processes of jobs: samples in each heartbeat, and stacks when somebody asks."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Dict, Iterable, Mapping, Tuple

from cloudrl.node.background import repeat
from cloudrl.node.identity import Identity
from cloudrl.node.job_processes import JobProcesses
from cloudrl.node.looks import Looks
from cloudrl.node.masking import Masker
from cloudrl.node.stops import Stops
from cloudrl.node.usage import EVERY_S
from cloudrl.protocol.job_work import LookedAt
from cloudrl.protocol.report import NodeReport


class JobLooks:
    """One node's.

    Args:
        folder: of this node alone.
        identity: of the node.
        stops: of the node; no training hangs while a debugger holds it.
        secrets: the values that are masked.

    Attributes:
        ray_env: variables of `ray start` with which jobs note their phase.
    """

    def __init__(self, folder: Path, identity: Identity, stops: Stops, secrets: Callable[[], Iterable[str]]) -> None:
        self.ray_env: Dict[str, str] = {}
        self._looks, self._ip, self._secrets = Looks(folder, identity.rank), identity.ip, secrets
        self._processes = JobProcesses(self._looks.note, lambda: stops.has_notes, self._looks.saved)

    def start(
        self, env: Mapping[str, str], tell: Callable[..., object], warn: Callable[[str], object]
    ) -> Dict[str, str]:
        """Sample from now on; returns `ray_env`.

        Args:
            env: of the node.
            tell: takes the samples, for the node's report.
            warn: gets the reason why nothing is sampled.
        """
        try:
            self.ray_env = self._looks.prepare(env)
        except OSError as error:
            warn(f"warning: the phases of jobs are not seen on this node: {error}")
            return {}
        tell(places_controllers=True, asks_trainers=True, places_training=True)
        repeat(lambda: tell(work=self._processes.sample()), EVERY_S)
        return self.ray_env

    def wish(self, text: str) -> None:
        """Have a trainer on this node save at the end of its step, or not; see `HeartbeatReply.save_wish`."""
        if self.ray_env:
            self._looks.wish(text)

    def look(self, reports: Iterable[NodeReport]) -> Tuple[LookedAt, ...]:
        """The processes of jobs with their stacks, without secrets.

        Args:
            reports: of the cluster's nodes: connections to them are Ray's and verl's own.
        """
        others = {report.ip for report in reports} - {self._ip, "127.0.0.1"}
        return self._looks.look(self._processes, Masker(self._secrets()), others)
