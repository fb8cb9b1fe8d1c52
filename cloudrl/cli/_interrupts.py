"""What Ctrl-C says: what is running, what it costs, how to go on and how to end it. A second one leaves at once."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cloudrl.errors import CloudrlError, ConnectionFailed, Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cloudrl.providers.model import Provider


@contextmanager
def nothing_started(fleet: str | None = None) -> Iterator[None]:
    """For what comes before anything is submitted.

    Args:
        fleet: one that was created before, or may be just now; none of its machines is rented yet.

    Raises:
        Interrupted: the user pressed Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt:
        left = f"Fleet {fleet} costs nothing without a cluster; to be rid of it: cloudrl fleet delete {fleet}"
        hint = left if fleet is not None else None
        raise Interrupted("interrupted; nothing was started", hint=hint) from None


@contextmanager
def cluster_goes_on(home: Provider, name: str, again: str | Callable[[], str]) -> Iterator[None]:
    """For what is done with a cluster that is up.

    Args:
        home: its provider.
        name: its name.
        again: the command that goes on where this one was left, or what names it then; what an error says about a
            job stands before it.

    Raises:
        Interrupted: the user pressed Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt:
        message, hint = "interrupted", f"Go on: {again if isinstance(again, str) else again()}"
    except Interrupted as error:
        message, hint = error.message, error.hint or ""
    else:
        return
    raise Interrupted(
        f"{message}; cluster {name} goes on{costs(home, name)}",
        hint=f"{hint}\nEnd it all: cloudrl down {name}",
    )


@contextmanager
def ending(home: Provider, name: str, price_per_hour: float | None = None) -> Iterator[None]:
    """For the end of a cluster, and the question before it.

    Args:
        home: its provider.
        name: its name.
        price_per_hour: what it costs in US dollars, as far as it was seen.

    Raises:
        Interrupted: the user pressed Ctrl-C.
        ConnectionFailed: nobody answers; the message says that the cluster goes on.
    """
    try:
        yield
    except ConnectionFailed as error:  # its status would be asked in vain
        from cloudrl.cli._write_file import money

        price = f" and costs about {money(price_per_hour)}/h" if price_per_hour else ""
        hints = [*(error.hint or "").splitlines(), f"End it: cloudrl down {name}"]
        raise type(error)(f"{error.message}; cluster {name} goes on{price}", hint="\n".join(hints)) from error
    except KeyboardInterrupt:
        over = ended(home, name)
        raise Interrupted(
            f"interrupted; cluster {name} has ended"
            if over
            else f"interrupted; cluster {name} may not have ended{costs(home, name)}",
            hint=f"Look: cloudrl status {name}" + ("" if over else f"\nEnd it: cloudrl down {name}"),
        ) from None


def typed_again(words: Sequence[str]) -> str:
    """A command as it was typed, for a hint: without the values of secrets, which a screen and a log would keep."""
    from cloudrl.jobs.redaction import redact_words

    redacted = redact_words(words)
    shown = [
        word if _is_a_name(before, word) else instead
        for before, word, instead in zip(("", *words), words, redacted, strict=False)
    ]
    return f"cloudrl {shlex.join(shown)}"


def _is_a_name(before: str, word: str) -> bool:
    """Whether a word holds names of dstack's secrets, as our own options take them, and no value."""
    return before == "--secret" or word.startswith(("--secret=", "secrets="))


def costs(home: Provider, name: str) -> str:
    """What a cluster costs, as the end of a sentence: " and costs $12.30/h, $4.56 so far"; "" for nothing."""
    from cloudrl.cli._write_file import money

    try:
        look = home.status(name)
    except CloudrlError:  # what is said is worth more than its price
        return ""
    if not look.price_per_hour:
        return ""
    so_far = f", {money(look.cost)} so far" if look.cost is not None else ""
    return f" and costs {money(look.price_per_hour)}/h{so_far}"


def ended(home: Provider, name: str) -> str:
    """Why a cluster is over; "" while it is up, and where nobody can say."""
    try:
        look = home.status(name)
    except CloudrlError:
        return ""
    return (look.reason or look.phase) if look.is_over else ""
