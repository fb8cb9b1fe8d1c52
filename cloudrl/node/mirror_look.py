"""All nodes of a cluster look at the mirror of its own job while Ray starts, before hours of training need it."""

from __future__ import annotations

import secrets
import time
from functools import partial
from typing import Callable, Dict, Iterable, Optional, Tuple

from cloudrl.errors import ConnectionFailed
from cloudrl.node.background import call_within, start_thread
from cloudrl.node.failure import NodeFailed, describe
from cloudrl.node.job_journal import JobJournal
from cloudrl.node.mirror_copier import MirrorCopier
from cloudrl.node.node_state import NodeState
from cloudrl.protocol import job_calls
from cloudrl.protocol.backoff import Backoff, retry
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.durable_jobs import DurableJob, Result
from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.mirror_checks import refusal
from cloudrl.protocol.mirrors import MirrorCheck
from cloudrl.protocol.ranks import ranks_text
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.side_by_side import side_by_side

_ANSWER_S = 120.0
_LOOK_FOR_RANKS_S, _LOOK_AGAIN_S = 0.2, 30.0
_SILENT = Backoff(first_s=0.5, longest_s=5.0, give_up_s=60.0)


class MirrorLook:
    """A look of all nodes at the mirror of their own job, in a thread; it puts a failure into the state of rank 0.

    A job that has begun waits for its mirror where it needs it, so its mirror is not looked at.

    Args:
        job: that the cluster is for; None without one.
        journal: of rank 0.
        copier: of rank 0.
        agent: the client of a node's agent, given its report.
        state: of rank 0, which hears of all nodes.
        nodes: how many there are.
        say: prints a line.
        sleep: waits that many seconds.

    Attributes:
        is_over: whether the start need not wait for it: all nodes can use it, or it does not answer now.
    """

    def __init__(
        self,
        job: Optional[DurableJob],
        journal: JobJournal,
        copier: MirrorCopier,
        agent: Callable[[NodeReport], AgentClient],
        state: NodeState,
        nodes: int,
        *,
        say: Callable[[str], object],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._job, self._journal, self._copier, self._agent = job, journal, copier, agent
        self._state, self._nodes, self._say, self._sleep = state, nodes, say, sleep
        self._mirror, self._token = "" if job is None else job.mirror, secrets.token_hex(16)
        self.is_over = not self._mirror

    def start(self) -> None:
        """Have rank 0 look, and the others once all of them have joined; returns at once."""
        if not self.is_over:
            start_thread(FailureKind.PREFLIGHT, self._run, self._state)

    def _run(self) -> None:
        assert self._job is not None  # noqa: S101  it has a mirror
        if not has_begun(self._job, self._journal.read()):
            self._look()
        self.is_over = True

    def _look(self) -> None:
        """Raises: NodeFailed: a node cannot use it, which is no outage."""
        own = self._look_on_rank_0()
        if own.error:
            return
        while len(self._state.reports()) < self._nodes:  # the barrier ends the wait for ranks that never join
            if self._state.failure is not None:
                return
            self._sleep(_LOOK_FOR_RANKS_S)
        others = [report for report in self._state.reports() if report.rank]
        checks = dict(side_by_side(self._ask, others))
        silent = {rank: check for rank, check in checks.items() if check.may_pass}
        if silent:
            ranks, error = ranks_text(silent), next(iter(silent.values())).error
            self._say(f"warning: whether {ranks} can use the mirror {self._mirror} is not known: {error}")
        self._judge({0: own, **{rank: check for rank, check in checks.items() if not check.may_pass}})
        if own.warning:
            self._say(f"warning: {own.warning}")

    def _look_on_rank_0(self) -> MirrorCheck:
        """Look until the mirror answers; a cluster that was waited for is not given up for an outage."""
        look = partial(self._copier.check, self._mirror, self._token, writes=True)
        while (own := self._answer(look)).may_pass and self._state.failure is None:
            if not self.is_over:
                silent = f"warning: the mirror {self._mirror} does not answer: {own.error}"
                self._say(f"{silent}; the start goes on, and the job waits for it")
                self.is_over = True
            self._sleep(_LOOK_AGAIN_S)
        self._judge({0: own})
        return own

    def _ask(self, report: NodeReport) -> Tuple[int, MirrorCheck]:
        agent, rank = self._agent(report), report.rank
        ask = lambda: retry(lambda: job_calls.check_mirror(agent, rank, self._mirror, self._token), _SILENT)  # noqa: E731
        try:
            return rank, self._answer(ask)
        except ConnectionFailed as error:  # that a node is lost has a failure of its own
            return rank, MirrorCheck(error.message, may_pass=True)

    def _answer(self, ask: Callable[[], MirrorCheck]) -> MirrorCheck:
        try:
            return call_within(_ANSWER_S, ask, "it")  # a volume may hang
        except OSError as error:
            return MirrorCheck(str(error), may_pass=True)

    def _judge(self, checks: Dict[int, MirrorCheck]) -> None:
        error = refusal(self._mirror, checks)
        if error is None:
            return
        if self.is_over:  # the start has gone on
            self._say(f"warning: {describe(error)}")
            return
        rank = next(rank for rank, check in checks.items() if check.error or not check.is_seen)
        raise NodeFailed(Failure(FailureKind.PREFLIGHT, rank, describe(error), subject="mirror"))


def has_begun(job: DurableJob, records: Iterable[DurableJob]) -> bool:
    """Whether a volume remembers attempts of a job that has not failed since."""
    mine = (record for record in records if record.job_id == job.job_id and record.attempts)
    return any(record.outcome is None or record.outcome.result is not Result.FAILED for record in mine)
