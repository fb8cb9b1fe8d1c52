"""Everything that cloudrl raises on purpose.

    CloudrlError                  1  our own fault, or nothing better fits
    ├── InputError                2  the user's input is wrong
    │   └── SpecError                what is declared, in Python or in a file, cannot be so
    ├── CapacityError             3  the provider has no such machines
    ├── FailedError               4  what was started has failed
    │   ├── ClusterFailed            the cluster ended before or after READY
    │   └── JobFailed                the training job ended without success
    ├── ConnectionFailed          5  no answer at an address
    │   ├── Unauthorized             an answer, but the token or the key is refused
    │   └── WaitTimeout              what is waited for goes on; a TimeoutError
    ├── CheckpointError           6  a checkpoint is missing or not what it should be
    └── Interrupted             130  the user pressed Ctrl-C; what runs goes on

The number is the exit code of the command line. Standard library only: the node agent imports this file.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple


class CloudrlError(Exception):
    """A message that says what failed, and in `hint` the next command to type.

        try:
            cloudrl.recipe("no-such-recipe")
        except cloudrl.CloudrlError as error:
            print(error.message, error.hint, error.exit_code)

    Every error of cloudrl is one of its subclasses: docs/reference.md.
    """

    exit_code = 1
    warnings: Sequence[str] = ()
    """What the user should look at besides, one sentence each."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    def to_json(self) -> List[Dict[str, Any]]:
        """JSON-ready form of all that it reports; each has `text` and `hint`."""
        return [{"text": self.message, "hint": self.hint}]

    @property
    def remaining(self) -> Optional[CloudrlError]:
        """What the command of `corrected` ends with; None if it does not fail."""
        return None

    def corrected(self, words: Sequence[str]) -> Optional[List[str]]:  # noqa: ARG002  those that know how look at them
        """The words of a command that does not end with this error; None if they are not known."""
        return None


class InputError(CloudrlError):
    """The user's input is wrong; nothing was started."""

    exit_code = 2


class Refusals(List[InputError]):
    """What several checks refuse, so that all of it is reported together.

    with refusals.collect():
        check_shape(values, cluster)
    """

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keep an `InputError` of the block, and go on behind it."""
        try:
            yield
        except InputError as error:
            self.append(error)


class SpecError(InputError, ValueError):
    """A cluster, a fleet, a job or a recipe is declared as it cannot be, in Python or in a file."""


class CapacityError(CloudrlError):
    """The provider cannot give the machines that were asked for."""

    exit_code = 3


class FailedError(CloudrlError):
    """Something that was started has failed."""

    exit_code = 4


class ClusterFailed(FailedError):
    """A cluster did not become ready, or ended afterwards."""


class JobFailed(FailedError):
    """A job ended as FAILED or STOPPED."""


class ConnectionFailed(CloudrlError):
    """An address does not answer, or the answer is not from what should be there."""

    exit_code = 5


class Unauthorized(ConnectionFailed):
    """The other side answers, and refuses the token or the SSH key, as it would again."""


class WaitTimeout(ConnectionFailed, TimeoutError):
    """What is waited for has not ended in the time that was given; it goes on."""


class CheckpointError(CloudrlError):
    """A checkpoint is missing, incomplete or damaged."""

    exit_code = 6


class Interrupted(CloudrlError):
    """The user interrupted the command; the job or cluster goes on."""

    exit_code = 130


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`; did you mean 'gpu'?` with the choice that is most like `word`; empty when none is.

    Letter case aside; the same words in another order are most alike.
    """
    import difflib  # only where something went wrong

    by_lower = {choice.lower(): choice for choice in choices}
    reordered = {_words(choice): choice for choice in by_lower}.get(_words(word.lower()))
    matches = [reordered] if reordered else difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[matches[0]]!r}?" if matches else ""


def similar_file(name: str, beside: Iterable[str]) -> str:
    """`did_you_mean` for a file: an ending that two names share does not make them alike."""
    import difflib

    stem = PurePath(name).stem
    ratios = ((other, difflib.SequenceMatcher(None, stem, PurePath(other).stem).ratio()) for other in beside)
    return did_you_mean(name, [other for other, ratio in ratios if ratio >= 0.6])


def _words(name: str) -> Tuple[str, ...]:
    """In alphabetical order: `grpo-tiny` and `tiny_grpo` have the same, `8kgsm` and `gsm8k` too."""
    return tuple(sorted(re.findall(r"[^\W\d_]+|\d+", name))) or (name,)


def without_login(url: str) -> str:
    """A URL for messages: without user and password, and without a query, which may hold a token."""
    head, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    place, slash, path = rest.partition("/")
    return f"{head}{mark}{place.rpartition('@')[2]}{slash}{path}".partition("?")[0]
