"""Which architectures a rollout engine has classes for, by its release: `engine_classes.json`, read from their wheels.

A class that is missing is not the end: both engines then try the implementation in transformers, which has to be made
for them (vLLM 0.24, model_executor/models/registry.py: _try_resolve_transformers; SGLang 0.5,
srt/model_loader/utils.py: resolve_transformers_arch). Whether it is, only the engine finds out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cloudrl.foreign import parse_object
from cloudrl.verl.keys import MODEL, ROLLOUT
from cloudrl.verl.model_config import ModelConfig
from cloudrl.verl.releases import RELEASES
from cloudrl.verl.setting import Setting

_TABLE = Path(__file__).with_suffix(".json")
_NAMES = {"vllm": "vLLM", "sglang": "SGLang"}
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_LANGUAGE, _WHOLE = "ForCausalLM", "ForConditionalGeneration"
_UNSET = "???"
"""What Hydra has for a value that has to be given; without an engine verl refuses the job."""
_CODE, _TRUST = "auto_map", f"{MODEL}.trust_remote_code"


@dataclass(frozen=True)
class EngineClasses:
    """What one release of an engine has.

    Attributes:
        engine, version: `vllm`, `0.24.0`.
        classes: that generate text.
        removed: class -> the last release that had it.
    """

    engine: str
    version: str
    classes: frozenset[str]
    removed: Mapping[str, str]

    def __str__(self) -> str:
        return f"{_NAMES[self.engine]} {self.version}"

    def serves(self, model: ModelConfig) -> bool:
        """Whether it has the class that config.json names; of a model of the table, that of the whole model counts."""
        whole = model.architecture.replace(_LANGUAGE, _WHOLE) if model.is_of_table else model.architecture
        return bool(self.classes & {model.architecture, whole})


@functools.cache
def known_engines() -> tuple[EngineClasses, ...]:
    """All that were read."""
    rows = parse_object(_TABLE.read_bytes())["engines"]
    return tuple(
        EngineClasses(row["engine"], row["version"], frozenset(row["classes"]), row["removed"]) for row in rows
    )


def engine_of(name: str, version: str) -> EngineClasses | None:
    """What a release has; None if it was not read. `0.24.0.dev2+cu130` is 0.24.0."""
    number = _NUMBER.match(version)
    return next((each for each in known_engines() if number and (each.engine, each.version) == (name, number[0])), None)


def unserved(setting: Setting, model: ModelConfig, version: str, verl: str | None) -> Iterator[str]:
    """What the user should know before paying, where the engine of the rollout has no class for the model.

    Args:
        setting: the configuration.
        model: of the actor.
        version: of the engine on the nodes.
        verl: its release, whose other image may have another engine.
    """
    engine = engine_of(str(setting.get(f"{ROLLOUT}.name")), version)
    if engine is None or not model.architecture or engine.serves(model):
        return
    text = f"{engine} has no class {model.architecture}, which config.json of {model.name} names"
    if last := engine.removed.get(model.architecture):
        text += f" (vLLM had it until {last})"
    text += (
        ": it tries the implementation in transformers, and where that is not made for it, the job ends minutes later"
    )
    yield f"{text}. {' '.join(_remedies(setting, model, engine, verl))}"


def unread(setting: Setting, model: ModelConfig, version: str | None) -> str:
    """Why it is not known whether the engine has a class for the model; "" where it is, or where all releases have."""
    name = str(setting.get(f"{ROLLOUT}.name") or _UNSET)
    alike = [each for each in known_engines() if each.engine == name]
    if name == _UNSET or not model.architecture or (alike and all(each.serves(model) for each in alike)):
        return ""
    if version is not None and engine_of(name, version) is not None:
        return ""
    why = "its classes were not read"
    if alike:
        why = f"its release {version} was not read" if version else "its release is unknown"
    return f"whether {_NAMES.get(name, name)} has {model.architecture} ({why})"


def _remedies(setting: Setting, model: ModelConfig, engine: EngineClasses, verl: str | None) -> Iterator[str]:
    if model.values.get(_CODE) and not setting.get(_TRUST):
        yield f"Its code comes with the model: {_TRUST}=True lets verl and the engine run it."
    others = (engine_of(row.rollout, row.rollout_version) for row in RELEASES if row.verl == verl)
    other = next((each for each in others if each and each.engine != engine.engine and each.serves(model)), None)
    if other is not None:
        yield f"{other} has it: {ROLLOUT}.name={other.engine}, on a cluster with --set rollout={other.engine}."
    yield (
        "Or take an image with a newer engine (--set image=...), or register the class in code of your own "
        "(--working-dir)."
    )
