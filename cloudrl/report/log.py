"""What a driver's log says of a run, read piece by piece as it grows."""

from collections import deque
from collections.abc import Iterable, Mapping

from cloudrl.hangs.rollout import Unfinished, parse
from cloudrl.logs.causes.evidence import LAST_LINES
from cloudrl.logs.causes.printed import shortened
from cloudrl.transport.log_stream import split_lines
from cloudrl.verl.metrics import Step, parse_step, parse_total_steps
from cloudrl.verl.printed_config import ConfigReader


class LogReading:
    """One log: its steps in order, the last count of prompts, and `offset`, how many bytes of it were taken."""

    def __init__(self) -> None:
        self.offset = 0
        self.total_steps: int | None = None
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.steps: list[Step] = []
        self.prompts: Unfinished | None = None
        self._config, self._tail = ConfigReader(), list[bytes]()  # joined once its line is whole

    @property
    def config(self) -> Mapping[str, str] | None:
        """What verl has printed; None while it has not."""
        return self._config.config

    @property
    def is_finished(self) -> bool:
        """Whether the last step of the run was trained."""
        return bool(self.steps) and self.total_steps is not None and self.steps[-1].step >= self.total_steps

    def add(self, content: bytes, *, is_last: bool = False) -> None:
        """Take the next bytes; the line that they end in is read once it is whole.

        Args:
            content: as in the log.
            is_last: whether the log has ended.
        """
        self.offset += len(content)
        end = len(content) if is_last else content.rfind(b"\n") + 1
        if end or is_last:
            self.read(split_lines([*self._tail, content[:end]]))
            self._tail = []
        self._tail.append(content[end:])

    def read(self, lines: Iterable[str]) -> None:
        """Take the next lines."""
        for line in lines:
            self.last_lines.append(shortened(line))
            step = parse_step(line)
            if step is not None:
                self.steps.append(step)
            else:
                self._config.read(line)
                self.prompts = parse(line) or self.prompts
                self.total_steps = parse_total_steps(line) or self.total_steps
