"""Algorithms as overlays: another advantage estimator or policy loss for any recipe.

One YAML file each in `algorithms/`, for what verl 0.9.1 offers (trainer/ppo/core_algos.py: AdvantageEstimator,
POLICY_LOSS_REGISTRY) and a recipe can switch to. Not here: `grpo_vectorized` and `rloo_vectorized`, the same
numbers by other code; `gdpo`, which needs a reward of several parts; `tir_optimal_token_baseline`, for several
turns; `dro`, for which verl names no coefficient; `bypass_mode`, which belongs to verl's rollout correction.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainValidator

from cloudrl.errors import SpecError, did_you_mean
from cloudrl.recipes.files import load, path_of, read_mapping
from cloudrl.spec import Job
from cloudrl.spec.base import FrozenDict, Spec
from cloudrl.spec.fields import Words, text
from cloudrl.spec.hydra import hydra_text, split_key
from cloudrl.spec.job import Overrides
from cloudrl.spec.yaml_core import dump_mapping

_FOLDER = Path(__file__).parent / "algorithms"
_ANSWERS = "actor_rollout_ref.rollout.n"

MAKES_AN_ALGORITHM = re.compile(
    r"algorithm\.(adv_estimator|norm_adv_by_std_in_grpo|use_kl_in_reward|filter_groups(\..+)?)"
    r"|actor_rollout_ref\.actor\.(policy_loss(\..+)?|loss_agg_mode|loss_scale_factor|clip_ratio(_low|_high|_c)?"
    r"|tau_pos|tau_neg|use_kl_loss|calculate_sum_pi_squared)"
    r"|critic\.enable"
)
"""Keys that say which algorithm it is. An overlay replaces them as a whole: what it does not set goes back to
verl's default. Coefficients and rates stay as the recipe has them."""

_OF_A_CRITIC = re.compile(r"critic(\..+)?|trainer\.critic_warmup")


class Algorithm(Spec):
    """What makes a recipe train by this algorithm, in verl's own keys."""

    name: Annotated[str, PlainValidator(text)]
    summary: Annotated[str, PlainValidator(text)]
    source: Annotated[str, PlainValidator(text)]
    verl: Annotated[str, PlainValidator(text)]
    """The release whose keys these are."""
    critic: bool = False
    """Whether it trains a critic. Without one, a recipe's keys for it are dropped."""
    answers: int | None = None
    """How many answers a prompt, where it compares them and the recipe has one; None where one is enough."""
    overrides: Overrides = FrozenDict()
    defaults: Overrides = FrozenDict()
    """Overrides for keys of which the recipe says nothing."""
    without: Words = ()
    """Keys of a recipe that do not go with it."""

    def apply(self, job: Job) -> Job:
        """The job, by this algorithm."""
        kept = {key: value for key, value in job.overrides.items() if not self._drops(split_key(key)[1])}
        present = {split_key(key)[1] for key in kept}
        defaults = {key: value for key, value in self.defaults.items() if split_key(key)[1] not in present}
        return job.replace(overrides=kept).with_overrides({**self.overrides, **self._group(job), **defaults})

    def _drops(self, key: str) -> bool:
        without_critic = not self.critic and _OF_A_CRITIC.fullmatch(key)
        return bool(MAKES_AN_ALGORITHM.fullmatch(key) or without_critic) or key in self.without

    def _group(self, job: Job) -> dict[str, Any]:
        alone = job.override(_ANSWERS) in (None, "1")
        return {_ANSWERS: self.answers} if self.answers is not None and alone else {}


def algorithms() -> list[str]:
    """The algorithms that a recipe can be switched to, in alphabetical order."""
    return sorted(path.stem for path in _FOLDER.glob("*.yml"))


def algorithm(name: str) -> Algorithm:
    """An algorithm by its name.

    Raises:
        SpecError: there is none of that name.
    """
    if name not in algorithms():
        raise SpecError(
            f"there is no algorithm {name!r}{did_you_mean(name, algorithms())}",
            hint=f"Algorithms: {', '.join(algorithms())}",
        )
    return Algorithm.load(_fields(name))


def _fields(name: str) -> dict[str, Any]:
    return read_mapping(_FOLDER / f"{name}.yml", name)


def with_algorithm(job: Job, name: str) -> Job:
    """The same job by another algorithm; its name, summary and source say so.

    Raises:
        SpecError: there is no algorithm of that name, or the job is written for another verl than its keys.
    """
    chosen = algorithm(name)
    if job.verl is not None and job.verl.split(".")[:2] != chosen.verl.split(".")[:2]:
        raise SpecError(
            f"algorithm {name!r} is written for verl {chosen.verl}, and recipe {job.name!r} for {job.verl}",
            hint=f"Give the overrides yourself; those for verl {chosen.verl}: cloudrl recipes show NAME "
            f"--algorithm {name}",
        )
    named = job.name if job.name.split("-")[0] == name else f"{job.name[:60]}-{name}"
    source = "; ".join(part for part in (job.source, f"{name}: {chosen.source}") if part)
    summary = f"{chosen.summary}; the rest as in {job.name}"
    return chosen.apply(job).replace(name=named, summary=summary, source=source)


def render_recipe(name_or_path: str | os.PathLike[str], algorithm: str | None = None) -> str:
    """A recipe's file with its comments; by another algorithm, a file that `load` reads as that job.

    Raises:
        SpecError: there is no such recipe or algorithm, or they do not go together.
    """
    path, shown = path_of(name_or_path), os.fspath(name_or_path)
    job = load(name_or_path)
    if algorithm is None:
        return path.read_text(encoding="utf-8")
    job = with_algorithm(job, algorithm)
    recipe, overlay = read_mapping(path, shown), _fields(algorithm)
    # A job holds Hydra's text; the values that it was made of stand in the two files.
    groups = (recipe.get("overrides", {}), overlay.get("overrides", {}), overlay.get("defaults", {}))
    values = [value for group in groups for value in group.values()] + [overlay.get("answers")]
    by_text = {hydra_text(value): value for value in values}
    head = f"# {shown} by the algorithm {algorithm}: {overlay['summary']}\n"
    overrides = {key: by_text[text] for key, text in job.overrides.items()}
    about = {"name": job.name, "summary": job.summary, "source": job.source}
    return head + dump_mapping({**recipe, **about, "overrides": overrides})
