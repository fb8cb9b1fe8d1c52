"""Every rank but 0: beats to the head, joins its Ray, pulls its data, and ends when the head does."""

from __future__ import annotations

import http.client
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, Optional

from cloudrl.node import attempts, canary
from cloudrl.node import ray as ray_node
from cloudrl.node.agent import Agent
from cloudrl.node.failure import Failure
from cloudrl.node.fetch import Fetcher, models_dir, parts
from cloudrl.node.peer import Peer, PeerRefused
from cloudrl.node.preflight import different

if TYPE_CHECKING:
    from pathlib import Path

    from cloudrl.node.process import Child

_BEAT_S = 0.2
_BEAT_WHEN_READY_S = 1.0
_REFUSED_FOR_S = 3.0
_VERDICT_S = 10.0


class Worker(Agent):
    """The agent of every other rank."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.head = Peer(self.identity.head_ip, self.options.ports.head_agent, self.tokens.agent)
        self.answer: Dict[str, Any] = {}
        self._heard_at: Optional[float] = None
        self._refused = False
        self._lost: Optional[Failure] = None
        threading.Thread(target=self._beat_for_ever, daemon=True).start()

    def connect(self) -> None:
        """Wait for the head's agent, and compare versions with it."""
        self.board.update(detail=f"waiting for rank 0 at {self.head.ip}:{self.head.port}")
        self._await(
            "ray_version",
            self.options.join_timeout_s,
            f"rank 0 does not answer at {self.head.ip}:{self.head.port}",
        )
        own = self.board.own
        fault = different(own.ray_version, own.python_version, self.answer)
        if fault:
            raise self.fail("preflight", fault)

    def before_ray(self) -> None:
        """Wait for Ray's control store on the head, and name it when only that port is closed."""
        ip, port = self.identity.head_ip, self.options.ports.gcs
        deadline = time.monotonic() + self.options.join_timeout_s
        self.board.update(detail=f"waiting for Ray at {ip}:{port}")
        while ray_node.probe(ip, port, 1.0) != "open":
            if time.monotonic() > deadline:
                reason = (
                    f"{ip}:{port} (Ray's control store) cannot be reached, though {self.head.port} answers"
                )
                raise self.fail("join", f"{reason}: is a firewall between the nodes?")
            self.tick()

    def await_ray(self, ray: Child) -> None:
        """Up when `ray start` says so."""
        self.until(lambda: ray.poll() is not None or ray_node.has_started(ray.tail(40)))

    def fetch(self, fetcher: Fetcher) -> None:
        """Pull the prepared data unless the folder is the head's own; have the models."""
        self._fetch_models(fetcher)
        if self.options.data:
            self._wait_for("data")
            if not self._shares(self.options.data_dir):
                for name, file, sha256 in parts(self.answer["data"]):
                    self.head.pull(name, file, to=self.options.data_dir / name / file, sha256=sha256)

    def barrier(self) -> None:
        """Wait for the head's word."""
        self.board.update(detail="waiting for the others")
        self.until(lambda: bool(self.answer.get("ready")))

    def supervise(self) -> None:
        """The beating thread notes the loss of the head on the board; nothing to do here."""

    def settle(self, failure: Failure) -> Failure:
        """Report it to the head and take its word; alone, judge by this node's own volume."""
        self.board.update(phase="failed", failure=failure)
        deadline = time.monotonic() + _VERDICT_S
        while time.monotonic() < deadline and not (self._refused or self._lost or self.ending.asked):
            verdict = Failure.from_json(self.answer.get("failure"))
            if verdict is not None:
                return verdict
            time.sleep(0.05)
        if self._lost is not None and failure.kind == "ray":
            return self._lost  # Ray ended here because its head did
        if self.answer.get("ready"):
            return failure
        return attempts.judge(failure, folder=self.options.checkpoints, run_id=self.identity.run_id)

    def _fetch_models(self, fetcher: Fetcher) -> None:
        for model in self.options.models:
            self._wait_for("canaries")
            if self._shares(models_dir(model, self.options.data_dir, self.env)):
                self.board.update(detail=f"rank 0 fetches {model} into the shared folder")
                while model not in self.answer.get("models", {}):
                    self._give_up_with_the_others()
                self.board.add_model(model, str(self.answer["models"][model]))
            else:
                self.board.add_model(model, fetcher.fetch_model(model))

    def _shares(self, folder: Path) -> bool:
        word = self.answer.get("canaries", {}).get(str(folder))
        return word is not None and canary.seen(folder, self.identity.run_id, word)

    def _await(self, key: str, timeout_s: float, otherwise: str) -> None:
        deadline = time.monotonic() + timeout_s
        self.until(lambda: key in self.answer or time.monotonic() > deadline)
        if key not in self.answer:
            raise self.fail("join", otherwise)

    def _wait_for(self, key: str) -> None:
        """Wait in the fetching thread until the head has published something."""
        while key not in self.answer:
            self._give_up_with_the_others()

    def _give_up_with_the_others(self) -> None:
        self.board.raise_failure()
        time.sleep(0.05)

    # -- heartbeats -----------------------------------------------------------------------------------------

    def _beat_for_ever(self) -> None:
        while True:
            try:
                self.answer = self.head.heartbeat(self.board.own.to_json())
                self._heard_at = time.monotonic()
                self._obey()
            except ConnectionRefusedError:
                self._miss(_REFUSED_FOR_S, "its agent is gone")
            except (OSError, http.client.HTTPException, ValueError):
                self._miss(self.options.lost_after_s, "it does not answer")
            except PeerRefused as error:
                self._refused = True
                self.board.fail(Failure("join", self.identity.rank, f"rank 0 refused this node: {error}"))
            time.sleep(_BEAT_WHEN_READY_S if self.answer.get("ready") else _BEAT_S)

    def _obey(self) -> None:
        verdict = Failure.from_json(self.answer.get("failure"))
        if verdict is not None:
            self.board.fail(verdict)

    def _miss(self, patience_s: float, what: str) -> None:
        """Before the first answer the head may still be starting; afterwards its silence is a loss."""
        if self._heard_at is not None and time.monotonic() - self._heard_at > patience_s:
            silence_s = time.monotonic() - self._heard_at
            reason = f"the head (rank 0, {self.head.ip}) was lost: {what}, last heard {silence_s:.0f} s ago"
            self._lost = Failure("lost", 0, reason)
            self.board.fail(self._lost)
