"""The way to a cluster that is coming up: tried until the agent answers, and given up in the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cloudrl.errors import ConnectionFailed
from cloudrl.providers.dstack.access import Access, reach

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloudrl.providers.dstack.runs import RunState
    from cloudrl.providers.dstack.server import Server

_TRY_S = 20.0
_PATIENCE_S = 600.0
"""From `running` until there is a way in; the agent listens within seconds of the container's start."""


class WayIn:
    """One access to a run, once there is one.

    Args:
        server: the run's.
        reach: opens the way.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        server: Server,
        *,
        reach: Callable[..., Access] = reach,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.problem = ""
        """Why there is none although the run is running."""
        self._server, self._reach, self._clock = server, reach, clock
        self._access: Access | None = None
        self._running: tuple[int, float] | None = None

    def look(self, run: RunState) -> Access | None:
        """The way in, or None while the agent has not started.

        Raises:
            ConnectionFailed: this attempt of the run has been running for long, and cannot be reached.
        """
        if run.status != "running":
            self._running = None
            return None
        if self._access is not None:
            return self._access
        if self._running is None or self._running[0] != run.attempt:
            self._running = (run.attempt, self._clock())
        try:
            self._access = self._reach(self._server, run, timeout_s=_TRY_S)
        except ConnectionFailed as error:
            self.problem = error.message
            if self._clock() - self._running[1] > _PATIENCE_S:
                raise self._in_vain(run, error) from error
        return self._access

    def handed_over(self) -> Access:
        """The access, which `close` then leaves alone.

        Raises:
            ConnectionFailed: there is none.
        """
        access, self._access = self._access, None
        if access is None:
            raise ConnectionFailed(self.problem or "no way in")
        return access

    def close(self) -> None:
        """Close what was opened and not handed over."""
        if self._access is not None:
            self._access.close()
            self._access = None

    def _in_vain(self, run: RunState, error: ConnectionFailed) -> ConnectionFailed:
        return type(error)(
            f"cluster {run.name!r} is running, and cannot be reached from this machine: {error.message}",
            hint=error.hint or f"Try again: cloudrl attach {run.name}",
        )
