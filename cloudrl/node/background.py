"""Work in threads that cannot end unnoticed: without its files a node must not become ready."""

from __future__ import annotations

import threading
from typing import Callable, Mapping

from cloudrl.node.failure import NodeFailed, unforeseen
from cloudrl.node.node_state import NodeState
from cloudrl.protocol.failures import FailureKind


class BackgroundTask(threading.Thread):
    """One piece of work. What ends it early is put in the node's state, where all other threads see it.

    Args:
        kind: of the failure that anything unforeseen is; `NodeFailed` says its own.
    """

    def __init__(self, kind: FailureKind, work: Callable[[], None], state: NodeState) -> None:
        super().__init__(name=f"cloudrl-{kind}", daemon=True)
        self._kind, self._work, self._state = kind, work, state

    def run(self) -> None:
        """Called by the thread."""
        try:
            self._work()
        except NodeFailed as failed:
            self._state.fail(failed.failure)
        except BaseException as error:  # noqa: BLE001  also `sys.exit`: whoever waits for this thread has to learn of it
            self._state.fail(unforeseen(self._kind, self._state.own.rank, error))

    def result(self) -> None:
        """Wait for the end.

        Raises:
            NodeFailed: this work, or somebody else meanwhile, has failed.
        """
        self.join()
        self._state.raise_failure()


def run_parallel(works: Mapping[FailureKind, Callable[[], None]], state: NodeState) -> None:
    """Do these in threads, each with the kind of failure that it can meet; return once all are done.

    Raises:
        NodeFailed: one of them, or somebody else, has failed.
    """
    tasks = [BackgroundTask(kind, work, state) for kind, work in works.items()]
    for task in tasks:
        task.start()
    for task in tasks:
        task.result()
