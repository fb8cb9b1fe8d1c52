"""Every rank but 0: beats to the head, joins its Ray, pulls its data, and ends when the head does."""

import contextlib
import http.client
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Mapping, Optional

from cloudrl.child_process import Child
from cloudrl.data.request import folder_name
from cloudrl.node import ray as ray_node
from cloudrl.node.agent import Agent
from cloudrl.node.background import run_parallel
from cloudrl.node.failure import NodeFailed, error_code
from cloudrl.node.fetch import Fetcher, models_dir, pull
from cloudrl.node.files import has_marker
from cloudrl.node.preflight import different
from cloudrl.node.replication import Replicator
from cloudrl.protocol.client import AgentClient, AgentRefused
from cloudrl.protocol.exchange import is_network_error
from cloudrl.protocol.failures import ApiError, Failure, FailureKind
from cloudrl.protocol.interruptions import loss_text
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import HeartbeatReply, NodeWarning

_BEAT_S = 0.2
_BEAT_WHEN_READY_S = 1.0
_REFUSED_FOR_S = 3.0
_VERDICT_S = 10.0
_PULL_AGAIN_AFTER_S = 5.0  # longer than it takes to see that the head is gone, which then is the reason
_CHECK_PORTS_S = 10.0


class Worker(Agent):
    """The agent of every other rank."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.head_at = f"{self.identity.head_ip}:{self.options.ports.head_agent}"
        self.head = AgentClient(f"http://{self.head_at}", self.tokens.agent)
        self.reply = HeartbeatReply()
        self._heard_at: Optional[float] = None
        self._head_phase = (Phase.READY, 0.0)  # until the head reports
        self._checked_ports_at: Optional[float] = None
        self._refused = False
        self._lost: Optional[Failure] = None
        self._replicator = Replicator(self.replication, self.head)
        threading.Thread(target=self._heartbeat_loop, daemon=True).start()

    def connect(self) -> None:
        """Wait for the head's agent, and compare versions with it."""
        at, head_ready_s = self.head_at, self.timeouts.head_ready_s
        self.state.update(detail=f"waiting for rank 0 at {at}")
        if not self.wait_for(lambda: self._heard_at is not None, self.options.join_timeout_s):
            raise self.failed(FailureKind.JOIN, f"rank 0 does not answer at {at}", subject="rank 0")
        self.state.update(detail="waiting for rank 0 to finish its set-up and preflight")
        if not self.wait_for(lambda: self.reply.ray_version is not None, head_ready_s):
            late = f"rank 0 answers at {at}, and has not finished its set-up and preflight"
            reason = f"{late} in {head_ready_s:g} s"
            raise self.failed(FailureKind.JOIN, reason, subject="rank 0", code="timeout")
        fault = different(self.state.own, self.reply)
        if fault:
            raise self.failed(FailureKind.PREFLIGHT, fault.text, subject=fault.subject)

    def before_ray(self) -> None:
        """Wait for Ray's control store on the head, and name it when only that port is closed."""
        ip, port = self.identity.head_ip, self.options.ports.gcs
        self.state.update(detail=f"waiting for Ray at {ip}:{port}")
        if not self.wait_for(lambda: ray_node.probe(ip, port, 1.0) == "open", self.timeouts.gcs_s):
            closed = f"{ip}:{port} (Ray's control store) cannot be reached"
            answers = f"though {self.options.ports.head_agent} answers"
            reason = f"{closed}, {answers}: is a firewall between the nodes?"
            raise self.failed(FailureKind.JOIN, reason, subject="control store")

    def is_head_up(self) -> bool:
        """Up when the head says so; its control store answers earlier."""
        return self.session_name() is not None

    def is_ray_up(self, ray: Child) -> bool:
        """Up when `ray start` says that this node belongs to the cluster."""
        return ray_node.has_started(ray)

    def fetch(self, fetcher: Fetcher) -> None:
        """Pull the prepared data unless the folder is the head's own; have models and artifacts."""
        works = {
            FailureKind.DATA: self._have_data,
            FailureKind.MODEL: lambda: self._fetch_models(fetcher),
            FailureKind.ARTIFACT: lambda: self._make_artifacts(fetcher),
        }
        run_parallel(works, self.state)

    def barrier(self) -> None:
        """Wait for the head's word."""
        self.state.update(detail="waiting for the others")
        barrier_s = self.timeouts.phases[Phase.BARRIER]
        if not self.wait_for(self._is_ready, barrier_s):
            reason = f"rank 0 has not said that the cluster is ready after {barrier_s:g} s"
            raise self.failed(FailureKind.JOIN, reason, subject="barrier")
        if self.state.own.blocked:  # seen when Ray may have been starting there still
            self._check_ports()
        for port in self.state.own.blocked:
            self.warn(NodeWarning(f"{port} on rank 0 cannot be reached from here", "open it between the nodes"))

    def supervise(self) -> None:
        """End when the head beats and does nothing else; its loss is noted in the state by the beating thread."""
        phase, since = self._head_phase
        hang = "" if self.reply.ready else self.timeouts.hang(phase, time.monotonic() - since)
        if hang:
            reason = f"rank 0 ({self.identity.head_ip}) {hang}"
            raise NodeFailed(Failure(FailureKind.JOIN, 0, reason, subject=f"phase {phase}"))

    def session_name(self) -> Optional[str]:
        """See `Agent`; rank 0 has said it."""
        return self.reply.session_name

    def cost_before(self) -> float:
        """What rank 0 knows, which has asked everybody."""
        return max(self.state.own.cost_before, self.reply.cost_before)

    def agree_on_outcome(self, failure: Failure) -> Failure:
        """Report it to the head and take its word; alone, judge by this node's own volume."""
        self.state.update(phase=Phase.FAILED, failure=failure)
        self.stay_while(lambda: not (self.reply.failure or self._refused or self._lost), _VERDICT_S)
        verdict = self.reply.failure
        if verdict is not None:
            if not self.reply.ready:
                # the head of the next attempt may have a volume that has seen nothing
                with contextlib.suppress(OSError):
                    self.attempts.record(verdict)
            return verdict
        if self._lost is not None and failure.kind is FailureKind.RAY:
            return self._lost  # Ray ended here because its head did
        if self.reply.ready:
            return failure
        return self.attempts.classify(failure, since=self.started_at)

    def _is_ready(self) -> bool:
        """The head's word; meanwhile, whether Ray can talk to the head's node, which Ray itself would not say."""
        ready, now = self.reply.ready, time.monotonic()
        if not ready and (self._checked_ports_at is None or now - self._checked_ports_at > _CHECK_PORTS_S):
            self._checked_ports_at = now
            self._check_ports()
        return ready

    def _check_ports(self) -> None:
        self.state.update(blocked=ray_node.unreachable_ports(self.identity.head_ip, self.options.ports))

    def _have_data(self) -> None:
        if self.options.data:
            self._wait_in_thread(lambda: self.reply.data is not None)
            if not self._shares(self.options.data_dir):
                for name, files in (self.reply.data or {}).items():
                    for file, digest in files.items():
                        self._pull(folder_name(name), file, digest)

    def _pull(self, folder: str, file: str, digest: str) -> None:
        """Copy one file from the head; a transfer that breaks off is tried once more."""
        name, to = f"{folder}/{file}", self.options.data_dir / folder / file
        for is_last in (False, True):
            try:
                pull(self.head, folder, file, digest, to=to)
            except (ApiError, OSError, http.client.HTTPException) as error:
                if isinstance(error, OSError) and not is_network_error(error):
                    code = error_code(error)
                    raise self.failed(FailureKind.DATA, f"{to}: {error}", subject=name, code=code) from error
                broken = str(error) or type(error).__name__
                if is_last:
                    reason = f"{name} could not be copied from rank 0: {broken}"
                    raise self.failed(FailureKind.PULL, reason, subject=name) from error
            else:
                return
            self.log.line(f"copying {name} from rank 0 broke off ({broken}); one more try")
            self._wait_in_thread(lambda: False, _PULL_AGAIN_AFTER_S)

    def _fetch_models(self, fetcher: Fetcher) -> None:
        self.compute.hold_models()
        for model in self.options.models:
            folder = models_dir(model, self.options.data_dir, self.env)
            fetch = partial(fetcher.fetch_model, model)
            self.state.add("models", model, self._own_or_shared(folder, model, fetch, lambda: self.reply.models))

    def _make_artifacts(self, fetcher: Fetcher) -> None:
        for artifact in self.options.artifacts:
            name, make = artifact.name, partial(fetcher.make_artifact, artifact)
            path = self._own_or_shared(self.options.data_dir, name, make, lambda: self.reply.artifacts)
            self.state.add("artifacts", name, path)

    def _own_or_shared(
        self, folder: Path, name: str, make: Callable[[], str], of_head: Callable[[], Mapping[str, str]]
    ) -> str:
        """Where a model or artifact is: made here, or by rank 0 if it has the same folder."""
        self._wait_in_thread(lambda: self.reply.markers is not None)
        if not self._shares(folder):
            return make()
        self.state.update(detail=f"rank 0 fetches {name} into the shared folder")
        self._wait_in_thread(lambda: name in of_head())
        return of_head()[name]

    def _shares(self, folder: Path) -> bool:
        text = (self.reply.markers or {}).get(str(folder))
        return text is not None and has_marker(folder, self.identity.run_id, text)

    def _wait_in_thread(self, condition: Callable[[], bool], timeout_s: float = float("inf")) -> None:
        """Wait in the fetching thread, for what the head publishes or for a time; give up with all others."""
        deadline = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline:
            self.state.raise_failure()
            time.sleep(0.05)

    # -- heartbeats -----------------------------------------------------------------------------------------

    def _heartbeat_loop(self) -> None:
        while True:
            try:
                self.reply = self.head.heartbeat(replace(self.state.own, sent_at=time.time()))
                self._heard_at = time.monotonic()
                reply = self.reply
                self.job_looks.wish(reply.save_wish)
                self.state.publish(peers=reply.peers, gpus_of_ray=reply.gpus_of_ray, rendezvous=reply.rendezvous)
                if self.reply.phase != self._head_phase[0]:
                    self._head_phase = (self.reply.phase, self._heard_at)
                if self.reply.failure is not None:
                    self.state.fail(self.reply.failure)
                self._replicator.want(self.reply.announced)
            except ConnectionRefusedError:
                self._on_missed_heartbeat(_REFUSED_FOR_S, "its agent is gone")
            except (OSError, http.client.HTTPException, ValueError):
                self._on_missed_heartbeat(self.options.lost_after_s, "it does not answer")
            except AgentRefused as error:
                self._refused = True
                self.state.fail(Failure(FailureKind.JOIN, self.identity.rank, f"rank 0 refused this node: {error}"))
            time.sleep(_BEAT_WHEN_READY_S if self.reply.ready else _BEAT_S)

    def _on_missed_heartbeat(self, limit_s: float, what: str) -> None:
        """Before the first answer the head may still be starting; afterwards its silence is a loss."""
        if self._heard_at is not None and time.monotonic() - self._heard_at > limit_s:
            silence_s = time.monotonic() - self._heard_at
            notice = self.reply.interruption
            how = loss_text(notice, time.time()) if notice is not None else "was lost"
            reason = f"the head (rank 0, {self.identity.head_ip}) {how}: {what}, last heard {silence_s:.0f} s ago"
            self._lost = Failure(FailureKind.LOST, 0, reason)
            self.state.fail(self._lost)
