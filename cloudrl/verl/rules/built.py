"""What verl's own code refuses while it builds its dataclasses: followed here by `Interpreter`.

The parts are built by verl's driver (utils/config.py: validate_config) and by workers (workers/engine_workers.py:
init_model; trainer/ppo/v1/trainer_base.py: _setup), alike in verl 0.7 to 0.9.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cloudrl.verl.keys import ACTOR, CRITIC, MODEL, REF, ROLLOUT
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.setting import MODE, Setting
from cloudrl.verl.source.interpreter import Interpreter
from cloudrl.verl.source.values import NotTold, RefusedByVerl, Section

_REFERENCE = {
    "log_prob_micro_batch_size": "ppo_micro_batch_size",
    "log_prob_micro_batch_size_per_gpu": "ppo_micro_batch_size_per_gpu",
    "log_prob_use_dynamic_bsz": "use_dynamic_bsz",
    "log_prob_max_token_len_per_gpu": "ppo_max_token_len_per_gpu",
}
"""workers/engine_workers.py: init_model, of a reference."""

_NO_KEYS = {"py", "rollout", "actor", "ref", "model", "n"}


def what_verl_builds(setting: Setting, known: Sequence[Problem]) -> Iterator[Problem]:
    """What verl's own code raises, but for what `known` says already."""
    if setting.source is None:
        return
    told = [problem.text for problem in known]
    driver = setting.source.functions.get("validate_config", ("", ""))[1]
    is_driven = any(f"config.{key}" in driver for key in _keys(told))
    # the driver stops at a problem that is known
    yield from what_is_refused(setting, [*_parts(setting)][int(is_driven) :], told)


def what_is_refused(
    setting: Setting, builds: Sequence[Callable[[Interpreter], Any]], told: list[str]
) -> Iterator[Problem]:
    """What verl's own code raises while parts are built, but for what other findings say already.

    Args:
        setting: the configuration.
        builds: the parts, in the order in which verl builds them.
        told: texts of the other findings; those found here are added.
    """
    if setting.source is None:
        return
    for build in builds:
        try:
            build(Interpreter(setting.source))
        except RefusedByVerl as refusal:
            if not _is_told(refusal, told):
                problem = _problem(setting, refusal)
                told.append(problem.text)
                yield problem
        except NotTold:
            continue


def _parts(setting: Setting) -> Iterator[Callable[[Interpreter], Any]]:
    config = Section(setting.values)
    yield lambda code: code.run("validate_config", config, setting.uses_reference, setting.uses_critic)
    paths = [MODEL, ACTOR, ROLLOUT, f"{ROLLOUT}.checkpoint_engine"]
    if setting.uses_critic:
        paths.append(CRITIC)
    if setting.get("distillation.enabled"):
        paths.append("distillation")
    if setting.is_v1 and setting.get(MODE) == "separate_async":
        paths.append("trainer.v1.separate_async.hybrid_rollout")
    if setting.get("reward.reward_model.enable"):
        paths.append("reward.reward_model.rollout")
    for path in paths:
        if isinstance(values := setting.get(path), Mapping):
            yield functools.partial(build_section, values, path)
    if REF in setting.built and isinstance(values := setting.get(REF), Mapping):
        made = {_REFERENCE.get(str(key), str(key)): value for key, value in values.items()}
        made["ppo_mini_batch_size"] = setting.get(f"{ACTOR}.ppo_mini_batch_size")
        yield functools.partial(_build_reference, made)


def build_section(values: Mapping[str, Any], path: str, code: Interpreter) -> Any:
    """The dataclass of a section; raises `RefusedByVerl` as verl would."""
    return code.build(values, path)


def _build_reference(values: Mapping[str, Any], code: Interpreter) -> Any:
    try:
        return code.build(values, REF)
    except RefusedByVerl as refusal:  # in the words of its keys before they were renamed
        for old, new in _REFERENCE.items():
            refusal.text = re.sub(rf"(?:actor\.)?\b{new}\b", old, refusal.text)
            refusal.names |= {old} if new in refusal.names else set()
        raise


def _keys(told: Sequence[str]) -> set[str]:
    """Keys of the configuration in findings, dotted."""
    return set(re.findall(r"[a-z_]\w*(?:\.\w+)+", " ".join(told)))


def _is_told(refusal: RefusedByVerl, told: Sequence[str]) -> bool:
    """Whether another finding names a key that the refusal is about."""
    said = " ".join(told)
    about = {*refusal.names, *re.findall(r"\w+", refusal.text)}
    keys = {word.rpartition(".")[2] for word in _keys(told)} - _NO_KEYS
    alike = any(key in name or (name.count("_") > 1 and name in key) for key in keys if "_" in key for name in about)
    return alike or bool(keys & about) or refusal.text in said


def _problem(setting: Setting, refusal: RefusedByVerl) -> Problem:
    of_section = [f"{refusal.path}.{name}" for name in sorted(refusal.names) if refusal.path]
    of_driver = sorted(refusal.keys)  # keys by their full names
    given = _values(setting, of_section) or _values(setting, of_driver) or _odd(setting, [*of_section, *of_driver])
    said = ", ".join(f"{key}={_short(setting.get(key))}" for key in given[:4]) or refusal.path
    text = f"{said}: verl refuses it: {_one_line(refusal.text)}".removeprefix(": ")
    text += f" ({refusal.at})" if refusal.at else ""
    return Problem(text, _hint(setting, given[0], refusal.choices) if len(given) == 1 else "")


def _hint(setting: Setting, key: str, choices: Sequence[str]) -> str:
    value, default = setting.get(key), setting.default(key)
    if not choices or value is None:
        return f"{key}={default}" if default not in (value, None, "???") else ""
    similar = difflib.get_close_matches(_short(value).lower(), choices, 1)
    return f"{key}={similar[0]}" if similar else f"One of: {', '.join(choices)}"


def _values(setting: Setting, keys: Sequence[str]) -> list[str]:
    """Those that have a single value."""
    return [key for key in keys if not isinstance(setting.get(key), (Mapping, list, type(None)))]


def _odd(setting: Setting, keys: Sequence[str]) -> list[str]:
    """Those that are null, a list or a mapping, and would be a single value without overrides."""
    return [key for key in keys if setting.has(key) and setting.default(key) is not None]


def _short(value: object) -> str:
    return "null" if value is None else str(value)[:60]


def _one_line(text: str) -> str:
    return " ".join(text.replace("self.", "").split())[:300]
