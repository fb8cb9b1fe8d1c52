"""The cluster of a command that names none: one's only cluster, or the newest, where that cannot do harm.

Every command chooses by these rules and says so in these words:

    one cluster is up                 that one
    several are up                    the newest, with a notice, if the command only reads; otherwise an error
    none is up, some are down         the same among those, if the command reads what a cluster has kept
    none                              an error

A command that ends something also asks for a name where a provider does not answer: it may have another cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING

from cloudrl.errors import CloudrlError, InputError
from cloudrl.protocol.progress import Notice
from cloudrl.providers import registry
from cloudrl.sdk.callbacks import OnProgress, silent

if TYPE_CHECKING:
    from cloudrl.providers.model import Status

START_HINT = "Start one: cloudrl up --nodes 2"
ANY_RAY_HINT = "Or use any Ray cluster: --address http://localhost:8265"
KEPT_FOLDER_HINT = "Or read a folder of checkpoints: --from DIR"


class Purpose(Enum):
    """What a command does with a cluster."""

    ASK = auto()
    """It reads what a cluster that is up answers."""
    CHANGE = auto()
    """It sends something to a cluster that is up."""
    READ_KEPT = auto()
    """It reads what a cluster has kept, up or down."""
    END = auto()
    """It ends or removes something of a cluster, up or down."""

    @property
    def takes_newest(self) -> bool:
        """Whether the newest of several will do: nothing is sent, ended or removed by guesswork."""
        return self in (Purpose.ASK, Purpose.READ_KEPT)

    @property
    def takes_down(self) -> bool:
        """Whether a cluster that is down will do if none is up."""
        return self in (Purpose.READ_KEPT, Purpose.END)


def choose_cluster(purpose: Purpose, *, otherwise: str = "", on_progress: OnProgress = silent) -> str:
    """The name of the cluster that a command means; with its provider if two have one of that name.

    Args:
        purpose: what the command does with it.
        otherwise: a hint: what the command takes in place of a cluster.
        on_progress: receives which of several clusters it is, and that it is down.

    Raises:
        InputError: there is no cluster for the purpose, or there are several to choose from; where it is to end
            something, also if a provider could not be asked.
        CloudrlError: a provider could not be asked, and the others have no cluster.
    """
    found = registry.find()
    up, down = found.running, tuple(cluster for cluster in found.clusters if cluster.is_over)
    candidates = up or (down if purpose.takes_down else ())
    if not candidates:
        if found.errors:
            raise next(iter(found.errors.values()))
        raise _nothing(down, otherwise)
    names = registry.names_in_use(candidates)
    name = names[0] if len(names) == 1 else _newest(candidates, names) if purpose.takes_newest else None
    if found.errors and purpose is Purpose.END:
        raise _unsure(names[0], found.errors)
    if name is None:
        raise InputError(f"there are several clusters: {', '.join(names)}", hint=f"Choose one: --cluster {names[0]}")
    if len(names) > 1:
        other = next(each for each in names if each != name)
        on_progress(Notice(f"cluster {name}, the newest of {len(names)}", f"For another: --cluster {other}"))
    if not up and purpose is Purpose.READ_KEPT:
        on_progress(Notice(f"cluster {name} is down; this is what it has kept"))
    return name


def _newest(clusters: Sequence[Status], names: Sequence[str]) -> str | None:
    """The one that was started last; None if that is not known."""
    started = [cluster.started_at for cluster in clusters]
    times = [time for time in started if time is not None]
    if len(times) < len(started) or times.count(max(times)) > 1:
        return None
    return names[started.index(max(times))]


def _unsure(name: str, errors: Mapping[str, CloudrlError]) -> InputError:
    """What is to end is not guessed where a provider that does not answer may have another cluster."""
    asked, why = next(iter(errors.items()))
    return InputError(
        f"whether {name} is your only cluster is not known, as {asked} does not answer: {why.message}",
        hint=f"Choose one: --cluster {name}",
    )


def _nothing(down: Sequence[Status], otherwise: str) -> InputError:
    if not down:
        message = "there is no cluster"
    else:
        verb = "is" if len(down) == 1 else "are"
        message = f"no cluster is up; {', '.join(registry.names_in_use(down))} {verb} down"
    return InputError(message, hint="\n".join(filter(None, (START_HINT, otherwise))))
