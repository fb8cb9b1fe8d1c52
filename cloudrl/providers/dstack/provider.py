"""Provider `dstack`: clusters are runs on the user's dstack server."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, final

from cloudrl.errors import CloudrlError, ClusterFailed, ConnectionFailed, InputError, Interrupted
from cloudrl.protocol.backoff import Backoff, retry
from cloudrl.protocol.progress import Notice
from cloudrl.providers.dstack import access, diagnostics, runs
from cloudrl.providers.dstack.access import open_access
from cloudrl.providers.dstack.machines import DstackFleets
from cloudrl.providers.dstack.plan import DstackPlan, make_plan
from cloudrl.providers.dstack.runs import RunState
from cloudrl.providers.dstack.server import Server, connect, is_configured, wait_for
from cloudrl.providers.dstack.watcher import RunWatcher, summary
from cloudrl.providers.model import UP_TIMEOUT_S, WATCH_S, Plan, Provider, Status
from cloudrl.spec import Cluster
from cloudrl.transport import Connection, ssh
from cloudrl.units import dollars_text, duration_text

_POLL_S = 1.0
_SERVER_BACK_S = 120.0
_UNREACHABLE_S = 600.0
"""From `running` until there is a way in; the agent listens within seconds of the container's start."""
_APPEARS_S = 3.0
"""A run that was asked for, and whose request got no answer, is there by then if it was started."""


@final
class DstackProvider(Provider):
    """The verbs, on the default project of the server that is configured."""

    name = "dstack"
    default_cluster = "ray-cluster"
    nodes_are_here = False
    has_gpus = True
    state_pattern = "dstack/*/*/"

    def is_configured(self) -> bool:
        """See `Provider`."""
        return is_configured()

    def plan(self, cluster: Cluster) -> DstackPlan:
        """See `Provider`."""
        return make_plan(cluster)

    def up(
        self,
        plan: Plan,
        *,
        on_status: Callable[[Status], None] | None = None,
        timeout_s: float = UP_TIMEOUT_S,
        detach: bool = True,
    ) -> Connection:
        """Apply the task and return once the cluster is READY.

        Raises:
            InputError: a run of this name is going on, or `detach` is False, which dstack has no way for.
            CapacityError: no machines.
            ClusterFailed: it ended before it was ready; the message has the reason, dstack's or the agent's.
            CloudrlError: something else; the message says whether a run that was submitted goes on, and its price.
            Interrupted: Ctrl-C. A run that was submitted goes on, and so does its price, which the message has.
        """
        if not isinstance(plan, DstackPlan):
            raise TypeError(f"a plan of another provider: {plan!r}")
        if not detach:
            raise InputError(
                "detach=False: a cluster on dstack outlives this program, whatever happens to it",
                hint='End it with the block: with cluster.up(on="dstack") as ray: ...\n'
                "Or by itself: Cluster(down_when_idle=..., max_cost=...)",
            )
        ssh.ensure_installed()  # before anything that cannot be reached is paid for
        try:
            priced = plan.priced() if plan.server is None else plan
            server = priced.server or connect()
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted; nothing was started") from error
        try:  # from here on there may be a run that costs money, and every error says so
            await_ready(server, runs.apply(server, priced.name, priced.answer), on_status, timeout_s)
            return self.attach(priced.name, keep_open=True)
        except KeyboardInterrupt as error:
            raise with_run_state(server, priced, Interrupted("interrupted")) from error
        except CloudrlError as error:
            raise with_run_state(server, priced, error) from error

    def attach(self, name: str, *, keep_open: bool = False) -> Connection:
        """Connect to a running cluster, also one that `dstack apply` has started.

        Raises:
            InputError: there is no run of that name, or it is over.
            ConnectionFailed: its head cannot be reached.
        """
        server = connect()
        run = runs.get(server, name)
        if run.is_over:
            raise InputError(
                f"run {name!r} is over: {run.status} {run.reason}".rstrip(), hint=f"cloudrl up {name} --on {self.name}"
            )
        if keep_open:
            access.keep_tunnel(server, run)
        return open_access(server, run).connection

    def detach(self, name: str) -> bool:
        """See `Provider`."""
        return access.close_tunnel(connect(), name)

    def status(self, name: str) -> Status:
        """See `Provider`."""
        with closing(self.watch(name)) as statuses:
            return next(statuses)

    def watch(self, name: str) -> Generator[Status, None, None]:
        """See `Provider`."""
        server = connect()
        with closing(RunWatcher(server)) as watcher:
            while True:
                status = watcher.status(runs.get(server, name))
                yield status
                if status.is_over:
                    return
                time.sleep(WATCH_S)

    def idle_costs(self) -> Sequence[Notice]:
        """See `Provider`: idle machines of fleets."""
        paid = (fleet.goes_on_costing(fleet.unused) for fleet in DstackFleets(connect()).list())
        return [notice for notice in paid if notice is not None]

    def down(self, name: str) -> bool:
        """End the run and the tunnel to it; False when nothing was running. Fleets stay.

        Raises:
            InputError: there is no run of that name.
        """
        server = connect()
        try:
            run = runs.get(server, name)
            if run.is_over:
                return False
            runs.end(server, name)  # first: it is what costs money
            return True
        finally:
            access.close_tunnel(server, name)

    def list(self, name: str | None = None) -> tuple[Status, ...]:
        """Runs of the present user that are going on and that run the node agent, or the one of a name.

        A project has several users: what was not named must not be another user's.
        """
        server = connect()
        user = runs.present_user(server)
        if name is None:
            ours = [run for run in runs.list_active(server, user) if run.agent_options is not None]
        else:
            ours = [run for run in (runs.find(server, name),) if run is not None]
        return tuple(summary(server, run, user) for run in ours)


