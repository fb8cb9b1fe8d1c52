"""verl itself takes every recipe for it, by a fifth of the algorithms each, on the cluster that the recipe is made for.

CLOUDRL_SLOW=1 takes all of them.

The one for Search-R1's fork is in `test_search_r1.py`.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from planning import cluster, plan
from verl_forks import Script

from cloudrl import recipes
from cloudrl.jobs import SubmitOptions
from cloudrl.spec import Gpu, Job
from cloudrl.verl.releases import RELEASE
from cloudrl.verl_cpu.tiny_model import make_tiny_model

pytestmark = pytest.mark.verl

NAMES = [name for name in recipes.names() if recipes.load(name).verl == RELEASE.verl]
PROBE = Path(__file__).parent / "probes" / "config.py"
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
MISSPELT = {
    "data.train_batchsize": ("8", "Could not override 'data.train_batchsize'"),
    "critic.model.fsdp_config.param_offload": ("True", "Could not override 'critic.model.fsdp_config.param_offload'"),
    f"{ACTOR}.loss_agg_mode": ("token", "Invalid loss_agg_mode: token"),
    f"{ACTOR}.policy_loss.loss_mode": ("gsp", "Unsupported loss mode: gsp"),
    "algorithm.adv_estimator": ("grop", "Unknown advantage estimator simply: grop"),
    f"{ACTOR}.ppo_mini_batch_size": ("2048", "train_batch_size (256) must be >= actor.ppo_mini_batch_size (2048)"),
}
"""Wrong override of `ppo` -> its value, what verl says."""


def algorithms_of(name: str) -> list[str]:
    """By turns, so that each algorithm meets a fifth of the recipes."""
    every = 1 if os.environ.get("CLOUDRL_SLOW") == "1" else 5
    start = NAMES.index(name)
    return [algorithm for place, algorithm in enumerate(recipes.algorithms()) if (start + place) % every == 0]


def words(job: Job, model: str, nodes: int | None = None) -> list[str]:
    """The overrides that are sent to the cluster that the job is made for, or to one of so many nodes."""
    gpus = Gpu.parse(job.gpu).count if job.gpu else None
    data = {name: {part: f"/data/{name}/{part}.parquet" for part in ("train", "test")} for name in job.data}
    shape = cluster(
        nodes=nodes or job.nodes or 2,
        gpus_per_node=gpus.exact or 0 if gpus else 1,
        device=job.device,
        data=data,
        models={job.model or "": model},
    )
    return list(plan(job, shape, SubmitOptions(name="run")).argv[3:])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def answers(model) -> dict[str, Any]:
    """What verl makes of all of them, in one process of its own: importing it takes several seconds."""
    cases = {}
    for name in NAMES:
        job = recipes.load(name)
        cases[name] = words(job, model)
        cases |= {f"{name} {each}": words(recipes.with_algorithm(job, each), model) for each in algorithms_of(name)}
        cases |= {
            f"on {nodes} {name}": words(job, model, nodes)
            for nodes in (1, 4)
            if job.device == "cpu" and nodes >= (job.nodes or 1)
        }
    for key, (value, _) in MISSPELT.items():
        cases[f"wrong {key}"] = [*words(recipes.load("ppo"), model), f"{key}={value}"]
    found: dict[str, Any] = json.loads(Script(PROBE, given=json.dumps(cases)).end()[-1])
    return found


@pytest.fixture(scope="module")
def taken(answers) -> dict[str, dict[str, Any]]:
    """Case -> what verl understood, for those that it should take."""
    return {case: found for case, found in answers["cases"].items() if case.split()[0] in NAMES}


def test_the_probe_composes_as_hydra_does(answers):
    assert answers["same as compose"]


def test_verl_takes_recipes_by_algorithms(taken):
    assert len(taken) == len(NAMES) + sum(len(algorithms_of(name)) for name in NAMES)
    assert {case.partition(" ")[2] for case in taken} == {"", *recipes.algorithms()}
    assert {case: found["error"] for case, found in taken.items() if "error" in found} == {}


def test_verl_refuses_what_is_misspelt(answers):
    for key, (_, said) in MISSPELT.items():
        assert said in answers["cases"][f"wrong {key}"]["error"]


def test_an_algorithm_is_the_one_that_verl_runs(taken):
    for case, found in taken.items():
        name, _, algorithm = case.partition(" ")
        wanted = recipes.with_algorithm(recipes.load(name), algorithm) if algorithm else recipes.load(name)
        assert found["algorithm.adv_estimator"] == wanted.override("algorithm.adv_estimator")
        mode = wanted.override(f"{ACTOR}.policy_loss.loss_mode")
        assert found[f"{ACTOR}.policy_loss.loss_mode"] == (mode or "vanilla")
        assert found[f"{ROLLOUT}.name"] == recipes.load(name).rollout


def test_a_critic_is_built_for_ppo_alone_and_from_the_actors_model(taken, model):
    for case, found in taken.items():
        name, _, algorithm = case.partition(" ")
        estimator = recipes.load(name).override("algorithm.adv_estimator")
        assert found["critic"] == (algorithm == "ppo" or (not algorithm and estimator == "gae")), case
        if found["critic"]:
            assert found["critic.model.path"] == model


def test_every_algorithm_learns_something(taken):
    for case, found in taken.items():
        assert found["finite"], case
        assert found["advantage"] > 0.1, case
        assert found["gradient"] > 1e-4, case


def test_answers_come_in_groups_where_they_are_compared(taken):
    for case, found in taken.items():
        algorithm = case.partition(" ")[2]
        if algorithm and recipes.algorithm(algorithm).answers:
            assert found[f"{ROLLOUT}.n"] > 1, case


def test_batches_and_replicas_fit_the_cluster(taken):
    """verl 0.9.1: workers/engine_workers.py and workers/engine/utils.py, which would find it minutes into a run."""
    for case, found in taken.items():
        gpus = found["trainer.nnodes"] * found["trainer.n_gpus_per_node"]
        answers = found["data.train_batch_size"] * found[f"{ROLLOUT}.n"]
        update = found[f"{ACTOR}.ppo_mini_batch_size"] * found[f"{ROLLOUT}.n"]
        assert gpus % found[f"{ROLLOUT}.tensor_model_parallel_size"] == 0, case
        assert answers % gpus == update % gpus == answers % update == 0, case
        assert found[f"{ACTOR}.use_dynamic_bsz"] == found[f"{ROLLOUT}.log_prob_use_dynamic_bsz"], case
        if not found["trainer.use_v1"]:
            assert answers % found[f"{ROLLOUT}.agent.num_workers"] == 0, case
        if found[f"{ACTOR}.use_dynamic_bsz"]:
            continue
        assert update // gpus % found[f"{ACTOR}.ppo_micro_batch_size_per_gpu"] == 0, case
        assert answers // gpus % found[f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"] == 0, case
        if found["critic"]:
            assert update // gpus % found["critic.ppo_micro_batch_size_per_gpu"] == 0, case
        if found["reference"]:
            each = found["actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"]
            assert answers // gpus % each == 0, case


def test_a_run_that_can_be_resumed(taken):
    assert all(found["trainer.save_freq"] >= 1 for found in taken.values())


@pytest.mark.parametrize("case", [f"{on}{name}" for on in ("", "on 1 ", "on 4 ") for name in ("grpo-tiny", "ppo-tiny")])
def test_a_recipe_for_cpus_names_what_is_there_and_saves_half_way_and_at_the_end(answers, case):
    found = answers["cases"][case]
    assert "error" not in found, found
    assert found["trainer.device"] == "cpu"
    assert found["sampler"] == "cloudrl.verl_cpu.replay"
    assert found["score of a right answer"] == 1.0
    assert found["trainer.total_training_steps"] == 2 * found["trainer.save_freq"]
