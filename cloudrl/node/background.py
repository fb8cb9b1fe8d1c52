"""Threads: work that cannot end unnoticed, since without its files a node must not become ready, and repeated looks."""

import threading
import time
import traceback
from typing import Callable, List, Mapping, Set, TypeVar

from cloudrl.node.failure import NodeFailed, unforeseen
from cloudrl.node.node_state import NodeState
from cloudrl.protocol.failures import FailureKind
from cloudrl.units import duration_text

_Result = TypeVar("_Result")


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


def repeat(look: Callable[[], object], every_s: float, pause: Callable[[float], object] = time.sleep) -> None:
    """Look again and again, in a thread that ends with the process.

    `look` lets no error out. One that gets out is written to stderr once, and the looks go on.

    Args:
        look: is called.
        every_s: seconds between two calls.
        pause: waits that long, or less where there is something to see.
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
            pause(every_s)

    threading.Thread(target=run, daemon=True).start()


def within(limit_s: float, work: Callable[[], object]) -> None:
    """Do it in a thread, and wait no longer than that: a volume may hang."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit_s)


def call_within(limit_s: float, call: Callable[[], _Result], what: str) -> _Result:
    """What a call returns that may never return.

    Args:
        limit_s: seconds that it is waited for; after that it is left to itself.
        call: the call.
        what: is asked, for the message.

    Raises:
        OSError: it has not returned in time. Otherwise what the call raises.
    """
    results: List[_Result] = []
    failures: List[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as failure:  # noqa: BLE001  raised again by whoever waits
            failures.append(failure)

    within(limit_s, run)
    for failure in failures:
        raise failure
    if not results:
        raise OSError(f"{what} has not answered for {duration_text(limit_s)}")
    return results[0]


def run_parallel(works: Mapping[FailureKind, Callable[[], object]], state: NodeState) -> None:
    """Do these in threads, each with the kind of failure that it can meet; return once all are done.

    Raises:
        NodeFailed: one of them, or somebody else, has failed.
    """
    for thread in [start_thread(kind, work, state) for kind, work in works.items()]:
        thread.join()
        state.raise_failure()
