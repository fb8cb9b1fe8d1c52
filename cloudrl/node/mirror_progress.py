"""How far the mirror of each run is: its newest step, the one on its way, and what holds it up."""

from __future__ import annotations

from typing import Callable, Dict, Iterable, List, Mapping, Set, Tuple

from cloudrl.protocol.mirrors import MirroredSave, MirrorStatus, UploadState
from cloudrl.saves.mirrored import UploadPlan

_WARNING = "warning: "
_Key = Tuple[str, str]


class MirrorProgress:
    """Keeps the last word on each mirror, and says each warning once.

    Args:
        say: prints a line.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._told: Dict[str, str] = {}
        self._coming: Dict[_Key, MirrorStatus] = {}
        self._subjects: Dict[_Key, List[str]] = {}
        self._watched: Set[_Key] = set()

    def watch(self, runs: Iterable[_Key]) -> None:
        """The steps of these (mirror, run) are copied from now on."""
        self._watched.update(runs)

    def tell(self, subject: str, text: str) -> None:
        """A warning, once until it changes; "" takes it back."""
        if text and self._told.get(subject) != text:
            self._say(text)
        self._told[subject] = text

    def sending(self, mirror: str, run: str, plan: UploadPlan, states: Mapping[int, UploadState]) -> None:
        """A step is on its way.

        Args:
            mirror: its address.
            run: of the step.
            plan: what is copied.
            states: rank -> how far it is.
        """
        sizes = {order.rank: sum(file.size_bytes for file in order.files) for order in plan.orders}
        sent, rate = 0, 0.0
        for rank, state in states.items():
            sent += sizes[rank] if state.sums else min(state.copied_bytes, sizes[rank])
            rate += state.copied_bytes / state.seconds if state.seconds and not state.sums else 0.0
        size, key = sum(sizes.values()), (mirror, run)
        self._coming[key] = MirrorStatus(
            run, mirror, coming=plan.step, size_bytes=size, sent_bytes=sent, bytes_per_s=round(rate)
        )
        self._subjects[key] = [order_subject(order.rank, order.folder) for order in plan.orders]

    def is_sent(self, mirror: str, run: str) -> None:
        """Nothing is on its way any more."""
        self._coming.pop((mirror, run), None)
        self._subjects.pop((mirror, run), None)

    def statuses(self, saves: Mapping[_Key, Tuple[MirroredSave, ...]]) -> Tuple[MirrorStatus, ...]:
        """How far each mirror is.

        Args:
            saves: (mirror, run) -> what it had at the last look.
        """
        return tuple(self._status(key, saves.get(key, ())) for key in sorted(self._watched))

    def _status(self, key: _Key, saves: Tuple[MirroredSave, ...]) -> MirrorStatus:
        mirror, run = key
        status = self._coming.get(key, MirrorStatus(run, mirror))
        subjects = [mirror, *self._subjects.get(key, ())]
        errors = (self._told.get(subject, "") for subject in subjects)
        error = next((text[len(_WARNING) :] for text in errors if text), "")
        newest = max(saves, key=lambda save: save.step, default=None)
        step, at = (None, 0.0) if newest is None else (newest.step, newest.mirrored_at)
        return MirrorStatus(
            run, mirror, step, at, status.coming, status.size_bytes, status.sent_bytes, status.bytes_per_s, error
        )


def order_subject(rank: int, folder: str) -> str:
    """What warnings about the part of a node are about."""
    return f"{rank} {folder}"
