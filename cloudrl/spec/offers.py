"""Which machines dstack may take: the fields that a cluster and a fleet have in common.

Names, words and limits are dstack 0.22.5's (core/models/profiles.py, core/models/backends/base.py,
utils/tags.py); a test compares the lists.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

from pydantic import PlainValidator

from cloudrl.errors import SpecError
from cloudrl.spec.base import FrozenDict
from cloudrl.spec.durations import idle_duration
from cloudrl.spec.fields import one_line, one_of, optional, unique_list_of

BACKENDS = (
    "amddevcloud", "aws", "azure", "cloudrift", "crusoe", "cudo", "datacrunch", "daytona", "digitalocean",
    "dstack", "gcp", "hotaisle", "jarvislabs", "kubernetes", "lambda", "lium", "nebius", "oci", "remote",
    "runpod", "seeweb", "slurm", "tensordock", "vastai", "verda", "vultr",
)  # fmt: skip
SPOT_POLICIES = ("spot", "on-demand", "auto")
_TAG_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")
_TAG_VALUE = re.compile(r"[A-Za-z0-9 .:/=_+@-]{0,256}")

backend = one_of(BACKENDS, "a backend of dstack")


def identifier(value: object) -> str:
    """A name that a cloud gives: a region, a zone, an instance type, a reservation."""
    checked = one_line(value)
    if checked != checked.strip() or "," in checked:
        meant = [part.strip() for part in checked.split(",")]
        raise SpecError(f"{value!r} is not one name; did you mean {meant!r}?", hint="For example 'us-east-1'")
    return checked


def _dollars(what: str, hint: str) -> Callable[[object], float]:
    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            bare = value.strip(" $/h") if isinstance(value, str) else ""
            meant = f"; did you mean {bare}?" if re.fullmatch(r"[0-9]+(\.[0-9]+)?", bare) else ""
            raise SpecError(f"{value!r} is not {what}{meant}", hint=hint)
        return float(value)

    return check


_price = _dollars("a price", "US dollars an hour, for example 24.5")


def _tags(value: object) -> FrozenDict[str]:
    if not isinstance(value, Mapping):
        raise SpecError(f"{value!r} is not a mapping of tags to texts", hint="For example {'team': 'rl'}")
    for name, item in value.items():
        if not isinstance(name, str) or not _TAG_NAME.fullmatch(name):
            raise SpecError(f"{name!r} is not the name of a tag", hint="Up to 60 letters, digits, - and _")
        if not isinstance(item, str) or not _TAG_VALUE.fullmatch(item):
            meant = f"; did you mean {str(item)!r}?" if isinstance(item, (int, float)) else ""
            raise SpecError(
                f"tag {name!r}: {item!r} is not its value{meant}",
                hint="Up to 256 letters, digits, spaces and . : / = _ - + @",
            )
    return FrozenDict(value)


Backends = Annotated[Sequence[str], PlainValidator(unique_list_of(backend))]
Names = Annotated[Sequence[str], PlainValidator(unique_list_of(identifier))]
Reservation = Annotated[str | None, PlainValidator(optional(identifier))]
SpotPolicy = Annotated[str | None, PlainValidator(optional(one_of(SPOT_POLICIES, "a spot policy")))]
MaxPrice = Annotated[float | None, PlainValidator(optional(_price))]
MaxCost = Annotated[
    float | None, PlainValidator(optional(_dollars("a cost", "US dollars in all, for example 200")))
]
IdleDuration = Annotated[str | None, PlainValidator(optional(idle_duration))]
Tags = Annotated[Mapping[str, str], PlainValidator(_tags)]
