"""Which data set a request means, and whether it can be one. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl.data.request import is_hub_id, is_path
from cloudrl.errors import InputError, did_you_mean
from cloudrl.protocol.data_sets import BUILT_IN

if TYPE_CHECKING:
    from typing import List, Optional

    from cloudrl.data.request import Request
    from cloudrl.protocol.data_sets import BuiltIn


def names() -> List[str]:
    """The names of the built-in data sets, sorted."""
    return sorted(BUILT_IN)


def built_in(request: Request) -> Optional[BuiltIn]:
    """The built-in data set that is meant: by its name, or by its Hub id with nothing else said."""
    if request.name in BUILT_IN:
        return BUILT_IN[request.name]
    if set(request.given) <= {"source"}:
        meant = (request.name, request.place)
        return next((each for each in BUILT_IN.values() if each.whole and each.hub_id in meant), None)
    return None


def check(request: Request) -> None:
    """Refuse what cannot be any data set, before anything is started for it.

    Raises:
        InputError: For a name that is neither built in nor a place, and for fields that a built-in does not have.
    """
    known = built_in(request)
    if known is not None:
        _check_fields(known, request)
    elif not (is_path(request.place) or is_hub_id(request.place)):
        raise InputError(
            f"there is no data set {request.place!r}{did_you_mean(request.place, names())}",
            hint=f"Known data sets: {', '.join(names())}; others by owner/name on the Hub or by path",
        )


def _check_fields(known: BuiltIn, request: Request) -> None:
    may = {"source"} if known.hub_id else set()
    wrong = [field for field in request.given if field not in may]
    if wrong:
        instead = f"name='my-{known.name}', source='{known.hub_id}', ..." if known.hub_id else "name=..., ..."
        raise InputError(
            f"{known.name} is built in and makes its own rows: it has no {', '.join(wrong)}",
            hint=f"Ask for other rows under another name: DataSet({instead})",
        )
