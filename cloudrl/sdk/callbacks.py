"""What a verb tells and asks while it works, as data: nothing of the SDK prints or prompts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from cloudrl.errors import InputError
from cloudrl.protocol.progress import Notice as Notice  # noqa: PLC0414  offered here, too
from cloudrl.protocol.progress import Transfer as Transfer  # noqa: PLC0414
from cloudrl.shards.progress import OnProgress as OnBytes
from cloudrl.units import duration_text
from cloudrl.verl.startup import Starting

if TYPE_CHECKING:
    from cloudrl.jobs import Event, JobHandle
    from cloudrl.jobs.look import Look
    from cloudrl.providers.model import Status


@dataclass(frozen=True)
class Question:
    """What has to be answered with yes before money is spent, or something is lost.

        def confirm(question: cloudrl.Question) -> bool:
            return input(f"{question.text} [y/N] ") == "y"

    Attributes:
        text: the question.
        default: the answer without a terminal; None is an error there.
        explicit: whether a yes that was given beforehand (`-y`) does not count.
    """

    text: str
    default: bool | None = True
    explicit: bool = False


@dataclass(frozen=True)
class Waiting:
    """What a job does before its first step, and since when; reported every two seconds.

    Attributes:
        stage: what it does.
        seconds: since the stage was seen first.
    """

    stage: Starting
    seconds: float

    def __str__(self) -> str:
        """For example `before the first step: loading the model for 12 s`."""
        return f"before the first step: {self.stage} for {duration_text(self.seconds)}"


Update = Union[Notice, Transfer, "Status", "JobHandle", "Event", Waiting, "Look"]
"""What `on_progress` gets: a notice, bytes, a look at a cluster that comes up, a job that has just been submitted, one
of its events, what it does before its first step, or a look at a job that is watched."""
OnProgress = Callable[[Update], None]
Confirm = Callable[[Question], bool]


def silent(update: Update) -> None:
    """Report nothing."""


def unattended(question: Question) -> bool:
    """The answer without a terminal: `confirm`, unless it is given.

    Raises:
        InputError: somebody has to answer this one.
    """
    if question.default is None:
        raise InputError(
            f"{question.text} There is no terminal to ask on",
            hint="Pass confirm=, for example: confirm=lambda question: True",
        )
    return question.default


def notify(on_progress: OnProgress, *texts: str) -> None:
    """Tell sentences."""
    for text in texts:
        on_progress(Notice(text))


def transfer(what: str, on_progress: OnProgress, dollars: Callable[[], float | None] = lambda: None) -> OnBytes:
    """The function that a copy calls with bytes.

    Args:
        what: is copied.
        on_progress: receives a `Transfer` each time.
        dollars: what the cluster that the bytes come from has cost so far, if it has a price.
    """
    return lambda done_bytes, total_bytes: on_progress(Transfer(what, done_bytes, total_bytes, dollars()))
