"""Fetching, in threads that cannot end unnoticed: without its files a node must not become ready."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Callable

from cloudrl.node.failure import NodeFailed, unforeseen
from cloudrl.protocol.failures import Failure

if TYPE_CHECKING:
    from cloudrl.node.node_state import NodeState
    from cloudrl.protocol.failures import FailureKind


class BackgroundTask(threading.Thread):
    """One piece of work. What ends it early is put in the node's state, where all other threads see it.

    Args:
        kind: of the failure that anything unforeseen is; `NodeFailed` says its own.

    Attributes:
        done: set as the very last thing: a thread that is over without it has failed.
    """

    def __init__(self, kind: FailureKind, work: Callable[[], None], state: NodeState) -> None:
        super().__init__(name=f"cloudrl-{kind}", daemon=True)
        self._kind, self._work, self._state = kind, work, state
        self.done = False

    def run(self) -> None:
        """Called by the thread."""
        try:
            self._work()
        except NodeFailed as failed:
            self._state.fail(failed.failure)
        except Exception as error:  # noqa: BLE001  whatever it is, whoever waits for this thread has to learn of it
            self._state.fail(unforeseen(self._kind, self._state.own.rank, error))
        else:
            self.done = True

    def result(self) -> None:
        """Wait for the end.

        Raises:
            NodeFailed: it is not done, or somebody else has failed meanwhile.
        """
        self.join()
        self._state.raise_failure()
        if not self.done:
            reason = f"the work on the {self._kind} has stopped half-way"
            raise NodeFailed(Failure(self._kind, self._state.own.rank, reason, code="half-way"))
