"""All nodes of a cluster look at the mirror of its own job while Ray starts, before hours of training need it."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Callable, Dict, Iterable, Sequence, Tuple

from cloudrl.errors import ConnectionFailed
from cloudrl.node.background import call_within
from cloudrl.node.failure import NodeFailed, describe
from cloudrl.node.mirror_copier import MirrorCopier
from cloudrl.protocol import job_calls
from cloudrl.protocol.backoff import Backoff, retry
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.durable_jobs import DurableJob, Result
from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.mirror_checks import refusal
from cloudrl.protocol.mirrors import MirrorCheck
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.side_by_side import side_by_side

_ANSWER_S = 120.0
_SILENT = Backoff(first_s=0.5, longest_s=5.0, give_up_s=60.0)


class MirrorLook:
    """A look of all nodes at one mirror.

    Args:
        mirror: its address.
        copier: of rank 0.
        agent: the client of a node's agent, given its report.
        say: prints a line.
    """

    def __init__(
        self,
        mirror: str,
        copier: MirrorCopier,
        agent: Callable[[NodeReport], AgentClient],
        say: Callable[[str], object],
    ) -> None:
        self._mirror, self._copier, self._agent, self._say = mirror, copier, agent, say
        self._token = secrets.token_hex(16)

    def look(self, others: Callable[[], Sequence[NodeReport]]) -> None:
        """Have rank 0 look, then the others.

        Args:
            others: waits for the other nodes and returns those that have come.

        Raises:
            NodeFailed: a node cannot use it.
        """
        own = self._answer(partial(self._copier.check, self._mirror, self._token, writes=True))
        self._judge({0: own})
        self._judge({0: own, **dict(side_by_side(self._ask, others()))})
        if own.warning:
            self._say(f"warning: {own.warning}")

    def _ask(self, report: NodeReport) -> Tuple[int, MirrorCheck]:
        agent, rank = self._agent(report), report.rank
        ask = lambda: retry(lambda: job_calls.check_mirror(agent, rank, self._mirror, self._token), _SILENT)  # noqa: E731
        try:
            return rank, self._answer(ask)
        except ConnectionFailed as error:  # that a node is lost has a failure of its own
            self._say(f"warning: whether rank {rank} can use the mirror is not known: {error.message}")
            return rank, MirrorCheck()

    def _answer(self, ask: Callable[[], MirrorCheck]) -> MirrorCheck:
        try:
            return call_within(_ANSWER_S, ask, "it")  # a volume may hang
        except OSError as error:
            return MirrorCheck(str(error))

    def _judge(self, checks: Dict[int, MirrorCheck]) -> None:
        error = refusal(self._mirror, checks)
        if error is None:
            return
        rank = next(rank for rank, check in checks.items() if check.error or not check.is_seen)
        raise NodeFailed(Failure(FailureKind.PREFLIGHT, rank, describe(error), subject="mirror"))


def has_begun(job: DurableJob, records: Iterable[DurableJob]) -> bool:
    """Whether a volume remembers attempts of a job that has not failed since."""
    mine = (record for record in records if record.job_id == job.job_id and record.attempts)
    return any(record.outcome is None or record.outcome.result is not Result.FAILED for record in mine)
