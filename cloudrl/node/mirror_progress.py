"""How far the mirror of each run is: its newest step, the one on its way, and what holds it up."""

from __future__ import annotations

from typing import Callable, Collection, Dict, List, Mapping, Set, Tuple

from cloudrl.protocol.mirrors import MirroredSave, MirrorStatus, UploadOrder, UploadState
from cloudrl.saves.mirrored import UploadPlan
from cloudrl.units import duration_text, size_text

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
        self._failed: Dict[str, Tuple[str, int]] = {}
        """Subject -> the step of the last order that failed, and how many of its files were in the mirror."""
        self._coming: Dict[_Key, MirrorStatus] = {}
        self._orders: Dict[_Key, List[str]] = {}
        self._saves: Dict[_Key, Tuple[MirroredSave, ...]] = {}
        self._watched: Set[_Key] = set()

    def watch(self, keys: Collection[_Key]) -> None:
        """The steps of these (mirror, run) are copied; of others nothing is on its way any more."""
        for mirror, run in self._watched.difference(keys):
            self.is_sent(mirror, run)
            self._told.pop(run_subject(mirror, run), None)
        self._watched = self._watched.union(keys)

    def has(self, mirror: str, run: str, saves: Collection[MirroredSave]) -> None:
        """What a mirror has of a run that a resume may take."""
        self._saves[mirror, run] = tuple(saves)

    def tell(self, subject: str, text: str) -> None:
        """A warning, once until it changes; "" takes it back."""
        if text and self._told.get(subject) != text:
            self._say(text)
        self._told[subject] = text

    def no_answer(self, order: UploadOrder, error: Exception) -> None:
        """A node did not take its order."""
        self.tell(_silence(_subject(order)), f"{_WARNING}rank {order.rank} does not mirror: {error}")

    def answer(self, order: UploadOrder, state: UploadState) -> None:
        """How far a node is. An error stays until a file has arrived that was not there: the order is tried again."""
        subject = _subject(order)
        self.tell(_silence(subject), "")
        if state.error:
            self._failed[subject] = order.folder, state.files
            self.tell(subject, f"{_WARNING}{order.folder} of rank {order.rank} is not mirrored: {state.error}")
            return
        folder, files = self._failed.get(subject, ("", 0))
        if state.sums or state.files > (files if folder == order.folder else 0):
            self._failed.pop(subject, None)
            self.tell(subject, "")

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
        self._orders[key] = [_subject(order) for order in plan.orders]

    def is_sent(self, mirror: str, run: str, *arrived: MirroredSave) -> None:
        """Nothing is on its way any more; this has arrived."""
        self._saves[mirror, run] = (*self._saves.get((mirror, run), ()), *arrived)
        self._coming.pop((mirror, run), None)
        for subject in self._orders.pop((mirror, run), ()):
            self._failed.pop(subject, None)
            for told in (subject, _silence(subject)):
                self._told.pop(told, None)

    def statuses(self) -> Tuple[MirrorStatus, ...]:
        """How far the mirror of each run is."""
        return tuple(map(self._status, sorted(self._watched)))

    def _status(self, key: _Key) -> MirrorStatus:
        mirror, run = key
        status = self._coming.get(key, MirrorStatus(run, mirror))
        of_nodes = [told for subject in self._orders.get(key, ()) for told in (subject, _silence(subject))]
        subjects = (record_subject(mirror, run), run_subject(mirror, run), *of_nodes)
        errors = (self._told.get(subject, "") for subject in subjects)
        error = next((text[len(_WARNING) :] for text in errors if text), "")
        newest = max(self._saves.get(key, ()), key=lambda save: save.step, default=None)
        step, at = (None, 0.0) if newest is None else (newest.step, newest.mirrored_at)
        return MirrorStatus(
            run, mirror, step, at, status.coming, status.size_bytes, status.sent_bytes, status.bytes_per_s, error
        )


def run_subject(mirror: str, run: str) -> str:
    """What warnings about the mirror of a run are about."""
    return f"{mirror} {run}"


def record_subject(mirror: str, run: str) -> str:
    """What warnings about the record of its job are about."""
    return f"{mirror} {run} record"


def speed_text(save: MirroredSave) -> str:
    """How much was copied, in what time."""
    speed = f", {size_text(round(save.size_bytes / save.seconds))} a second" if save.seconds else ""
    return f"{size_text(save.size_bytes)} in {duration_text(save.seconds)}{speed}"


def _subject(order: UploadOrder) -> str:
    """What warnings about the part of a node are about, whichever step it is of."""
    return f"{run_subject(order.mirror, order.folder.rpartition('/')[0])} {order.rank}"


def _silence(subject: str) -> str:
    return f"{subject} silent"
