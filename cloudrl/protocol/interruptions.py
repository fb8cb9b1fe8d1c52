"""A cloud's notice that it takes a machine back, as a node reports it and as a person reads it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Mapping, Optional

from cloudrl.units import duration_text

SWITCH = "CLOUDRL_SPOT_NOTICES"
"""Set to `off` in the environment of a cluster: no node asks its cloud for notices."""


@dataclass(frozen=True)
class Interruption:
    """One notice; notices are best effort, and machines go without one, too.

    Attributes:
        cloud: "AWS", "GCP" or "Azure".
        event: "spot", "maintenance", "reboot", "redeploy" or "terminate".
        ends_at: seconds since the epoch; from then on the machine may be gone. As its cloud tells it by the cloud's
            clock, in a node's own report by the node's, and on rank 0 by that of rank 0.
    """

    cloud: str
    event: str
    ends_at: float

    @property
    def name(self) -> str:
        """For example `spot notice of AWS`."""
        return f"{self.event} notice of {self.cloud}"

    def explains_loss(self, now: float) -> bool:
        """Whether it has ended a machine that is lost now, in seconds since the epoch: what comes later has not."""
        return self.event == "spot" or now >= self.ends_at - _SOON_S

    def moved(self, seconds: float, before: Optional[Interruption]) -> Interruption:
        """The same by a clock that is ahead by so much; `before` if that is it, as far as two looks at clocks agree."""
        notice = replace(self, ends_at=self.ends_at + seconds)
        if before is None or before.name != notice.name or abs(before.ends_at - notice.ends_at) > _SAME_S:
            return notice
        return before


_SAME_S = 5.0
_SOON_S = 60.0
"""A machine may be gone somewhat before its time: clocks differ."""


def loss_text(notice: Interruption, now: float) -> str:
    """How a node was lost that had a notice: `was taken back (spot notice of AWS)`.

    What is announced for later has not ended it: `was lost, with a maintenance notice of GCP for 12:40 UTC`.

    Args:
        notice: the last one of the node.
        now: seconds since the epoch.
    """
    if notice.explains_loss(now):
        return f"was taken back ({notice.name})"
    return f"was lost, with a {notice.name} for {time.strftime('%H:%M UTC', time.gmtime(notice.ends_at))}"


Notices = Mapping[int, Interruption]
"""Rank of a node -> its notice."""


def countdown_text(rank: int, notice: Interruption, now: float) -> str:
    """For a person: `node 1 is taken back in 1 min 50 s: spot notice of AWS`.

    Args:
        rank: of the node.
        notice: its notice.
        now: seconds since the epoch.
    """
    left_s = notice.ends_at - now
    when = f"in {duration_text(left_s)}" if left_s > 0 else "at any moment"
    return f"node {rank} is taken back {when}: {notice.name}"


def end_text(notices: Notices) -> str:
    """What ended an attempt, as far as notices tell: `AWS takes back node 1 (spot notice)`; "" without a notice."""
    return "; ".join(
        f"{notice.cloud} takes back node {rank} ({notice.event} notice)" for rank, notice in sorted(notices.items())
    )
