"""`--async`, `--rollout-nodes`, and verl's controller on the head."""

from pathlib import Path
from typing import Any

import pytest
from planning import PATHS, PLAIN, cluster, job, planned

from cloudrl import recipes
from cloudrl.errors import InputError
from cloudrl.jobs import Submission
from cloudrl.jobs.findings import JobRefused, with_fix
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.spec import Job, parse_override
from cloudrl.spec.hydra import parse_overrides
from cloudrl.verl.keys import MAIN, ROLLOUT

PLACED = ("python3", "-m", "cloudrl_on_head", MAIN)
PLAIN_MAIN = ("python3", "-m", MAIN)
PIN = "transfer_queue.backend.SimpleStorage.required_node_resource"
UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
TINY = {"gpus_per_node": 1, "cpus_per_node": 8, "device": "cpu", "models": {"tiny-adder": "/models/tiny"},
        "data": {"addition": {"train": "/t.parquet", "test": "/v.parquet"}}}  # fmt: skip

GIVEN = {"data.train_files": "/t.parquet", "data.val_files": "/v.parquet", "actor_rollout_ref.model.path": "/m",
         "trainer.default_local_dir": "/c"}  # fmt: skip


DEBUGGED: dict[str, Any] = {"debug": "pdb"}


def rented(**changes: Any) -> ClusterFacts:
    return cluster(provider="dstack", **changes)


def values(sent: Submission) -> dict[str, str]:
    words = [word for word in sent.argv if "=" in word]
    return parse_overrides(dict(parse_override(word) for word in words))


def differences(before: Submission, after: Submission) -> dict[str, str]:
    old, new = values(before), values(after)
    return {key: value for key, value in new.items() if old.get(key) != value}


def test_async_changes_the_mode_and_weighs_old_tokens() -> None:
    assert differences(planned(), planned(asynchronous=True)) == {
        "trainer.v1.trainer_mode": "colocate_async",
        f"{ROLLOUT}.calculate_log_probs": "True",
        "algorithm.rollout_correction.rollout_is": "token",
        UNITS: "2",
    }


def test_rollout_nodes_divide_the_cluster() -> None:
    big = cluster(nodes=4)
    sent = planned(view=big, rollout_nodes=2)
    assert differences(planned(view=big), sent) == {
        "trainer.v1.trainer_mode": "separate_async",
        "trainer.nnodes": "2",
        f"{ROLLOUT}.nnodes": "2",
        f"{ROLLOUT}.n_gpus_per_node": "8",
        f"{ROLLOUT}.checkpoint_engine.backend": "nccl",
        "trainer.v1.separate_async.parameter_sync_step": "4",  # of verl's own 1024 and 256
        f"{ROLLOUT}.calculate_log_probs": "True",
        "algorithm.rollout_correction.rollout_is": "token",
        UNITS: "2",
    }
    assert any("imports cupy" in text for text in sent.warnings)


def test_what_the_user_types_wins() -> None:
    typed = {f"{ROLLOUT}.checkpoint_engine.backend": "mooncake", "data.train_batch_size": 512}
    sent = values(planned(view=cluster(nodes=4), rollout_nodes=2, overrides=typed))
    assert sent[f"{ROLLOUT}.checkpoint_engine.backend"] == "mooncake"
    assert sent["trainer.v1.separate_async.parameter_sync_step"] == "2"


def test_a_recipe_for_cpus_gets_an_engine_for_cpus() -> None:
    tiny = recipes.load("grpo-tiny")
    sent = planned(tiny, cluster(**TINY), rollout_nodes=1)
    said = values(sent)
    assert said[f"{ROLLOUT}.checkpoint_engine.backend"] == "gloo"
    assert said[f"{ROLLOUT}.checkpoint_engine.custom_backend_module"] == "cloudrl.verl_cpu.checkpoint_engine"
    assert said["trainer.v1.separate_async.parameter_sync_step"] == "1"
    assert not any("cupy" in text for text in sent.warnings)


