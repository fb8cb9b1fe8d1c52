"""The data sets that have a name of their own. Standard library only."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudrl.data.request import is_hub_id, is_path
from cloudrl.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Dict, List, Optional

    from cloudrl.data.request import Request


@dataclass(frozen=True)
class BuiltIn:
    """One data set.

    Attributes:
        name: As `--data` takes it.
        module: Where its rows are made; it has `prepare(folder, ...)` and `DATA_SOURCE`.
        hub_id: Where the raw rows are from; None when they are generated.
        rows: How many there are, by split: of the Hub's two as their data cards say.
        reward: The reward function of ours that scores it, for `reward.custom_reward_function.path`; None where
            verl, or the fork that it is for, has one.
        whole: Whether it is all that its place on the Hub holds, so that the id alone means it, too.
    """

    name: str
    module: str
    hub_id: Optional[str]
    rows: Dict[str, int]
    reward: Optional[str] = None
    whole: bool = True

    def load(self) -> ModuleType:
        """Import its module."""
        return importlib.import_module(self.module)


_BUILT_IN = (
    BuiltIn(
        "addition",
        "cloudrl.data.addition",
        None,
        {"train": 2400, "test": 100},
        "pkg://cloudrl.verl_cpu.reward",
    ),
    BuiltIn("gsm8k", "cloudrl.data.gsm8k", "openai/gsm8k", {"train": 7473, "test": 1319}),
    BuiltIn("math", "cloudrl.data.math", "DigitalLearningGmbH/MATH-lighteval", {"train": 7500, "test": 5000}),
    BuiltIn(  # scored by Search-R1's fork of verl itself
        "nq_search",
        "cloudrl.data.nq_search",
        "RUC-NLPIR/FlashRAG_datasets",
        {"train": 79168, "test": 3610},
        whole=False,
    ),
)
BUILT_IN = {each.name: each for each in _BUILT_IN}


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