def await_ready(server: Server, run: RunState, on_status: Callable[[Status], None] | None, timeout_s: float) -> None:
    """Watch a run that was started until it is READY."""
    deadline = time.monotonic() + timeout_s
    judged: list[str] = []
    with closing(RunWatcher(server, give_up_s=_UNREACHABLE_S)) as watcher:
        while True:
            run = _get_patiently(server, run.name)
            ends = [attempt.code for node in run.nodes for attempt in node.attempts]
            # asks for their logs: once for each new end
            hopeless = diagnostics.unrecoverable_error(server, run) if ends != judged else None
            judged = ends
            if hopeless is not None and not run.is_over:
                runs.end(server, run.name)
                raise hopeless
            status = watcher.status(run)
            if run.is_over:
                raise ClusterFailed(
                    f"cluster {run.name!r} ended before it was ready: {status.reason or run.reason or run.status}",
                    hint=status.logs_command,
                )
            if on_status is not None:
                on_status(status)
            if status.is_ready:
                return
            if time.monotonic() > deadline:
                raise ClusterFailed(
                    f"cluster {run.name!r} is not ready after {duration_text(timeout_s)}: {status.phase}"
                )
            time.sleep(_POLL_S)


def with_run_state(server: Server, plan: DstackPlan, error: CloudrlError, **timing: Any) -> CloudrlError:
    """An error after a plan was sent, with whether the cluster goes on without whoever asked for it.

    Args:
        server: where.
        plan: what was sent.
        error: what went wrong after that.
        timing: clock and sleep of `wait_for`.
    """
    before = plan.current.id if plan.current is not None else None
    # a request that was cut off may still start it
    appears_within_s = _APPEARS_S if isinstance(error, ConnectionFailed | Interrupted) else 0.0

    def poll() -> RunState | None:
        run = runs.find(server, plan.name)
        return None if run is None or run.id == before or run.is_over else run

    try:
        run = wait_for(poll, timeout_s=appears_within_s, every_s=0.5, **timing)
    except CloudrlError as unseen:
        state = f"cannot tell whether cluster {plan.name} keeps running: {unseen.message}"
        command = f"cloudrl status {plan.name}"
    else:
        if run is None:
            return Interrupted("interrupted; nothing was started") if isinstance(error, Interrupted) else error
        price = run.price or (plan.price.per_hour if plan.price is not None else None)
        cost = f" and costs about {dollars_text(price)}/h" if price else ""
        state = f"cluster {plan.name} keeps running ({run.status}){cost}"
        command = f"cloudrl status {plan.name} --watch"
    hints = [*(error.hint or "").splitlines(), f"Look: {command}", f"End it: cloudrl down {plan.name}"]
    return type(error)(f"{error.message}; {state}", hint="\n".join(hints))


def _get_patiently(server: Server, name: str) -> RunState:
    """A look at the run; the server may be restarting, which changes nothing for the machines."""
    try:
        return retry(lambda: runs.get(server, name), Backoff(_POLL_S, _POLL_S, _SERVER_BACK_S))
    except ConnectionFailed as error:
        hint = f"The run continues. When the server is back: cloudrl status {name}"
        raise type(error)(error.message, hint=hint) from error
