"""What the run has cost so far, kept on the volume for its next attempt, which may have any of these machines."""

import threading
import time
from typing import Callable, Optional

from cloudrl.node.attempts import Attempts

_EVERY_S = 60.0


class CostRecord:
    """Writes the cost from time to time, in threads: a volume that hangs holds up no limit of the cost.

    Args:
        attempts: where it is kept.
        cost: US dollars so far; None without a price, and nothing is written.
        before: those of earlier attempts.
        say: takes a line for the log.
    """

    def __init__(
        self,
        attempts: Attempts,
        cost: Callable[[], Optional[float]],
        before: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._attempts, self._cost, self._before, self._say = attempts, cost, before, say
        self._began = time.monotonic()
        self._writing = threading.Lock()

    def renew(self, now: Optional[float] = None) -> None:
        """Start to write it if a minute has passed, and the last time is over."""
        now = time.monotonic() if now is None else now
        if now - self._began > _EVERY_S and not self._writing.locked():
            self._began = now
            threading.Thread(target=self.write, daemon=True).start()

    def write(self) -> None:
        """Write it now."""
        with self._writing:
            cost = self._cost()
            if cost is not None:
                try:
                    self._attempts.write_cost(cost, self._before())
                except OSError as error:
                    self._say(f"warning: what the run has cost cannot be written: {error}")
