"""When dstack starts a run, starts it again and ends it. Field names and words are dstack 0.22.5's.

Source: core/models/profiles.py (ProfileRetry, UtilizationPolicy, Schedule).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import PlainValidator

from cloudrl.errors import SpecError
from cloudrl.spec.base import Spec
from cloudrl.spec.durations import Duration, some_time
from cloudrl.spec.fields import one_line, one_of, unique_list_of, whole_number

RETRY_EVENTS = ("no-capacity", "interruption", "error")
_MIN_WINDOW = Duration.parse("5m")

_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CRON_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 6, _WEEKDAYS),
)
_CRON_HINT = "Minute, hour, day, month, day of the week in UTC: '0 8 * * mon-fri'"


def _events(value: object) -> tuple[str, ...]:
    events = unique_list_of(one_of(RETRY_EVENTS, "an event"))(value)
    if not events:
        raise SpecError("on_events is empty", hint=f"Some of {', '.join(RETRY_EVENTS)}, or retry=False")
    return events


class Retry(Spec):
    """dstack's `retry`: on which events a run is started again on all nodes, and for how long it is tried.

    The duration is always said: dstack's own is one hour, after which a run without a replacement is over.
    """

    on_events: Annotated[Sequence[str], PlainValidator(_events)] = RETRY_EVENTS
    duration: Annotated[str, PlainValidator(some_time)] = "1d"

    @classmethod
    def parse(cls, value: object) -> Retry | Literal[False]:
        """Read a duration such as `1d`, a mapping with dstack's fields, or False for no retry.

        Raises:
            SpecError: `value` is none of these; True, which would leave the duration to dstack.
        """
        if isinstance(value, Retry) or value is False:
            return value
        if value is True or value is None:
            raise SpecError(
                f"{value!r} does not say for how long; did you mean '1d'?", hint="A duration, or False"
            )
        return cls(duration=value) if isinstance(value, (str, int)) else cls.load(value)  # type: ignore[arg-type]


def _window(value: object) -> str:
    written = some_time(value)
    if Duration.parse(written) < _MIN_WINDOW:
        raise SpecError(
            f"{value!r} is shorter than {_MIN_WINDOW}; did you mean '{_MIN_WINDOW}'?",
            hint="dstack keeps an hour of samples: from '5m' to '1h'",
        )
    return written


class UtilizationPolicy(Spec):
    """dstack's `utilization_policy`: a run ends when any GPU was below this for the whole time window."""

    min_gpu_utilization: Annotated[int, PlainValidator(whole_number(0, 100, "a percentage"))]
    time_window: Annotated[str, PlainValidator(_window)]


def _crons(value: object) -> tuple[str, ...]:
    crons = unique_list_of(cron)([value] if isinstance(value, str) else value)
    if not crons:
        raise SpecError("cron is empty", hint=_CRON_HINT)
    return crons


def cron(value: object) -> str:
    """A cron expression of five fields, as dstack's scheduler reads it.

    Source: APScheduler 3.11, triggers/cron/expressions.py. It counts days of the week from Monday = 0, where
    cron counts from Sunday; so numbers are refused there and names taken.

    Raises:
        SpecError: it has not five fields, or one of them is out of range.
    """
    written = one_line(value).strip()
    parts = written.split()
    if len(parts) != len(_CRON_FIELDS):
        raise SpecError(f"{value!r} has {len(parts)} fields where cron has 5", hint=_CRON_HINT)
    for part, (what, low, high, names) in zip(parts, _CRON_FIELDS, strict=True):
        for item in part.split(","):
            if not _is_cron_item(item, low, high, names):
                raise SpecError(
                    f"{value!r}: {item!r} cannot be the {what}{_day_name(item, what)}", hint=_CRON_HINT
                )
    return " ".join(parts)


def _is_cron_item(item: str, low: int, high: int, names: tuple[str, ...]) -> bool:
    head, slash, step = item.partition("/")
    bounds = [str(low), str(high)] if head == "*" else head.lower().split("-")
    numbers = [_cron_number(bound, low, names if head != "*" else ()) for bound in bounds]
    if len(bounds) > 2 or any(number is None or not low <= number <= high for number in numbers):
        return False
    first, last = numbers[0] or 0, numbers[-1] or 0
    if not slash:
        return first <= last
    # APScheduler has steps of `*` and of a range of numbers only
    by_numbers = len(bounds) == 2 and not {*bounds} & {*names}
    return by_numbers and bool(re.fullmatch(r"[0-9]{1,2}", step)) and 1 <= int(step) <= last - first


def _cron_number(bound: str, low: int, names: tuple[str, ...]) -> int | None:
    if bound in names:
        return names.index(bound) + low
    if names == _WEEKDAYS:
        return None
    return int(bound) if re.fullmatch(r"[0-9]{1,2}", bound) else None


def _day_name(item: str, what: str) -> str:
    """0 and 7 are Sunday in cron, Monday and nothing in APScheduler."""
    if what != "day of the week" or not re.fullmatch(r"[0-7](-[0-7])?", item):
        return ""
    return f"; did you mean {'-'.join(_WEEKDAYS[(int(day) - 1) % 7] for day in item.split('-'))!r}?"


class Schedule(Spec):
    """dstack's `schedule`: when the run is started, in UTC."""

    cron: Annotated[Sequence[str], PlainValidator(_crons)]

    @classmethod
    def parse(cls, value: object) -> Schedule:
        """Read a cron expression, several of them, or a mapping with `cron`.

        Raises:
            SpecError: `value` is none of these.
        """
        if isinstance(value, Schedule):
            return value
        return cls.load(value if not isinstance(value, (str, list, tuple)) else {"cron": value})  # type: ignore[arg-type]
