"""One question for many nodes: asked side by side, a bounded number at once."""

import queue
import threading
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, TypeVar

AT_ONCE = 16
"""Each call is a connection of the client and two of rank 0, which passes it on."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(call: Callable[[Item], Result], items: Iterable[Item], *, at_once: int = AT_ONCE) -> List[Result]:
    """Call with each item, at most `at_once` at a time; returns the results in the order of the items.

    The first error ends it, and so does Ctrl-C: no further call begins, and those under way are not waited for, also
    not at the end of the program, which an executor's threads would hold up for as long as a node hangs.
    """
    waiting = list(items)
    if len(waiting) < 2:
        return [call(item) for item in waiting]
    numbered, turn, over = enumerate(waiting), threading.Lock(), threading.Event()
    outcomes: "queue.SimpleQueue[Tuple[int, Any, Optional[BaseException]]]" = queue.SimpleQueue()

    def work() -> None:
        while not over.is_set():
            with turn:
                index, item = next(numbered, (-1, waiting[0]))
            if index < 0:
                return
            try:
                outcomes.put((index, call(item), None))
            except BaseException as error:  # noqa: BLE001  raised where it is waited for
                outcomes.put((index, None, error))

    for _ in range(min(at_once, len(waiting))):
        threading.Thread(target=work, daemon=True).start()
    results: Dict[int, Result] = {}
    try:
        for _ in waiting:
            index, result, error = outcomes.get()
            if error is not None:
                raise error
            results[index] = result
    finally:
        over.set()
    return [results[index] for index in range(len(waiting))]
