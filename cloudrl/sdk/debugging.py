"""Tasks that wait for a debugger, and sessions with them, through the agents of their cluster."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from cloudrl.debug.console import Console
from cloudrl.debug.dap import DapClient
from cloudrl.debug.pdb_session import PdbSession
from cloudrl.debug.session import End, Session
from cloudrl.errors import CloudrlError, ConnectionFailed, InputError, Interrupted, Unauthorized
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.progress import Notice
from cloudrl.protocol.ranks import first_few, ranks_text
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.side_by_side import side_by_side
from cloudrl.protocol.stops import PDB, Stop
from cloudrl.providers.model import Status
from cloudrl.sdk.callbacks import OnProgress, silent
from cloudrl.sdk.find import find
from cloudrl.transport.connection import Connection
from cloudrl.transport.ray_client import RayClient
from cloudrl.units import dollars_text, duration_text

_POLL_S = 1.0
_WARN_S = 120.0


class PausedTasks:
    """The tasks of a cluster that wait for a debugger.

    Args:
        name: the cluster's, as commands take it; see `cloudrl.sdk.choose` for None.
        sleep: waits so many seconds between two looks for the next task.
        on_progress: receives which of several clusters it is.

    Attributes:
        ref: its name that is no other cluster's, such as `dstack/lab`.

    Raises:
        InputError: there is no such cluster, or no agent in it.
        ConnectionFailed: no answer.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        on_progress: OnProgress = silent,
    ) -> None:
        self._sleep = sleep
        cluster = find(name, otherwise="", on_progress=on_progress)
        self._connection: Connection = cluster.connection
        self.ref = f"{cluster.provider}/{cluster.name}" if cluster.provider else cluster.name
        agent = self._connection.agent()
        if agent is None:
            raise InputError(
                f"{self.cluster} is a plain Ray cluster: no agent leads to its debuggers", hint="ray debug"
            )
        self._agent: AgentClient = agent

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self._connection.name

    def stops(self, on_progress: OnProgress = silent) -> tuple[Stop, ...]:
        """All of them, by job and rank; `on_progress` gets the nodes that do not answer."""
        return ask_nodes(self._agent, self._nodes(), on_progress)

    def choose(self, number: int, on_progress: OnProgress = silent) -> Stop:
        """One by its number in that list, from 1.

        Raises:
            InputError: the number is unknown.
        """
        stops = self.stops(on_progress)
        if not 1 <= number <= len(stops):
            there = f"there are {len(stops)}" if len(stops) > 1 else "there is one" if stops else "nothing is paused"
            raise InputError(f"no paused task {number}: {there}", hint=f"List them: cloudrl debug -c {self.ref}")
        return stops[number - 1]

    def after(self, stop: Stop, *, also_own: bool = False) -> Stop | None:
        """The next one without a debugger, in the order of the list; of all others where it is the last.

        Args:
            stop: that was looked at.
            also_own: whether it may be of the same process, which is listed a moment longer when it has been let go.
        """
        others = [
            other for other in self.stops() if not other.attached and (also_own or _process(other) != _process(stop))
        ]
        return next((other for other in others if _order(other) > _order(stop)), others[0] if others else None)

    def dial(self, stop: Stop) -> socket.socket:
        """A connection to the debugger of a stop, through the agents; the caller closes it."""
        return self._agent.relay(stop.node, stop.port)

    def ray(self) -> RayClient:
        """Ray's dashboard."""
        return self._connection.ray()

    def addresses(self) -> dict[int, str]:
        """The nodes' addresses by rank."""
        return {node.rank: node.ip for node in self._nodes()}

    def debug(self, stop: Stop, console: Console, folder: Path | None = None) -> tuple[Stop, ...]:
        """A session with a task, and with the next ones that the user goes on to; returns all of them.

        Args:
            stop: the task.
            console: who types.
            folder: where the job was submitted from; its files stand in for sources that cannot be had.

        Raises:
            InputError: it waits no more, or somebody else debugs it.
            ConnectionFailed: the connection was lost; the message says what became of the task.
            Interrupted: Ctrl-C while waiting for the next one.
        """
        had = [stop]
        console.note(f"{describe(stop)}; h for help")
        while self._hold(had[-1], console, folder) is End.NEXT:
            had.append(self._wait_for_another(had[-1], console))
            console.note(f"{describe(had[-1])}; h for help")
        return tuple(had)

    def others(self, had: Iterable[Stop]) -> tuple[Stop, ...]:
        """Stops without a debugger, of other processes than these: one that was let go is listed a moment longer."""
        processes = {_process(stop) for stop in had}
        return tuple(stop for stop in self.stops() if not stop.attached and _process(stop) not in processes)

    def _hold(self, stop: Stop, console: Console, folder: Path | None) -> End:
        if stop.attached:
            raise InputError(f"{describe(stop)}: somebody debugs it already", hint=self._list_again())
        connection = self.dial(stop)
        session: Session | PdbSession
        if stop.debugger == PDB:
            session = PdbSession(connection, stop, console)
        else:
            client = DapClient(connection, open_another=partial(self.dial, stop))
            session = Session(client, stop, console, others=_News(self, stop), folder=folder)
        end = session.run()
        if end is End.LOST:
            raise self._lost(stop, session.lost)
        return end

    def _wait_for_another(self, stop: Stop, console: Console) -> Stop:
        later = self.after(stop)
        try:
            if later is None:
                console.note("nothing else is paused; waiting for the next stop, Ctrl-C ends it")
            while later is None:
                self._sleep(_POLL_S)
                later = self.after(stop, also_own=True)
        except KeyboardInterrupt:
            raise Interrupted("no longer waiting; the job goes on", hint=self._list_again()) from None
        return later

    def _lost(self, stop: Stop, why: str) -> ConnectionFailed:
        """In one line: what has become of the task."""
        try:
            waiting = any(_process(other) == _process(stop) and not other.attached for other in self.stops())
        except CloudrlError:
            return ConnectionFailed(
                f"{why}, and cluster {self.cluster} does not answer: where it still runs, the task goes on by itself",
                hint=f"cloudrl status {self.ref}",
            )
        if waiting:
            return ConnectionFailed(f"{why}; the task still waits for a debugger", hint=self._list_again())
        return ConnectionFailed(f"{why}; the task went on by itself, or its process has ended", hint=self._list_again())

    def _list_again(self) -> str:
        return f"cloudrl debug -c {self.ref}"

    def _nodes(self) -> Sequence[NodeReport]:
        return self._agent.status().nodes


