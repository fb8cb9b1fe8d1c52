"""One question for many nodes: asked side by side, a bounded number at once."""

from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Iterable, List, TypeVar

AT_ONCE = 16
"""Each call is a connection of the client and two of rank 0, which passes it on."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(call: Callable[[Item], Result], items: Iterable[Item], *, at_once: int = AT_ONCE) -> List[Result]:
    """Call with each item, at most `at_once` at a time; returns the results in the order of the items.

    The first error ends it: calls that have not begun are dropped, those under way are not waited for.
    """
    items = list(items)
    if len(items) < 2:
        return [call(item) for item in items]
    pool = ThreadPoolExecutor(min(at_once, len(items)))
    try:
        results = list(pool.map(call, items))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    return results
