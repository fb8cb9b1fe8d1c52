"""What to write in place of a key that a release of verl does not have.

History comes first: where verl has moved or removed the key, spelling says nothing. Then the place: a key without its
sections, or in the wrong one. Then spelling, and only towards a key that takes a value of that type and that the job
does not set already. For any other key there is no hint: it may be a fork's own.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from cloudrl.verl.key_history import change_of
from cloudrl.verl.keys import ACTOR, MODEL, REF, ROLLOUT

_SECTIONS = (
    f"{MODEL}.",
    f"{ACTOR}.",
    f"{ROLLOUT}.",
    f"{REF}.",
    "actor_rollout_ref.",
    "data.",
    "trainer.",
    "algorithm.",
)
"""In the order in which people mean them who write only the end of a key."""
_RARE = 4
"""A last name that so few keys have says where a key belongs; `enable` and `path` do not."""
FORK_HINT = (
    "Send that verl along: --working-dir FOLDER\n"
    "For another release, name it in the recipe, verl: RELEASE, and choose its image: --set verl=RELEASE"
)
_MANY = 3
"""So many keys of which verl knows nothing are not typed by accident."""


class Remedy(NamedTuple):
    """What became of a key, as the end of a sentence, and the hint.

    Attributes:
        text: such as `; moved in 0.8`, or "".
        hint: overrides, or a sentence; "" if nothing is known of the key.
        is_known: whether verl has, or once had, something of that name.
    """

    text: str = ""
    hint: str = ""
    is_known: bool = True


@dataclass(frozen=True)
class Known:
    """What is known of the configuration that a key is not in.

    Attributes:
        release: of verl.
        defaults: dotted key -> its default.
        job_sets: keys that the job sets.
        is_free: whether the section of a key takes any key, such as the arguments of an engine.
        is_built: whether verl makes an object of the section of a key, which takes no other keys.
        engine_with: the engine whose configuration has a key, if another one has it.
        is_own: whether it is that of a program, or a verl, of the user's.
    """

    release: str
    defaults: Mapping[str, Any]
    job_sets: Set[str]
    is_free: Callable[[str], bool]
    is_built: Callable[[str], bool]
    engine_with: Callable[[str], str | None]
    is_own: bool = False


def remedy(key: str, text: str, value: Any, known: Known) -> Remedy:
    """What to write in place of an override.

    Args:
        key: that the configuration does not have.
        text: its value as typed.
        value: the same as Hydra reads it.
        known: the configuration.
    """
    if (change := change_of(key, known.release, known.defaults.__contains__)) is not None:
        return _by_history(key, text, change.since, change, known)
    if key.endswith(".model_engine") or known.is_free(key):  # the choice of an engine, or the arguments of one
        instead = "model_engine" if key.endswith(".model_engine") else f"+{key}"
        return Remedy(hint=shlex.quote(f"{instead}={text}"))
    nearest = _by_place(key, known) or _by_spelling(key, value, known) or _by_sibling(key, value, known)
    if nearest is None and (engine := known.engine_with(key)) is not None:
        return Remedy(hint=f"The {engine} engine has it: model_engine={engine}")
    nearest = nearest or _by_last_name(key, value, known)
    if nearest is not None:
        return Remedy(hint=shlex.quote(f"{nearest}={text}"))
    if known.is_built(key):
        return Remedy(is_known=False)
    reads = "If its code reads the key" if known.is_own else "verl would ignore it; if your own code reads it"
    return Remedy(hint=f"{reads}: +{key}={text}", is_known=False)


def engine_problem(unknown: Sequence[str], known: Known) -> tuple[str, str, frozenset[str]] | None:
    """One message, its hint, and the keys, if several keys are those of an engine that the job does not choose."""
    engines = {key: known.engine_with(key) for key in unknown}
    for engine in dict.fromkeys(filter(None, engines.values())):
        keys = [key for key, found in engines.items() if found == engine]
        if len(keys) >= _MANY:
            text = (
                f"{len(keys)} keys ({', '.join(keys[:_MANY])}, ...) are of verl's {engine} engine, which is not chosen"
            )
            return text, f"model_engine={engine}", frozenset(keys)
    return None


def fork_problem(unknown: Sequence[str], release: str) -> tuple[str, str] | None:
    """One message, and its hint, for keys of which verl knows nothing, if they are several."""
    if len(unknown) < _MANY:
        return None
    listed = ", ".join(unknown[:_MANY]) + (", ..." if len(unknown) > _MANY else "")
    return f"{len(unknown)} keys ({listed}) are of a fork of verl, or of a release that is not {release}", FORK_HINT


def _by_history(key: str, text: str, since: str, change: Any, known: Known) -> Remedy:
    bare = change.key.lstrip("+")
    if not change.key:
        removed = f"; changed in verl {since}" if change.advice else f"; removed in verl {since}, leave it out"
        return Remedy(removed, change.advice or f"~{key}")
    if bare == key:
        return Remedy(hint=shlex.quote(f"{change.key}={change.value(text)}"))
    if bare in known.job_sets:
        return Remedy(f"; since verl {since} it is {bare}, which the job sets, too", f"~{key}")
    return Remedy(f"; since verl {since} it is {bare}", shlex.quote(f"{change.key}={change.value(text)}"))


def _by_place(key: str, known: Known) -> str | None:
    """The key whose names contain those of this one, in order: `model.lora_rank`, `actor_rollout_ref.actor.lr`."""
    names = key.split(".")
    found = [each for each in known.defaults if _is_part(names, each.split(".")) and each not in known.job_sets]
    return min(found, key=_rank, default=None)


def _is_part(names: Sequence[str], whole: Sequence[str]) -> bool:
    rest = iter(whole)
    return names[-1] == whole[-1] and all(name in rest for name in names)


def _rank(key: str) -> tuple[int, int]:
    at = next((index for index, section in enumerate(_SECTIONS) if key.startswith(section)), len(_SECTIONS))
    return at, key.count(".")


def _by_spelling(key: str, value: Any, known: Known) -> str | None:
    """The key beside it that is written most alike."""
    near = beside(key, known.defaults, 0.75)
    if near in known.job_sets:  # a recipe sets nearly all keys that are mistyped, so the likeness has to be greater
        near = beside(key, known.defaults, 0.85)
    return near if near is not None and _takes(near, value, known, is_set=near in known.job_sets) else None


def _by_sibling(key: str, value: Any, known: Known) -> str | None:
    """The key of that name in the section beside its own, such as `megatron` beside `fsdp_config`."""
    section, _, name = key.rpartition(".")
    same = [each for each in known.defaults if each.rpartition(".")[2] == name]
    above = f"{section.rpartition('.')[0]}."
    near = [each for each in same if each.startswith(above) and _takes(each, value, known)]
    return near[0] if len(same) <= 2 * _RARE and len(near) == 1 and section else None


def _by_last_name(key: str, value: Any, known: Known) -> str | None:
    """The key in another section that has the same last name, if few have it."""
    name = key.rpartition(".")[2]
    same = [each for each in known.defaults if each.rpartition(".")[2] == name]
    section = f"{key.partition('.')[0]}." if "." in key else "actor_rollout_ref."
    fitting = [each for each in same if _takes(each, value, known)]
    if len(same) <= _RARE and (inside := [each for each in fitting if each.startswith(section)]):
        return min(inside, key=_rank)
    alike = difflib.get_close_matches(key, fitting, 2, 0.8)
    return alike[0] if len(alike) == 1 else None


def beside(key: str, keys: Mapping[str, Any] | Sequence[str], cutoff: float) -> str | None:
    """The key beside it that is written most alike, at least so much; None where the key itself is there."""
    parent, _, name = key.rpartition(".")
    names = [each.rpartition(".")[2] for each in keys if each.rpartition(".")[0] == parent]
    alike = difflib.get_close_matches(name, [each for each in names if each != "_target_"], 1, cutoff)
    return None if not alike or name in names else f"{parent}.{alike[0]}" if parent else alike[0]


def _takes(key: str, value: Any, known: Known, *, is_set: bool = False) -> bool:
    """Whether a suggestion makes sense: the job does not set the key, and its default is of the value's type."""
    default = known.defaults[key]
    if key in known.job_sets and not is_set:
        return False
    if default is None or value is None or (isinstance(default, str) and "${" in default):
        return True
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, (int, float)):
        return isinstance(value, (int, float)) or "${" in str(value)
    if isinstance(default, str):  # several files may stand where one is the default
        return not isinstance(value, dict)
    return isinstance(value, type(default)) or "${" in str(value)
