"""What is asked for: one data set, as one `--data` argument carries it to a node, and whether it is built in.

A name alone is written as it is; with more to say it is the JSON text of `cloudrl.spec.DataSet`, whose fields
these are.
"""

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, List, Optional

from cloudrl.errors import InputError, did_you_mean
from cloudrl.protocol.data_sets import BUILT_IN, BuiltIn

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_PATH_STARTS = ("/", "~", "./", "../")


@dataclass(frozen=True)
class Request:
    """One data set. `cloudrl.spec.DataSet` says what each field means, and checks values with better messages."""

    name: str
    source: Optional[str] = None
    prompt_field: Optional[str] = None
    answer_field: Optional[str] = None
    system: Optional[str] = None
    config: Optional[str] = None
    split: Optional[str] = None
    test_split: Optional[str] = None
    test_rows: Optional[int] = None
    data_source: Optional[str] = None
    skip_bad: bool = False

    @property
    def explicit_fields(self) -> List[str]:
        """The fields other than the name whose value is not the default."""
        return [f.name for f in dataclasses.fields(self)[1:] if getattr(self, f.name) != f.default]

    @property
    def place(self) -> str:
        """Hub id or path of the raw rows; the name is one of these when there is no `source`."""
        return self.source or self.name


FIELDS = tuple(field.name for field in dataclasses.fields(Request))


def parse_request(text: str) -> Request:
    """Read a `--data` argument.

    Raises:
        InputError: It is not JSON of a data set. Whether a name is known is for `built_in` to say.
    """
    if not text.startswith("{"):
        if not text.strip():
            raise InputError(f"{text!r} is not a data set")
        return Request(text)
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InputError(f"{text[:80]!r} is not the JSON of a data set: {error}") from error
    for key, value in values.items():
        _check(key, value)
    if not values.get("name"):
        raise InputError(f"{text[:80]!r}: field 'name' is missing")
    return Request(**values)


def _check(key: str, value: Any) -> None:
    if key not in FIELDS:
        raise InputError(
            f"data set: unknown field {key!r}{did_you_mean(key, FIELDS)}", hint=f"Fields: {', '.join(FIELDS)}"
        )
    kind = {"test_rows": int, "skip_bad": bool}.get(key, str)
    if value is not None and type(value) is not kind:
        raise InputError(f"data set: {key} is {value!r}, which is not of type {kind.__name__}")


def built_in(request: Request) -> Optional[BuiltIn]:
    """The built-in data set that is meant: by its name, or by its Hub id with nothing else said.

    Raises:
        InputError: It is neither built in nor a place, or has fields that a built-in data set does not have.
    """
    data_set = BUILT_IN.get(request.name)
    if data_set is None and set(request.explicit_fields) <= {"source"}:
        meant = (request.name, request.place)
        data_set = next(
            (built_in for built_in in BUILT_IN.values() if built_in.owns_hub_id and built_in.hub_id in meant), None
        )
    if data_set is None:
        if not (is_path(request.place) or is_hub_id(request.place)):
            names = ", ".join(BUILT_IN)
            raise InputError(
                f"there is no data set {request.place!r}{did_you_mean(request.place, BUILT_IN)}",
                hint=f"Known data sets: {names}; others by owner/name on the Hub or by path",
            )
        return None
    wrong = [field for field in request.explicit_fields if field != "source" or data_set.hub_id is None]
    if wrong:
        instead = f"name='my-{data_set.name}', source='{data_set.hub_id}', ..." if data_set.hub_id else "name=..., ..."
        raise InputError(
            f"{data_set.name} is built in and makes its own rows: it has no {', '.join(wrong)}",
            hint=f"Ask for other rows under another name: DataSet({instead})",
        )
    return data_set


def is_path(place: str) -> bool:
    """Whether this names a file or folder, rather than something on the Hub."""
    return place.startswith(_PATH_STARTS)


def is_hub_id(place: str) -> bool:
    """Whether this reads `owner/name`."""
    return bool(_HUB_ID.fullmatch(place))


def folder_name(name: str) -> str:
    """The folder for a data set of this name: one path component, different for each name.

    `owner/name` gives `owner--name`, which cannot be a name on the Hub; of a path it is the stem and a digest.
    """
    if _SAFE.fullmatch(name):
        return name
    if is_hub_id(name):
        return name.replace("/", "--")
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", PurePosixPath(name).stem).strip("-") or "data"
    return f"{stem}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