@pytest.mark.parametrize(
    ("view", "options", "words", "hint"),
    [
        (cluster(nodes=1), {"rollout_nodes": 1}, "the cluster has 1 node, and training needs one", "--async"),
        (cluster(nodes=3), {"rollout_nodes": 3}, "at least one generates", "--rollout-nodes 1"),
        (cluster(), {"asynchronous": True, "overrides": {"trainer.v1.trainer_mode": "sync"}}, "both choose the mode",
         "~trainer.v1.trainer_mode"),
        (cluster(nodes=4), {"rollout_nodes": 2, "overrides": {"data.train_batch_size": 100}},
         "cannot be divided by actor_rollout_ref.actor.ppo_mini_batch_size=256",
         "actor_rollout_ref.actor.ppo_mini_batch_size=100"),
        (cluster(verl_version="0.8.0"), {"asynchronous": True}, "needs the trainer of verl 0.9", ""),
    ],
)  # fmt: skip
def test_what_cannot_be_so(view: ClusterFacts, options: dict[str, Any], words: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        planned(job(verl=view.verl_version), view=view, **options)
    told = f"{caught.value.message}\n{caught.value.hint}"
    assert words in told
    assert hint in told


def test_another_program_has_no_such_mode() -> None:
    own = job().replace(entrypoint=("python3", "train.py"))
    with pytest.raises(InputError, match=r"the job runs python3 train\.py"):
        planned(own, asynchronous=True)


def entrypoint(sent: Submission) -> tuple[str, ...]:
    return tuple(word for word in sent.argv if "=" not in word)


def test_the_controller_runs_where_a_resume_looks_for_its_files() -> None:
    sent = planned(view=rented())
    assert entrypoint(sent) == PLACED
    assert values(sent) == values(planned())


@pytest.mark.parametrize(
    ("job_", "view", "options"),
    [
        (job(), cluster(), {}),  # nodes of one machine
        (job(), rented(nodes=1), {}),
        (job(), rented(verl_version="0.8.0"), {}),
        (job(), cluster(**{**PLAIN, "verl_version": "0.9.1"}), {"overrides": GIVEN}),
        (job(), rented(), {"env": {"PYTHONPATH": "/mine"}}),
        (job(), rented(debuggers=(("pdb",),) * 2), {**DEBUGGED, "env": {"PYTHONPATH": "/mine"}}),
        (job(), rented(), {"runtime_env": {"image_uri": "docker.io/me/mine:1"}}),
        (job(), rented(places_controllers=False), {}),  # agents of an older release
        (job(), rented(), {"overrides": {"trainer.use_v1": False}}),
    ],
)  # fmt: skip
def test_elsewhere_the_command_is_verls_own(job_: Job, view: ClusterFacts, options: dict[str, Any]) -> None:
    assert entrypoint(planned(job_.replace(verl=view.verl_version), view, **options)) == PLAIN_MAIN


def test_the_queue_of_an_asynchronous_mode_is_stored_on_the_head() -> None:
    said = values(planned(view=rented(), asynchronous=True))
    assert (said[PIN], said[UNITS]) == ("node:__internal_head__", "2")
    typed = values(planned(view=rented(), overrides={"trainer.v1.trainer_mode": "colocate_async", UNITS: 3}))
    assert (typed[PIN], typed[UNITS]) == ("node:__internal_head__", "3")
    assert PIN not in values(planned(view=rented()))
    assert PIN not in values(planned(asynchronous=True))


@pytest.mark.parametrize("cpus", [0, 28, 100])
def test_a_resume_on_another_cluster_finds_as_many_units(cpus: int) -> None:
    """Of a queue that is not on the head, too; TransferQueue refuses another number."""
    shared = rented(shared_checkpoints=True, cpus_per_node=cpus)
    options: dict[str, Any] = {"asynchronous": True, "env": {"PYTHONPATH": "/mine"}}
    assert values(planned(view=shared, **options))[UNITS] == "2"
    assert values(planned(view=shared, **options, overrides={UNITS: 3}))[UNITS] == "3"


def test_a_job_that_is_debugged_has_its_controller_on_the_head() -> None:
    assert entrypoint(planned(view=rented(debuggers=(("pdb",),) * 2), **DEBUGGED)) == PLACED


@pytest.mark.parametrize(
    ("cpus", "options", "units"),
    [
        (28, {"asynchronous": True}, "2"),  # two nodes have room for 6 that are spread, and a resume wants as many
        (26, {"asynchronous": True}, "1"),
        (26, {"rollout_nodes": 1}, "1"),
        (28, {"asynchronous": True, "overrides": {UNITS: 3}}, "3"),
    ],
)
def test_the_queue_on_the_head_leaves_the_workers_their_cpus(cpus: int, options: dict[str, Any], units: str) -> None:
    assert values(planned(view=rented(cpus_per_node=cpus), **options))[UNITS] == units


@pytest.mark.parametrize("shared", [False, True])
def test_a_queue_that_cannot_be_on_the_head_needs_a_folder_of_all_nodes(*, shared: bool) -> None:
    """Of a cluster that is up, too."""
    options: dict[str, Any] = {
        "asynchronous": True, "env": {"PYTHONPATH": "/mine"}, "overrides": {"trainer.save_freq": 2}
    }  # fmt: skip
    view = rented(shared_checkpoints=shared)
    if shared:
        assert entrypoint(planned(view=view, **options)) == PLAIN_MAIN
    else:
        with pytest.raises(InputError, match="its first save fails"):
            planned(view=view, **options)


def test_the_mode_that_the_option_asks_for_is_left_when_its_hint_is_applied() -> None:
    overrides = {"trainer.v1.trainer_mode": "sync"}
    with pytest.raises(JobRefused) as told:
        planned(asynchronous=True, overrides=overrides)
    fixed = with_fix(job(), overrides, told.value.fix)
    assert values(planned(asynchronous=True, overrides=fixed))["trainer.v1.trainer_mode"] == "colocate_async"


def test_a_report_knows_the_option_that_was_typed() -> None:
    assert planned(asynchronous=True).metadata["cloudrl_overrides"] == "--async"
    assert planned(rollout_nodes=1).metadata["cloudrl_overrides"] == "--rollout-nodes=1"


def test_too_many_units_for_the_head_are_refused() -> None:
    with pytest.raises(
        InputError, match=f"{UNITS}=4: the queue is on the head, where the workers leave 3 CPUs"
    ) as told:
        planned(view=rented(cpus_per_node=28), asynchronous=True, overrides={UNITS: 4})
    assert str(told.value.hint).startswith(f"{UNITS}=2")


def test_units_on_a_head_that_generates_leave_it_two_cpus_a_gpu() -> None:
    view = rented(nodes=4, cpus_per_node=28)
    assert values(planned(view=view, rollout_nodes=2, overrides={UNITS: 11}))[UNITS] == "11"
    with pytest.raises(InputError, match=f"{UNITS}=12: the queue is on the head, where the workers leave 11 CPUs"):
        planned(view=view, rollout_nodes=2, overrides={UNITS: 12})


@pytest.mark.parametrize(
    ("recipe", "base", "options"),
    [
        ("grpo-async", "grpo", {"asynchronous": True}),
        ("grpo-async-tiny", "grpo-tiny", {"asynchronous": True}),
        ("grpo-rollout-nodes-tiny", "grpo-tiny",
         {"rollout_nodes": 1, "overrides": {"actor_rollout_ref.actor.ppo_mini_batch_size": 4}}),
    ],
)  # fmt: skip
def test_the_recipes_are_what_the_options_make(recipe: str, base: str, options: dict[str, Any]) -> None:
    view = cluster(**(TINY if "tiny" in base else {}))
    by_option = values(planned(recipes.load(base), view, name="run", **options))
    by_recipe = values(planned(recipes.load(recipe), view, name="run"))
    assert {**by_recipe, "trainer.project_name": base} == by_option


def test_more_nodes_that_train_are_more_nodes_of_the_cluster() -> None:
    """Those that generate stay what they are."""
    words = {
        "model_engine": "megatron",
        "actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity": "full",
        f"{ROLLOUT}.tensor_model_parallel_size": 8,
    }
    big = cluster(gpu="H100:8")
    sent = planned(view=big, rollout_nodes=1, overrides=words, model="Qwen/Qwen2.5-72B-Instruct", unchecked=True)
    assert sent.memory is not None
    assert sent.memory.advice.startswith("It fits with: --nodes 9 ")
    assert sent.memory.advice.endswith(" trainer.nnodes=8")


def as_before(request: dict[str, Any]) -> dict[str, Any]:
    """With verl's own entrypoint."""
    placed, plain = " ".join(PLACED), " ".join(PLAIN_MAIN)
    return {**request, "entrypoint": request["entrypoint"].replace(placed, plain, 1)}


def test_a_synchronous_job_is_sent_as_ever_but_for_its_entrypoint(repository: Path) -> None:
    """The golden file is older than the asynchronous modes."""
    sent = planned(view=rented()).render()
    assert " ".join(PLACED) in sent
    as_ever = (repository / "tests/golden/submission-grpo.yml").read_text()
    assert sent.replace(" ".join(PLACED), " ".join(PLAIN_MAIN), 1) == as_ever


@pytest.mark.parametrize("recipe", ["grpo", "grpo-tiny", "ppo", "search-tiny"])
def test_agents_that_place_controllers_change_nothing_else(recipe: str) -> None:
    job_ = recipes.load(recipe)
    data, models = dict.fromkeys(job_.data, PATHS), {str(job_.model): "/m"}
    facts: dict[str, Any] = {"device": job_.device, "data": data, "models": models, "cpus_per_node": 64}
    before = planned(job_, rented(**facts, places_controllers=False), name="run").request()
    after = planned(job_, rented(**facts), name="run").request()
    assert after != before
    assert as_before(after) == before