class _News:
    """Which other tasks have stopped since it was asked last; nothing if the cluster does not answer."""

    def __init__(self, tasks: PausedTasks, mine: Stop) -> None:
        self._tasks, self._mine = tasks, mine
        self._told: set[tuple[int, str]] = set()

    def __call__(self) -> Sequence[str]:
        try:
            stops = self._tasks.stops()
        except CloudrlError:
            return ()
        others = [stop for stop in stops if _process(stop) != _process(self._mine) and not stop.attached]
        new = [other for other in others if (other.node, other.id) not in self._told]
        self._told |= {(stop.node, stop.id) for stop in new}
        return [describe(stop) for stop in new]


def describe(stop: Stop) -> str:
    """For example `WorkerDict rank 1 on node 0, in update_actor (dp_actor.py:412): breakpoint`."""
    rank = f" rank {stop.rank}" if stop.rank is not None else ""
    place = f"{Path(stop.file).name}:{stop.line}"
    return f"{stop.actor or f'process {stop.pid}'}{rank} on node {stop.node}, in {stop.method} ({place}): {stop.reason}"


def ask_nodes(agent: AgentClient, nodes: Iterable[NodeReport], on_progress: OnProgress = silent) -> tuple[Stop, ...]:
    """The stops of all nodes, by job and rank; `on_progress` gets the nodes that do not answer.

    Raises:
        InputError: the agents are of a release that knows no debuggers.
        Unauthorized: the token is refused.
        ConnectionFailed: none of them answers.
    """

    def ask(rank: int) -> tuple[Stop, ...] | ConnectionFailed:
        try:
            return agent.stops(rank)
        except Unauthorized:
            raise
        except ConnectionFailed as failure:
            return failure

    ranks = [node.rank for node in nodes]
    answers = list(zip(ranks, side_by_side(ask, ranks), strict=True))
    failures = [(rank, answer) for rank, answer in answers if isinstance(answer, ConnectionFailed)]
    if failures and len(failures) == len(ranks):
        raise failures[0][1]
    silent = dict(failures)
    few, several = first_few(silent)
    for rank in few:
        on_progress(Notice(f"rank {rank} does not say what waits there: {silent[rank].message}"))
    if several:
        on_progress(Notice(f"{ranks_text(several)} do not say what waits there either"))
    return tuple(sorted((stop for _, answer in answers if isinstance(answer, tuple) for stop in answer), key=_order))


def waiting(cluster: Status, *, now: Callable[[], float] = time.time) -> Notice | None:
    """What has waited for a debugger for minutes, which costs as much as work; None where nothing does.

    No question is asked where only a new tunnel would lead to the cluster.
    """
    if not cluster.is_ready or cluster.dashboard_url is None:
        return None
    try:
        agent = find(f"{cluster.ref}").connection.agent(timeout_s=5)
        stops = ask_nodes(agent, cluster.nodes) if agent is not None else ()
    except CloudrlError:
        return None
    since = min((stop.since for stop in stops if not stop.attached), default=now())
    if now() - since < _WARN_S:
        return None
    first = next(stop for stop in stops if stop.since == since)
    price = f", and the cluster costs {dollars_text(cluster.price_per_hour)}/h" if cluster.price_per_hour else ""
    return Notice(
        f"a task has waited for a debugger for {duration_text(now() - since)} ({describe(first)}){price}",
        f"cloudrl debug -c {cluster.ref}",
    )


def _process(stop: Stop) -> tuple[int, int]:
    """Stops of one process differ at every step that is made in it."""
    return stop.node, stop.pid


def _order(stop: Stop) -> tuple[object, ...]:
    rank = stop.rank if stop.rank is not None else -1
    return stop.job, rank, stop.node, stop.pid, stop.id
