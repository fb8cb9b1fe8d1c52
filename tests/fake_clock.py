"""Time that passes only when somebody sleeps."""

from collections.abc import Callable


class Clock:
    """Seconds that never go back; `on_sleep` happens when they pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.on_sleep: Callable[[], object] = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.on_sleep()
