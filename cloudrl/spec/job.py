"""A training job as the user, or a recipe, declares it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import PlainValidator, model_validator

from cloudrl.errors import SpecError
from cloudrl.spec.base import FrozenDict, Spec
from cloudrl.spec.fields import (
    DataNamesOrFiles,
    Environment,
    Positive,
    Words,
    matching,
    model_name,
    optional,
    release,
    text,
)
from cloudrl.spec.gpu import Gpu
from cloudrl.spec.hydra import HydraText, hydra_text, override_key, parse_overrides, split_key, words_with_values
from cloudrl.spec.quoting import quoted
from cloudrl.spec.services import Services

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

MAIN = "verl.trainer.main_ppo"
"""The module that starts verl's trainer."""
DEVICE, ENGINE = "trainer.device", "actor_rollout_ref.rollout.name"
"""Keys of verl's configuration that a job itself looks at; all others are in `cloudrl.verl.keys`."""

_job_name = matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", "the name of a job", "Letters, digits, dots, dashes and _")


def _gpu(value: object) -> str:
    gpu = Gpu.parse(value)
    if gpu.count is None or gpu.count.exact is None:
        raise SpecError(
            f"{quoted(value)} leaves the number of GPUs of a node open",
            hint="A job is made for one, for example '80GB..:8'",
        )
    return str(gpu)


def _overrides(value: object) -> FrozenDict[HydraText]:
    if not isinstance(value, Mapping):
        raise SpecError(f"{quoted(value)} is not a mapping of keys to values", hint="For example {'trainer.nnodes': 2}")
    return _merged(FrozenDict(), value)


def merge_overrides(old: Mapping[str, T], new: Mapping[str, T]) -> dict[str, T]:
    """`old` with each key of `new` set in its place; a key keeps its `+` when the new one has no prefix.

    `~key` takes out what `old` sets; where that is nothing it is Hydra's own deletion.

    Raises:
        SpecError: a key is not an override key.
    """
    merged = dict(old)
    written = {split_key(key)[1]: key for key in merged}
    for key, value in new.items():
        prefix, bare = split_key(override_key(key))
        before = written.get(bare)
        if prefix == "~" and before is not None and not before.startswith("~"):
            del merged[before], written[bare]
            continue
        name = before if before is not None and not prefix and before.startswith("+") else key
        if before is not None and before != name:
            merged = {(name if present == before else present): item for present, item in merged.items()}
        merged[name] = value
        written[bare] = name
    return merged


def _merged(old: Mapping[str, HydraText], new: Mapping[str, Any]) -> FrozenDict[HydraText]:
    return FrozenDict(merge_overrides(old, {key: hydra_text(value) for key, value in new.items()}))


Overrides = Annotated[Mapping[str, Any], PlainValidator(_overrides)]
"""Key in verl's spelling, with `+`, `++` or `~` if Hydra needs it -> value, kept as Hydra text.

Python values are written in Hydra's grammar; `HydraText` is kept as it is. Order is kept.
"""


class Job(Spec):
    """One run of verl: its entry point, and overrides in verl's own keys. `cloudrl.recipe` gives one that is complete.

        job = cloudrl.Job(name="mine", overrides={"actor_rollout_ref.actor.optim.lr": 1e-6})
        print(job.with_overrides({"trainer.total_training_steps": 100}).overrides)

    Its fields are the keys of a recipe file: docs/fields.md.
    """

    name: Annotated[str, PlainValidator(_job_name)]
    """Letters, digits, dots, dashes and underscores; 1 to 100 characters."""
    summary: Annotated[str, PlainValidator(text)] = ""
    """What the job is, in one line."""
    source: Annotated[str, PlainValidator(text)] = ""
    """Where the numbers come from."""
    entrypoint: Words = ("python3", "-m", MAIN)
    """The command before its overrides."""
    overrides: Overrides = FrozenDict()
    """In verl's own keys."""
    env: Environment = FrozenDict()
    """Environment variables of the job."""
    data: DataNamesOrFiles = ()
    """Data sets of the cluster, or files of this machine that are sent along: `./questions.jsonl`."""
    model: Annotated[str | None, PlainValidator(optional(model_name))] = None
    """A model on the Hub, or one that nodes make: `tiny-adder`, trained on sums for 15 s, `tiny-searcher`, trained on
    conversations with a search for 15 s, or `tiny-qwen2`, with random weights."""
    verl: Annotated[str | None, PlainValidator(optional(release))] = None
    """The release of verl that the overrides are written for."""
    needs: Services = ()
    """Services that the job asks, as in `services` of a cluster. `run` starts a cluster that has them, `submit` refuses
    a cluster that does not."""
    device: Literal["gpu", "cpu"] = "gpu"
    """`gpu` or `cpu`."""
    nodes: Positive | None = None
    """How many nodes the numbers are made for. Default: any number."""
    gpu: Annotated[str | None, PlainValidator(optional(_gpu))] = None
    """The GPUs of each node that the numbers are made for, such as `80GB..:8`."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if not self.entrypoint:
            raise SpecError("entrypoint is empty", hint=f"Leave it out for python3 -m {MAIN}")
        wanted = self.override(DEVICE)
        if wanted is not None and (wanted == "cpu") != (self.device == "cpu"):
            raise SpecError(
                f"device is {quoted(self.device)} but {DEVICE} is {quoted(wanted)}",
                hint=f"Leave {DEVICE} out: it follows device",
            )
        if self.device == "cpu" and self.gpu is not None:
            raise SpecError(f"device is 'cpu' but gpu is {quoted(self.gpu)}", hint="Leave one of the two out")
        return self

    @property
    def rollout(self) -> str | None:
        """The rollout engine, as verl calls it; None where the job does not say."""
        engine = self.override(ENGINE)
        return None if engine is None or "${" in engine else engine.strip("'\"")

    def override(self, key: str) -> HydraText | None:
        """The value set for a key, given without prefix; None where the job leaves it to verl."""
        given = {**words_with_values(self.entrypoint), **self.overrides}
        return next((HydraText(text) for name, text in reversed(given.items()) if split_key(name)[1] == key), None)

    @property
    def values(self) -> dict[str, str]:
        """Bare key -> value without its quotes, of all overrides, also those among the words of `entrypoint`."""
        return {**parse_overrides(words_with_values(self.entrypoint)), **parse_overrides(self.overrides)}

    def with_overrides(self, overrides: Mapping[str, Any]) -> Self:
        """The same job with these overrides set; one without prefix keeps the `+` or `++` that stands there.

        `~key` takes out a key that the job sets.

        Raises:
            SpecError: A key is not an override key, or a value cannot be written for Hydra.
        """
        return self.replace(overrides=_merged(self.overrides, overrides))
