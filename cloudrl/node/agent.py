"""The phases of one node, one after the other: set-up, preflight, Ray and fetch side by side, barrier, serve."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Callable, ContextManager, Iterator, List, Mapping, Optional

from cloudrl.child_process import Child, end_orphans, reap_orphans, self_command
from cloudrl.node import guard, preflight
from cloudrl.node import ray as ray_node
from cloudrl.node.attempts import Attempts
from cloudrl.node.background import start_thread
from cloudrl.node.checkpoint_store import CheckpointStore
from cloudrl.node.compute_watch import ComputeWatch
from cloudrl.node.cost_record import CostRecord
from cloudrl.node.environment import make_temp_folder, node_environment, with_own_python
from cloudrl.node.facts import cluster_facts
from cloudrl.node.failure import NodeFailed, error_code
from cloudrl.node.fetch import Fetcher
from cloudrl.node.host_info import HostInfo, probe_host
from cloudrl.node.identity import Identity
from cloudrl.node.job_looks import JobLooks
from cloudrl.node.job_secrets import JobSecrets, folder_of
from cloudrl.node.log import Log
from cloudrl.node.machine_watches import watch_machine
from cloudrl.node.masking import node_secrets
from cloudrl.node.mirror_copier import MirrorCopier
from cloudrl.node.node_state import NodeState
from cloudrl.node.replication import ReplicationHub
from cloudrl.node.services import Services, service_variables
from cloudrl.node.shard_worker_client import ShardWorkerClient
from cloudrl.node.shutdown import ShutdownRequest
from cloudrl.node.step_copier import StepCopier
from cloudrl.node.stops import Stops, ready
from cloudrl.node.timeouts import PhaseTimeouts
from cloudrl.node.tokens import write_tokens
from cloudrl.node.uploads import Store
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.folders import USER_FILES
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.progress import Fetching
from cloudrl.protocol.report import ClusterStatus, NodeReport, NodeWarning
from cloudrl.protocol.tokens import Tokens
from cloudrl.saves.names import OURS

_TICK_S = 0.05
_RAY_START_TRIES = 3
_RAY_GRACE_S = 1.0  # on SIGTERM Ray 2.60 drains its node for up to 30 s (measured), and here all nodes end
_GRACE_S = 5.0
_PORTS_ARE_FREE_AFTER_S = 3.0


class Agent:
    """Everything that the two kinds of node, head and worker, do alike; `Head` and `Worker` add their part.

    The main thread walks the phases and starts the long-lived children; other threads only fetch, beat and
    serve. They meet on the `NodeState`, and a failure noted there by anybody leaves the phases at the next tick.
    """

    def __init__(
        self, options: AgentOptions, identity: Identity, tokens: Tokens, env: Mapping[str, str], log: Log
    ) -> None:
        self.options, self.identity, self.tokens, self.log = options, identity, tokens, log
        self.gpus = options.gpus if options.gpus is not None else identity.gpus_per_node or 0
        self.env: Mapping[str, str] = {**with_own_python(env), guard.VARIABLE: guard.new_agent_id()}
        self.timeouts = PhaseTimeouts(options)
        self.shutdown = ShutdownRequest()
        self.serving = self.was_ready = False
        self.started_at, self.started_clock = time.time(), time.monotonic()
        self.attempts = Attempts(options.checkpoints, identity.run_id, rank=identity.rank, attempt=tokens.attempt_id)
        self.cost_record = CostRecord(self.attempts, self.cost, self.cost_before, log.line)
        self._children: List[Child] = []
        self._ray: Optional[Child] = None
        self.state = NodeState(
            NodeReport(
                rank=identity.rank, ip=identity.ip, hostname=socket.gethostname(), agent_port=options.ports.agent,
                gpus=self.gpus, cost_before=self.attempts.read_cost(),
                known_failures=self.attempts.known(),
            )
        )  # fmt: skip
        self.stops = Stops(options.run_dir, identity.rank)
        self.compute = ComputeWatch(options, identity, self.state, gpus=self.gpus)
        self._services = Services(options.services, self.state, self.wait_for, log.line)
        stores = Store(options.checkpoints / OURS / USER_FILES), JobSecrets(folder_of(identity.run_id))
        self.replication = ReplicationHub(self.state, identity.nodes, *stores)
        secrets = lambda: node_secrets(self.tokens, self.env, self.replication.secrets.values())  # noqa: E731
        self.job_looks = JobLooks(options.run_dir, identity, self.stops, secrets)
        self.mirror_copier = MirrorCopier(options.checkpoints, self.env, log=options.run_dir / "mirror.log")
        nodes, mirror = lambda at: AgentClient(f"http://{at}", tokens.agent), self.mirror_copier.store
        self.step_copier = StepCopier(options.checkpoints, nodes, mirror=mirror)
        self.checkpoint_store = CheckpointStore(
            options.checkpoints, options.ray_temp_dir or ray_node.TEMP_DIR, run_id=identity.run_id,
            rank=identity.rank, child=ShardWorkerClient(self._shard_child), say=log.line,
        )  # fmt: skip

    # -- what the two kinds fill in -------------------------------------------------------------------------

    def connect(self) -> None:
        """Meet the other side, once this node's versions are known."""
        raise NotImplementedError

    def before_ray(self) -> None:
        """Return once `ray start` has a chance: on the head at once."""

    def is_head_up(self) -> bool:
        """Whether Ray on the head is up, so that a worker can join it; of no account on the head."""
        return True

    def is_ray_up(self, ray: Child) -> bool:
        """Whether this node's Ray is up; asked again and again."""
        raise NotImplementedError

    def fetch(self, fetcher: Fetcher) -> None:
        """Have data, models and artifacts; runs in its own thread, and raises when they are not to be had."""
        raise NotImplementedError

    def barrier(self) -> None:
        """Return once the whole cluster is ready."""
        raise NotImplementedError

    def supervise(self) -> None:
        """One look at the other side; raises when it is lost."""
        raise NotImplementedError

    def agree_on_outcome(self, failure: Failure) -> Failure:
        """Agree with the other nodes on how the cluster ends: first cause, and whether it is final."""
        raise NotImplementedError

    def cost_before(self) -> float:
        """US dollars that earlier attempts of the run have cost, as far as anybody remembers."""
        raise NotImplementedError

    def status(self) -> ClusterStatus:
        """The answer to a client. A worker knows itself only; rank 0 knows everybody."""
        state, own, failure = self.state, self.state.own, self.state.failure
        after = Phase.ENDED if failure and failure.kind is FailureKind.DOWN else Phase.FAILED
        nodes = (
            dataclasses.replace(
                report,
                seen_s_ago=round(state.heartbeat_age_s(report.rank), 1),
                phase_s=round(state.phase_s(report.rank), 1),
            )
            for report in state.reports()
        )
        return ClusterStatus(
            facts=cluster_facts(
                self.options, self.identity, state, self.replication, env=self.env, ray_session=self.session_name()
            ),
            phase=after if failure else own.phase,
            detail=own.detail,
            started_at=self.started_at,
            failure=failure,
            nodes=tuple(nodes),
        )

    def transfer(self) -> ContextManager[None]:
        """For as long as a client sends or fetches something: rank 0 is not idle meanwhile."""
        return nullcontext()

    def session_name(self) -> Optional[str]:
        """Of Ray's folder, the same on all nodes; None while Ray is not up."""
        raise NotImplementedError

    def ray_logs(self) -> Optional[Path]:
        """Where Ray keeps its logs and those of jobs' drivers (_private/node.py); None without a session."""
        root, name = self.options.ray_temp_dir or ray_node.TEMP_DIR, self.session_name()
        return root / name / "logs" if name else None

    # -- the phases -----------------------------------------------------------------------------------------

    def run_phases(self) -> None:
        """All phases. Returns never: a signal, a lost node or a failure ends it.

        Raises:
            NodeFailed: this node or, as all nodes learn, another one has failed.
            Shutdown: a signal, or the loss of the starter.
        """
        watch_machine(self.state, self.options, self.gpus, self.env, self.log.line)
        self._set_up()
        self._preflight()
        with self._as_preflight_failure("checkpoints", "the folder of checkpoints"):
            self.checkpoint_store.start()
        self._services.start(self._child)
        with self._as_preflight_failure("compute", "the check of the GPUs"):
            self.compute.start(self._child, self_command, self.env, self.log.line)
        self.connect()
        self._ray_and_fetch()
        with self._step(Phase.BARRIER):
            self.barrier()
        try:
            self.attempts.clear()  # the failures before this start do not repeat
        except OSError as error:
            self.log.line(f"warning: the record of earlier attempts cannot be removed: {error}")
        self.state.update(phase=Phase.READY, detail="")
        self.was_ready = True
        while True:
            self.tick(0.25)

    def tick(self, seconds: float = _TICK_S) -> None:
        """Wait a moment; leave when anybody failed or is lost, or the end was asked for."""
        self.state.raise_failure()
        self.shutdown.pause(seconds)
        reap_orphans()
        self._check_ray()
        self.compute.look()
        self._services.check()
        self.supervise()
        self.cost_record.renew()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float, pause_s: float = _TICK_S) -> bool:
        """Poll a condition; False when it has not come true within `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            self.tick(pause_s)
        return True

    def failed(self, kind: FailureKind, reason: str, tail: str = "", *, subject: str, code: str = "") -> NodeFailed:
        """A failure of this node, to be raised."""
        return NodeFailed(Failure(kind, self.identity.rank, reason, tail, subject=subject, code=code))

    def warn(self, *warnings: NodeWarning) -> None:
        """Write warnings to this node's log, and put them into its report, which clients show."""
        for warning in warnings:
            self.log.line(f"{warning}")
        self.state.update(warnings=(*self.state.own.warnings, *warnings))

    def stay_while(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Wait for other nodes after a failure; a signal ends it."""
        deadline = time.monotonic() + limit_s
        while condition() and time.monotonic() < deadline and not self.shutdown.asked:
            time.sleep(_TICK_S)

    def end_children(self) -> None:
        """End Ray and everything else that was started here, by process id."""
        for child in reversed(self._children):
            child.end(_RAY_GRACE_S if child is self._ray else _GRACE_S)

    @contextmanager
    def _step(self, phase: Phase) -> Iterator[None]:
        self.state.update(phase=phase, detail="")
        began = time.monotonic()
        yield
        self.state.add("seconds", phase.value, round(time.monotonic() - began, 3))

    @contextmanager
    def _as_preflight_failure(self, subject: str, what: str) -> Iterator[None]:
        """A full disk, a missing program, no more processes: these come back, so they count as preflight's."""
        try:
            yield
        except (OSError, subprocess.SubprocessError) as error:
            code = error_code(error)
            raise self.failed(FailureKind.PREFLIGHT, f"{what}: {error}", subject=subject, code=code) from error

    def _child(self, command: List[str], log: str, cwd: Optional[Path] = None, **more_env: str) -> Child:
        with self._as_preflight_failure(Path(command[0]).name, f"`{command[0]}` cannot be started"):
            child = Child(command, log=self.options.run_dir / log, env={**self.env, **more_env}, cwd=cwd)
        self._children.append(child)
        return child

    def _shard_child(self, descriptor: int) -> Child:
        """Asked for in whatever thread needs it first, so it is bound to its descriptor instead."""
        command = self_command("shards", f"--fd={descriptor}")
        log = self.options.run_dir / "shards.log"
        return Child(command, log=log, env=self.env, pass_fds=(descriptor,), bound=False)

    def _set_up(self) -> None:
        deadline = time.monotonic() + self.options.setup_timeout_s
        with self._step(Phase.SETUP):
            for command in self.options.setup:
                self.state.update(detail=command)
                self.log.line(f"set-up: {command}")
                self._run_set_up(command, deadline - time.monotonic())

    def _run_set_up(self, command: str, timeout_s: float) -> None:
        child = self._child(["/bin/sh", "-c", command], "setup.log")
        if not self.wait_for(lambda: child.poll() is not None, timeout_s):
            limit_s = self.options.setup_timeout_s
            reason = f"`{command}` has not finished; all set-up commands together may take {limit_s:g} s"
            raise self.failed(FailureKind.SETUP, reason, child.tail(), subject=command, code="timeout")
        if child.poll() != 0:
            reason = f"`{command}` exited with {child.poll()}"
            raise self.failed(FailureKind.SETUP, reason, child.tail(), subject=command)

    def _preflight(self) -> None:
        with self._step(Phase.PREFLIGHT):
            host = self._check_host()
            with self._as_preflight_failure("own folders", "this node's own folders"):
                token = write_tokens(self.tokens, self.options.run_dir)
                temp_dir = make_temp_folder(self.options.ray_temp_dir)
            folders = {"temp_dir": temp_dir, "checkpoints": self.options.checkpoints}
            env = node_environment(self.env, host, token_path=token, device=self.options.device, **folders)
            for_ray = self.job_looks.start(self.env, self.state.update, self.log.line)
            for_debuggers = ready(self.stops, {**self.env, **for_ray}, tell=self.state.update, warn=self.log.line)
            self.env = {**env, **service_variables(self.options), **for_debuggers}

    def _check_host(self) -> HostInfo:
        options = self.options
        with self._as_preflight_failure("machine", "this machine cannot be inspected"):
            host = probe_host(self.identity.ip, options.ray_temp_dir or ray_node.TEMP_DIR, self.env)
        self.state.update(**{**host.reported, "cpus": options.cpus or host.cpus})
        faults, warnings = preflight.check_node(host, self.env, options, gpus=self.gpus, nodes=self.identity.nodes)
        self.warn(*warnings)
        if faults:
            fault = preflight.Fault.joined(faults)
            raise self.failed(FailureKind.PREFLIGHT, fault.text, subject=fault.subject, code=fault.code)
        return host

    def _ray_and_fetch(self) -> None:
        with self._step(Phase.RAY):
            fetching = start_thread(FailureKind.DATA, self._fetch_in_thread, self.state)
            self._start_ray()
        with self._step(Phase.FETCH):
            if not self.wait_for(lambda: not fetching.is_alive(), self.timeouts.fetch_s):
                detail = f" ({self.state.own.detail})" if self.state.own.detail else ""
                reason = f"data, models and artifacts are not ready after {self.timeouts.fetch_s:g} s{detail}"
                rank = self.identity.rank
                raise NodeFailed(Failure(FailureKind.DATA, rank, reason, transient=True, code="timeout"))
            self.state.raise_failure()
            self.compute.finish(self.wait_for)
            self._services.wait(self.options.fetch_timeout_s)
        self.state.update(fetched=True)

    def _fetch_in_thread(self) -> None:
        began = time.monotonic()
        self.fetch(Fetcher(self.options, self.identity.rank, self.env, on_progress=self._note_fetching))
        self.state.add("seconds", "files", round(time.monotonic() - began, 3))

    def _note_fetching(self, name: str, progress: Optional[Fetching]) -> None:
        """Report how far something is; None once it is there."""
        if progress is not None:
            self.state.add("fetching", name, progress)
        else:
            self.state.keep("fetching", self.state.own.fetching.keys() - {name})

    def _start_ray(self) -> None:
        """Start Ray and wait until it is up; a start that dies early is tried again, ports may be slow to free.

        A try that began before the head was up does not count: the head may start again as well.
        """
        self.before_ray()
        deadline, tries_left = time.monotonic() + self.options.ray_timeout_s, _RAY_START_TRIES
        while tries_left:
            self._await_free_ports()
            could_join = self.is_head_up()
            ray = self._start_ray_once(deadline)
            if ray.poll() is None:
                self._ray = ray
                self.state.update(ray_up=True)
                return
            tries_left -= could_join or time.monotonic() > deadline
            if tries_left:
                self.log.line(f"`ray start` exited with {ray.poll()}; {tries_left} more tries")
                end_orphans()  # its control store outlives a start that fails later on, and keeps the port
                self.tick(1.0)
                self.before_ray()
        reason = f"`ray start` exited with {ray.poll()}"
        raise self.failed(FailureKind.RAY, reason, ray.tail(), subject="ray start")

    def _start_ray_once(self, deadline: float) -> Child:
        """Ray once it is up, or has ended."""
        command = ray_node.start_command(self.options, self.identity, gpus=self.gpus, cpus=self.state.own.cpus)
        # jobs without a working directory start where Ray did, and Hydra leaves its `outputs` there
        ray = self._child(command, "ray.log", self.options.run_dir, **self.job_looks.ray_env)
        if not self.wait_for(lambda: ray.poll() is not None or self.is_ray_up(ray), deadline - time.monotonic()):
            reason = f"Ray is not up {self.options.ray_timeout_s:g} s after `ray start`"
            raise self.failed(FailureKind.RAY, reason, ray.tail(), subject="ray start", code="timeout")
        return ray

    def _await_free_ports(self) -> None:
        taken = partial(ray_node.taken_ports, self.options, self.identity)
        if not self.wait_for(lambda: not taken(), _PORTS_ARE_FREE_AFTER_S, 0.5):
            raise self.failed(FailureKind.RAY, f"ports are in use on this node: {', '.join(taken())}", subject="ports")

    def cost(self) -> Optional[float]:
        """US dollars that the run has cost so far, this attempt from the start of its agents; None without a price."""
        price = self.options.limits.price_per_hour
        hours = (time.monotonic() - self.started_clock) / 3600
        return None if price is None else self.cost_before() + price * hours

    def _check_ray(self) -> None:
        """Raise when this node's Ray has ended."""
        if self._ray is not None and self._ray.poll() is not None:
            reason = f"Ray's processes on rank {self.identity.rank} ended (status {self._ray.poll()})"
            raise self.failed(FailureKind.RAY, reason, self._ray.tail(), subject="ray")
