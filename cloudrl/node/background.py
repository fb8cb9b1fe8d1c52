"""Threads: work that cannot end unnoticed, since without its files a node must not become ready, and repeated looks."""

import threading
import time
import traceback
from typing import Callable, Mapping, Set

from cloudrl.node.failure import NodeFailed, unforeseen
from cloudrl.node.node_state import NodeState
from cloudrl.protocol.failures import FailureKind


def start_thread(kind: FailureKind, work: Callable[[], object], state: NodeState) -> threading.Thread:
    """Do one piece of work. What ends it early is put in the node's state, where all other threads see it.

    `kind` is that of the failure that anything unforeseen is; `NodeFailed` says its own.
    """

    def run() -> None:
        try:
            work()
        except NodeFailed as failed:
            state.fail(failed.failure)
        except BaseException as error:  # noqa: BLE001  also `sys.exit`: whoever waits for this thread has to learn of it
            state.fail(unforeseen(kind, state.own.rank, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def repeat(look: Callable[[], object], every_s: float) -> None:
    """Look again and again, in a thread that ends with the process.

    `look` lets no error out. One that gets out is written to stderr once, and the looks go on.
    """

    def run() -> None:
        written: Set[str] = set()
        while True:
            try:
                look()
            except Exception as error:  # noqa: BLE001  what is looked at is others'
                if repr(type(error)) not in written:
                    written.add(repr(type(error)))
                    traceback.print_exc()
            time.sleep(every_s)

    threading.Thread(target=run, daemon=True).start()


def within(limit_s: float, work: Callable[[], object]) -> None:
    """Do it in a thread, and wait no longer than that: a volume may hang."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit_s)


def run_parallel(works: Mapping[FailureKind, Callable[[], object]], state: NodeState) -> None:
    """Do these in threads, each with the kind of failure that it can meet; return once all are done.

    Raises:
        NodeFailed: one of them, or somebody else, has failed.
    """
    for thread in [start_thread(kind, work, state) for kind, work in works.items()]:
        thread.join()
        state.raise_failure()
