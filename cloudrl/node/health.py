"""Whether a service answers: asked in a thread of its own, since an answer may take longer than the agent can wait."""

import http.client
import threading
from typing import Callable, Optional

from cloudrl.node.ray import probe
from cloudrl.protocol.services import Service

_UNTIL_READY_S, _ANSWER_S = 0.25, 10.0


class HealthCheck:
    """Asks one start of a service again and again, until `close`.

    Args:
        service: that was started.
        clock: of the times below.
        pause_s: between two questions, once it was ready.

    Attributes:
        ready_at: when it was ready first, on the clock; None before.
        answered_at: when it was ready last; None before.
        said: what came instead, "" while it is ready.
    """

    def __init__(
        self,
        service: Service,
        *,
        clock: Callable[[], float],
        pause_s: float,
    ) -> None:
        self.ready_at: Optional[float] = None
        self.answered_at: Optional[float] = None
        self.said = ""
        self._service, self._clock, self._pause_s = service, clock, pause_s
        self._closed = threading.Event()
        threading.Thread(target=self._ask_again_and_again, daemon=True).start()

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def _ask_again_and_again(self) -> None:
        while not self._closed.is_set():
            self.said = ask(self._service)
            if not self.said:
                self.answered_at = self._clock()
                self.ready_at = self.ready_at or self.answered_at
                if not self._service.health:
                    return  # an open port says no more than this
            self._closed.wait(_UNTIL_READY_S if self.ready_at is None else self._pause_s)


def ask(service: Service) -> str:
    """What is wrong with its answer, "" if it is ready."""
    if not service.health:
        return "" if probe("127.0.0.1", service.port, 1.0) == "open" else "no connection"
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=_ANSWER_S)
    try:
        connection.request("GET", service.health, headers={"Connection": "close"})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()
    return "" if status == 200 else f"status {status}"
