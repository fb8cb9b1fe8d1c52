"""Configurations of verl that work on two nodes of eight GPUs, for tests of its rules."""

from __future__ import annotations

from typing import Any

from cloudrl.jobs.findings import overrides_of
from cloudrl.spec.hydra import split_key
from cloudrl.verl import rules
from cloudrl.verl.composition import compose
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.release_files import source_of
from cloudrl.verl.releases import RELEASE
from cloudrl.verl.setting import Setting

A, R, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
WORKS = {
    "trainer.nnodes": 2, "trainer.n_gpus_per_node": 8, "data.train_batch_size": 256, f"{R}.n": 4, f"{R}.name": "vllm",
    f"{A}.ppo_mini_batch_size": 64, f"{A}.ppo_micro_batch_size_per_gpu": 4, f"{R}.tensor_model_parallel_size": 2,
    f"{R}.log_prob_micro_batch_size_per_gpu": 8, f"{REF}.log_prob_micro_batch_size_per_gpu": 8,
    "critic.ppo_micro_batch_size_per_gpu": 4,
}  # fmt: skip


def setting(*overrides: str, release: str = RELEASE.verl, gpus: int = 16, own_code: bool = False) -> Setting:
    given = [override for override in (f"{key}={value}" for key, value in WORKS.items())
             if override.partition("=")[0] not in {each.partition("=")[0] for each in overrides}]  # fmt: skip
    composed = compose(release, (*given, *overrides))
    assert composed.values is not None, (composed.problems, composed.untold)
    is_read = release in rules.READ_IN
    return Setting(composed.values, gpus, own_code, composed.base, source_of(release), is_read=is_read)


def problems(*overrides: str, **more: Any) -> tuple[Problem, ...]:
    return rules.problems(setting(*overrides, **more))


def with_hint(overrides: tuple[str, ...], problem: Problem) -> tuple[str, ...]:
    """The overrides with those of a hint in place of them, as `check --fix` applies it."""
    fix = overrides_of(problem.hint)
    settled = {problem.text.partition(":")[0].partition("=")[0], *(_bare(word) for word in fix)}
    kept = (each for each in overrides if _bare(each) not in settled)
    return (*kept, *(word for word in fix if not word.startswith("~")))


def _bare(override: str) -> str:
    return split_key(override.partition("=")[0])[1]
