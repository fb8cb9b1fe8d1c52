"""verl's configuration, composed from its files without verl."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from planning import cluster, plan

from cloudrl import recipes
from cloudrl.jobs import SubmitOptions
from cloudrl.spec import Gpu
from cloudrl.verl import base_config, composition
from cloudrl.verl.composition import compose, is_known
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.releases import RELEASE

FOLDER = Path(composition.__file__).parent / "trainer_config" / RELEASE.verl


def words(name: str) -> tuple[str, ...]:
    """The overrides of a recipe on the cluster that it is made for."""
    job = recipes.load(name)
    data = {each: {part: f"/data/{each}/{part}.parquet" for part in ("train", "test")} for each in job.data}
    gpus = Gpu.exact_count(job.gpu) or 1
    shape = cluster(
        nodes=job.nodes or 2, gpus_per_node=gpus, device=job.device, data=data, models={job.model or "": "/m"}
    )
    return plan(job, shape, SubmitOptions(name="run")).argv[3:]


def problems(*overrides: str) -> tuple[Problem, ...]:
    return compose(RELEASE.verl, overrides).problems


def test_the_files_are_those_of_the_installed_verl() -> None:
    spec = find_spec("verl")
    if spec is None or spec.origin is None:
        pytest.skip("verl is not installed")
    package = Path(spec.origin).parent
    theirs = package / "trainer" / "config"
    ours = {path.relative_to(FOLDER): path.read_bytes() for path in FOLDER.rglob("*.yaml")}
    of_programs = {path for path in ours if path.parts[0] == "experimental"}
    assert {path: ((package if path in of_programs else theirs) / path).read_bytes() for path in ours} == ours
    assert {path.relative_to(theirs) for path in theirs.glob("*/**/*.yaml")} <= ours.keys()


def test_which_releases_are_known() -> None:
    assert is_known(RELEASE.verl)
    assert not is_known("0.1")
    assert not is_known(None)


@pytest.mark.parametrize("name", ["grpo", "ppo-tiny", "search-grpo"])
def test_it_is_what_hydra_composes(name: str) -> None:
    ours = compose(RELEASE.verl, words(name))
    with initialize_config_dir(config_dir=str(FOLDER), version_base=None):
        theirs = hydra_compose(config_name="ppo_trainer", overrides=list(words(name)))
    assert ours.problems == ()
    assert ours.values == OmegaConf.to_container(theirs, resolve=True)


def test_a_number_is_no_file_of_a_group() -> None:
    [problem] = compose(RELEASE.verl, ("distillation=[1]",)).problems
    assert problem.text == "distillation=[1]: the name of a file chooses a group"


@pytest.mark.parametrize(
    "overrides",
    [
        ["model_engine=megatron"],
        ["actor@actor_rollout_ref.actor=megatron_actor"],
        [],
        ["+npu_profile@global_profiler.npu=npu_profile"],
        ["critic.enable=true", "critic={enable:false}"],
    ],
)
def test_files_that_are_chosen_by_an_override_count(overrides: list[str]) -> None:
    ours = compose(RELEASE.verl, ("trainer.nnodes=2", *overrides))
    with initialize_config_dir(config_dir=str(FOLDER), version_base=None):
        theirs = hydra_compose(config_name="ppo_trainer", overrides=["trainer.nnodes=2", *overrides])
    assert ours.values == OmegaConf.to_container(theirs, resolve=True)


def test_a_program_of_hydras_own_keeps_its_state() -> None:
    compose.cache_clear()
    base_config.base.cache_clear()
    with initialize_config_dir(config_dir=str(FOLDER), version_base=None):
        state = GlobalHydra.instance().hydra
        assert compose(RELEASE.verl, ("trainer.nnodes=3",)).problems == ()
        assert GlobalHydra.instance().hydra is state


def test_another_of_verls_configurations() -> None:
    composed = compose(RELEASE.verl, ("actor_rollout_ref.actor.megatron.param_offload=true",), "ppo_megatron_trainer")
    assert composed.problems == ()
    [problem] = compose(RELEASE.verl, (), "mine").problems
    assert problem.text == "verl 0.9.1 has no configuration 'mine'"
    assert "ppo_megatron_trainer, ppo_trainer" in problem.hint
    _, unreadable = compose(RELEASE.verl, ("trainer.project_name=<name>",), "mine").problems
    assert unreadable.text == "trainer.project_name=<name>: <name> has to be filled in"


@pytest.mark.parametrize(
    ("override", "text", "hint"),
    [
        ("data.train_batchsize=8", "data.train_batchsize: verl 0.9.1 has no such key", "data.train_batch_size=8"),
        ("trainer.nnode=2", "trainer.nnode: verl 0.9.1 has no such key", "trainer.nnodes=2"),
        ("algorithm.kl_coef=0.1", "algorithm.kl_coef: verl", "algorithm.kl_ctrl.kl_coef=0.1"),  # moved
        (
            "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
            "",
            "The megatron engine has it: model_engine=megatron",
        ),
        ("gpu_memory_utilization=0.5", "", "actor_rollout_ref.rollout.gpu_memory_utilization=0.5"),
        (
            "actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=fa3",
            "",
            "+actor_rollout_ref.rollout.engine",
        ),
        ("reward.custom_reward_function.reward_kwargs.x=1", "", "+reward.custom_reward_function.reward_kwargs.x=1"),
        ("trainer.nnodes.x=3", "trainer.nnodes.x: verl", "+trainer.nnodes.x=3"),
        ("~trainer.logger.0", "trainer.logger.0: ", ""),
        ("trainer." + "x" * 300 + "=1", "verl 0.9.1 has no such key", "if your own code reads it"),
        ("of.nothing.alike=1", "of.nothing.alike: verl", "if your own code reads it: +of.nothing.alike=1"),
        ("+trainer.nnodes=2", "trainer.nnodes: verl 0.9.1 has this key, which takes no +", "trainer.nnodes=2"),
        ("~trainer.nnode", "trainer.nnode: verl 0.9.1 has no such key to leave out", ""),
        ("data.train_files=a,b", "data.train_files: Hydra takes the value for several runs", "data.train_files=[a,b]"),
        ("actor_rollout_ref.rollout.temperature=0,6", "for several runs", "actor_rollout_ref.rollout.temperature=0.6"),
        ("trainer.nnodes=1,2", "for several runs", "trainer.nnodes=1"),
        ("no.such=1,2", "for several runs", "no.such=[1,2]"),
        ("trainer.logger=[console", "trainer.logger=[console: Hydra cannot read it: no viable alternative", "hydra.cc"),
        ("data.train_files=<path to data>/train.parquet", "<path to data> has to be filled in", ""),
        ("data.train_files=a<b", "data.train_files=a<b: Hydra cannot read it: token", "hydra.cc"),
        ("nothing", "nothing: Hydra cannot read it: missing EQUAL", "hydra.cc"),
        ("trainer.project_name=${no.such}", "Interpolation key 'no.such' not found", ""),
        (
            "hydra/launcher=submitit_slurm",
            "hydra/launcher=submitit_slurm: Hydra has it only with a plug-in",
            "leave it",
        ),
        ("actor_rollout_ref.actor=[1]", "actor=[1]: verl has a section here", "~actor_rollout_ref.actor"),
        ("actor_rollout_ref.actor=null", "actor=null: verl has a section here", "~actor_rollout_ref.actor"),
        ("model_engine=megatrn", "model_engine=megatrn: In 'ppo_trainer': Could not find 'model_engine/megatrn'", ""),
    ],
)
def test_what_hydra_refuses_and_what_was_meant(override: str, text: str, hint: str) -> None:
    [problem] = problems("trainer.total_epochs=1", override)
    assert text in problem.text
    assert hint in problem.hint
    assert "\n" not in problem.text


def test_keys_of_another_engine_have_their_place_in_this_one() -> None:
    [problem] = problems("model_engine=megatron", "actor_rollout_ref.actor.fsdp_config.param_offload=True")
    assert problem.hint == "actor_rollout_ref.actor.megatron.param_offload=True"


def test_all_that_is_wrong_is_told() -> None:
    found = problems("trainer.nnode=1", "data.train_batchsize=8", "trainer.total_epochs=1", "data.train_files=a,b")
    assert [each.text.partition(":")[0] for each in found] == [
        "trainer.nnode", "data.train_batchsize", "data.train_files"
    ]  # fmt: skip


def test_a_key_of_ones_own_may_be_one_that_was_meant() -> None:
    composed = compose(RELEASE.verl, ("++trainer.nnode=2", "+trainer.mine=3", "++trainer.nnodes=3"))
    assert composed.lookalikes == {"trainer.nnode": "trainer.nnodes"}
    assert composed.problems == ()


def test_what_only_the_nodes_know_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODES_OF_MINE", raising=False)
    composed = compose(RELEASE.verl, ("trainer.nnodes=${oc.env:NODES_OF_MINE}",))
    assert (composed.values, composed.problems) == (None, ())


@pytest.mark.parametrize("release", sorted(path.name for path in FOLDER.parent.iterdir() if path.is_dir()))
def test_what_ships_composed_is_what_hydra_composes(release: str) -> None:
    with initialize_config_dir(config_dir=str(FOLDER.parent / release), version_base=None):
        theirs = hydra_compose(config_name="ppo_trainer")
    assert compose(release, ()).base == OmegaConf.to_container(theirs, resolve=False)
