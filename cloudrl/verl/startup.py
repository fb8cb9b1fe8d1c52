"""What a job does before its first step, read from the lines that verl and Ray write on the way.

The lines are verl 0.9.1's, trainer/ppo/v1/trainer_base.py: `_setup`, `_load_checkpoint` and `fit`; a release that words
them otherwise shows fewer stages. Nothing here raises: a log may hold anything.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from cloudrl.protocol.job_phases import JobPhase
from cloudrl.verl.metrics import plain

_SEARCHED = 4_000
"""Characters of a line that are looked at."""


@dataclass(frozen=True)
class Starting:
    """A stage of the start of a job, which has just begun.

    Attributes:
        stage: what it does now, for a person: `loading the model`.
        phase: the job phase that the stage belongs to.
        detail: what is known of it, such as the step that is resumed from; "" if nothing.
    """

    stage: str
    phase: JobPhase
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.stage} {self.detail}".strip()


_STAGES = (
    (r"(?:Runtime env is setting up|Running entrypoint for job )", "starting the job", JobPhase.PLACEMENT),
    (r"\[validate_config\]|ray init kwargs:", "connecting to Ray", JobPhase.PLACEMENT),
    (r"Using dataset class: ", "reading the data", JobPhase.DATA),
    (r"worker group kwargs: ", "waiting for workers", JobPhase.PLACEMENT),
    (r"create worker group ", "loading the model", JobPhase.INIT),
    (r"actor and ref model engine initialized", "starting the reward workers", JobPhase.INIT),
    (r"reward loop manager initialized", "starting the rollout engines", JobPhase.INIT),
    (r"checkpoint engine manager initialized", "looking for a checkpoint", JobPhase.LOAD_CHECKPOINT),
    (r"Resuming from .*global_step_(?P<detail>\d{1,18})", "loading the checkpoint of step", JobPhase.LOAD_CHECKPOINT),
    (r"all initialize finished, ready to fit", "first rollout", JobPhase.GEN),
)
"""Start of a line -> the stage that begins with it, in the order of a start."""
_LOGGED = r"(?:INFO:|.{0,40}INFO\s)?(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{1,6}[: ]\s?)?(?:\S+ -- )?"
_PATTERNS = tuple((re.compile(_LOGGED + start), place) for place, (start, _, _) in enumerate(_STAGES))


class StartReader:
    """Finds the stages in the lines of a log, each once and never back, until the first step.

    Stages that verl does before the model is there may come in another order; a later line never leads to an earlier
    stage.
    """

    def __init__(self) -> None:
        self._place = -1

    def read(self, line: str) -> Starting | None:
        """The stage that a line begins; None for any other line."""
        text = plain(line[:_SEARCHED])
        for pattern, place in _PATTERNS[self._place + 1 :]:
            if (match := pattern.match(text)) is not None:
                self._place = place
                _, stage, phase = _STAGES[place]
                return Starting(stage, phase, match.groupdict().get("detail") or "")
        return None


def stages(lines: Iterable[str]) -> list[Starting]:
    """The stages that a log shows, in order."""
    reader = StartReader()
    return [stage for line in lines if (stage := reader.read(line)) is not None]
