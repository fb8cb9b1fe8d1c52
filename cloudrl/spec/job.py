"""A training job as the user, or a recipe, declares it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import PlainValidator, model_validator
from typing_extensions import Self

from cloudrl.errors import SpecError
from cloudrl.spec.base import FrozenDict, Spec
from cloudrl.spec.fields import DataNames, Environment, Words, model_name, optional, text
from cloudrl.spec.hydra import HydraText, hydra_text, override_key, split_key
from cloudrl.spec.nearest import did_you_mean

DEVICES = ("gpu", "cpu")
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RELEASE = re.compile(r"[0-9]+\.[0-9]+(\.[0-9]+)?([a-z0-9.]+)?")


def _job_name(value: object) -> str:
    if isinstance(value, str) and _JOB_NAME.fullmatch(value):
        return value
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", str(value)).strip("-._")[:100]
    meant = f"; did you mean {slug!r}?" if _JOB_NAME.fullmatch(slug) else ""
    raise SpecError(f"{value!r} is not the name of a job{meant}", hint="Letters, digits, dots, dashes and _")


def _release(value: object) -> str:
    if isinstance(value, float):
        raise SpecError(f"{value!r} is a number; did you mean '{value}', in quotes?")
    if not isinstance(value, str) or not _RELEASE.fullmatch(value):
        raise SpecError(f"{value!r} is not a release of verl", hint="For example '0.9.1'")
    return value


def _device(value: object) -> str:
    if value not in DEVICES:
        raise SpecError(
            f"{value!r} is not a device{did_you_mean(str(value), DEVICES)}", hint="One of gpu, cpu"
        )
    return str(value)


def _overrides(value: object) -> FrozenDict[HydraText]:
    if not isinstance(value, Mapping):
        raise SpecError(
            f"{value!r} is not a mapping of keys to values", hint="For example {'trainer.nnodes': 2}"
        )
    return _merged(FrozenDict(), value)


def _merged(old: Mapping[str, HydraText], new: Mapping[str, Any]) -> FrozenDict[HydraText]:
    """`old` with each key of `new` set in its place; a key keeps its `+` when the new one has no prefix."""
    merged = dict(old)
    written = {split_key(key)[1]: key for key in merged}
    for key, value in new.items():
        prefix, bare = split_key(override_key(key))
        before = written.get(bare)
        name = before if before is not None and not prefix and before.startswith("+") else key
        if before is not None and before != name:
            merged = {(name if each == before else each): item for each, item in merged.items()}
        merged[name] = hydra_text(value)
        written[bare] = name
    return FrozenDict(merged)


class Job(Spec):
    """One run of verl: its entry point, and overrides in verl's own keys."""

    name: Annotated[str, PlainValidator(_job_name)]
    summary: Annotated[str, PlainValidator(text)] = ""
    source: Annotated[str, PlainValidator(text)] = ""
    """Where the numbers come from."""
    entrypoint: Words = ("python3", "-m", "verl.trainer.main_ppo")
    overrides: Annotated[Mapping[str, Any], PlainValidator(_overrides)] = FrozenDict()
    """Key in verl's spelling, with `+`, `++` or `~` if Hydra needs it -> value, kept as Hydra text.

    Python values are written in Hydra's grammar; `HydraText` is kept as it is. Order is kept.
    """
    env: Environment = FrozenDict()
    data: DataNames = ()
    model: Annotated[str | None, PlainValidator(optional(model_name))] = None
    verl: Annotated[str | None, PlainValidator(optional(_release))] = None
    """The release of verl that the overrides are written for."""
    device: Annotated[Literal["gpu", "cpu"], PlainValidator(_device)] = "gpu"

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if not self.entrypoint:
            raise SpecError("entrypoint is empty", hint="Leave it out for python3 -m verl.trainer.main_ppo")
        wanted = self.override("trainer.device")
        if wanted is not None and (wanted == "cpu") != (self.device == "cpu"):
            raise SpecError(
                f"device is {self.device!r} but trainer.device is {wanted!r}",
                hint="device: cpu goes with trainer.device=cpu; leave trainer.device out to follow device",
            )
        return self

    def override(self, key: str) -> HydraText | None:
        """The value set for a key, given without prefix; None where the job leaves it to verl."""
        return next((text for each, text in self.overrides.items() if split_key(each)[1] == key), None)

    def with_overrides(self, overrides: Mapping[str, Any]) -> Self:
        """The same job with these overrides set; one without prefix keeps the `+` or `++` that stands there.

        Raises:
            SpecError: A key is no override key, or a value cannot be written for Hydra.
        """
        return self.changed(overrides=_merged(self.overrides, overrides))
