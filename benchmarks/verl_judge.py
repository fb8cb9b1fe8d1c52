"""What verl 0.9.1 itself says of configurations: the judge of `bench_check.py`, in a process of its own with torch.

verl's own code is called wherever it needs no GPU: Hydra, the driver's validation, the dataclasses that workers build,
the trainer's constructor, its pools and data loaders, the optimizer and its schedule, losses, registries. What only a
worker on a GPU would come to is written here from its source; each such condition names the place.

Reads {"cases": [[CONFIG_NAME, [OVERRIDE, ...], GPUS], ...]} from standard input; writes a line of JSON for each case:
null, or [stage, words].
"""

from __future__ import annotations

# ruff: noqa: SLF001  the parts of verl that need no GPU are mostly private
import contextlib
import functools
import io
import json
import pickle
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import verl
import verl.trainer.ppo.v1.trainer_base as base_trainer
import verl.workers.config.model as hf_model
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf, open_dict
from parsed_once import parse_once
from verl.checkpoint_engine.base import CheckpointEngineRegistry
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.reward import resolve_reward_manager_cls
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.tracking import Tracking
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl_conditions import (
    CHECKPOINT_ENGINES,
    ROWS,
    batches_are_divided,
    code_is_loaded,
    copied,
    engines_are_built,
    has_teacher,
    has_training,
    need,
    paths_are_read,
    pools_fit,
    reference_is_actor,
    rollout_is_served,
    updates_actor,
)

PARSER = OverridesParser.create()


def use_no_model() -> None:
    """Let verl's model section be built without a model: what it looks up on disk or on the Hub is made up."""
    tokenizer = types.SimpleNamespace(
        bos_token_id=0, eos_token_id=1, pad_token_id=2, chat_template="", name_or_path="m"
    )
    hf_model.copy_to_local = lambda path, **_: copied(path)
    hf_model.hf_tokenizer = lambda *_, **__: tokenizer
    hf_model.hf_processor = lambda *_, **__: None
    hf_model.get_generation_config = lambda *_, **__: None
    hf_model.update_model_config = lambda *_, **__: None
    hf_model.import_external_libs = lambda named: [
        each.startswith(".") for each in (named if isinstance(named, list) else [named]) if named is not None
    ]
    made = types.SimpleNamespace(architectures=["Qwen2ForCausalLM"], tie_word_embeddings=False, model_type="qwen2")
    hf_model.AutoConfig = types.SimpleNamespace(from_pretrained=lambda *_, **__: made)
    base_trainer.create_rl_dataset = dataset
    vllm = types.ModuleType("verl.workers.rollout.vllm_rollout.utils")
    vllm.get_vllm_max_lora_rank = lambda rank: need(rank <= 512, "lora_rank must be less than or equal to 512")
    sys.modules["verl.workers.rollout.vllm_rollout"] = types.ModuleType("verl.workers.rollout.vllm_rollout")
    sys.modules[vllm.__name__] = vllm
    base_trainer.RolloutMoELoadBalanceMetricsAccumulator = lambda **_: None


def dataset(paths: Any, config: Any, *_: Any, max_samples: Any = -1, **__: Any) -> list[int]:
    """utils/dataset/rl_dataset.py: RLHFDataset, what it does with its options before and after it reads files."""
    files = [paths] if not OmegaConf.is_list(paths) and not isinstance(paths, list) else list(paths)
    for file in map(copied, files):
        need(file.endswith((".parquet", ".json", ".jsonl")), f"Unsupported file format: {file}")
    rows = min(ROWS, max_samples) if max_samples > 0 else ROWS
    need(isinstance(config.get("prompt_key", "prompt"), str), "no such column")
    dict(**config.get("apply_chat_template_kwargs", {}))
    if config.get("filter_overlong_prompts", True):
        config.get("max_prompt_length", 1024) >= 100  # noqa: B015  whether they can be compared
    range(10)[: rows if rows % 1 else int(rows)]  # datasets: select
    return [0] * int(rows)


@functools.cache
def parsed(override: str) -> Any:
    return PARSER.parse_override(override)


@functools.cache
def prepared(name: str, groups: tuple[str, ...]) -> bytes:
    return pickle.dumps(compose(config_name=name, overrides=list(groups)))


def is_group(key: str) -> bool:
    """Whether Hydra takes a key for a choice of one of several files."""
    return key.startswith("hydra") or "@" in key or (Path(verl.__file__).parent / "trainer" / "config" / key).is_dir()


def composed(name: str, overrides: list[str]) -> Any:
    groups = tuple(each for each in overrides if is_group(each.partition("=")[0]))
    config: Any = pickle.loads(prepared(name, groups))
    OmegaConf.set_struct(config, value=True)
    rest = [parsed(each) for each in overrides if each not in groups]
    ConfigLoaderImpl.validate_sweep_overrides_legal(rest, None, from_shell=False)
    ConfigLoaderImpl._apply_overrides_to_config(rest, config)
    OmegaConf.resolve(config)
    return config


def dataclasses_are_built(config: Any) -> dict[str, Any]:
    """workers/engine_workers.py: init_model; trainer/ppo/v1/trainer_base.py: _setup, and the unused ones."""
    role = config.actor_rollout_ref
    made = {"model": omega_conf_to_dataclass(role.model), "actor": omega_conf_to_dataclass(role.actor)}
    ref = OmegaConf.create(OmegaConf.to_container(role.ref))
    ref.ppo_mini_batch_size = role.actor.ppo_mini_batch_size
    for new, old in (("ppo_micro_batch_size", "log_prob_micro_batch_size"),
                     ("ppo_micro_batch_size_per_gpu", "log_prob_micro_batch_size_per_gpu"),
                     ("use_dynamic_bsz", "log_prob_use_dynamic_bsz"),
                     ("ppo_max_token_len_per_gpu", "log_prob_max_token_len_per_gpu")):  # fmt: skip
        ref[new] = ref.pop(old, None)
    if need_reference_policy(config) and not reference_is_actor(config):
        made["ref"] = omega_conf_to_dataclass(ref)
    made["rollout"] = omega_conf_to_dataclass(role.rollout)
    made["checkpoint_engine"] = omega_conf_to_dataclass(role.rollout.checkpoint_engine)
    if need_critic(config):
        made["critic"] = omega_conf_to_dataclass(config.critic)
    else:
        fields_exist(config.critic)
    fields_exist(ref)
    if OmegaConf.is_dict(config.distillation):
        fields_exist(config.distillation)
    omega_conf_to_dataclass(config.algorithm)
    if has_teacher(config):
        made["distillation"] = omega_conf_to_dataclass(config.distillation)
    rollout = made["rollout"]  # experimental/agent_loop/agent_loop.py: AgentLoopWorker; workers/rollout/llm_server.py
    sections = {"multi_turn": "tool_config_path", "agent": "agent_loop_config_path", "trace": "project_name",
                "prometheus": "enable"}  # fmt: skip
    for section, field in sections.items():
        getattr(getattr(rollout, section), field)
    if config.reward.reward_model.enable:
        omega_conf_to_dataclass(config.reward.reward_model.rollout)
    return made


def fields_exist(section: Any) -> None:
    """Of a section that this job does not build: whether its dataclass has the fields, as it would say if it did."""
    from hydra.utils import get_class

    for name, value in section.items():
        if OmegaConf.is_dict(value):
            fields_exist(value)
        if "_target_" in section and name != "_target_":
            known = get_class(section._target_).__dataclass_fields__
            need(name in known, f"{section._target_}.__init__() got an unexpected keyword argument {name!r}")


def trainer_is_made(config: Any) -> None:
    """trainer/ppo/v1/trainer_base.py: __init__, _init_tokenizer, _init_dataloader, _init_resource_pool_mgr."""
    need(config.trainer.nnodes > 0 and config.trainer.n_gpus_per_node > 0, "a pool without GPUs")
    trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
    trainer._init_tokenizer()
    trainer._init_dataloader()
    range(config.data.dataloader_num_workers)  # torch, utils/data/dataloader.py: once it is asked for rows
    trainer._init_resource_pool_mgr()
    trains = not (config.trainer.get("val_before_train", True) and config.trainer.get("val_only", False))
    trains = trains and trainer.total_training_steps > 0 and config.trainer.total_epochs > 0
    if not trains:
        return
    config.trainer.save_freq > 0  # noqa: B015  fit
    config.trainer.test_freq > 0  # noqa: B015  fit
    batch, every = config.data.train_batch_size, trainer.parameter_sync_step
    need(batch % every == 0 and every > 0, "train_batch_size must be divisible by parameter_sync_step")
    size = config.data.get("gen_batch_size", None) or batch
    need(batch > 0 and batch % size == 0, "num_prompts must be a positive multiple of gen_batch_size")
    need(trainer.steps_per_epoch > 0, "no step in an epoch")
    steps = config.global_profiler.steps
    1 in steps if steps is not None else None  # noqa: B018  fit


def names_are_looked_up(config: Any) -> None:
    rollout, algorithm = config.actor_rollout_ref.rollout, config.algorithm
    need(
        (rollout.name, rollout.mode) in _ROLLOUT_REGISTRY, f"Rollout {rollout.name} with mode {rollout.mode} not found"
    )
    backend = rollout.checkpoint_engine.backend
    if not rollout.checkpoint_engine.custom_backend_module:
        need(
            backend in CHECKPOINT_ENGINES or backend in CheckpointEngineRegistry._registry, f"{backend} not registered"
        )
    loggers = config.trainer.logger
    for name in [loggers] if isinstance(loggers, str) else loggers:
        need(name in Tracking.supported_backend or name == "tracking", f"{name} is not supported")
    manager = resolve_reward_manager_cls(config)
    if manager.__name__ == "DAPORewardManager":  # experimental/reward_loop/reward_loop.py: _init_reward_fn
        manager(config=config, tokenizer=None, compute_score=len)
    if config.reward.reward_model.enable:  # experimental/reward_loop/reward_loop.py
        need(isinstance(config.reward.reward_model.model_path, str), "no path of the reward model")
    range(config.reward.num_workers)
    need(config.reward.num_workers > 0, "no reward workers")
    need(config.trainer.resume_mode in ("disable", "auto", "resume_path"), "unknown resume mode")
    if config.trainer.resume_mode == "resume_path":
        path = config.trainer.resume_from_path
        need(isinstance(path, str) and "global_step_" in path, "resume ckpt must specify the global_steps")
    if not has_training(config):
        return
    core_algos.get_adv_estimator_fn(algorithm.adv_estimator)
    need(not (config.trainer.use_v1 and algorithm.adv_estimator in
              ("remax", "optimal_token_baseline", "tir_optimal_token_baseline")),
         "no reward_baselines, no sum_pi_squared in trainer/ppo/v1")  # fmt: skip
    need(algorithm.adv_estimator != "gae" or need_critic(config), "no values without a critic")


def losses_are_computed(config: Any, made: dict[str, Any]) -> None:
    """trainer/ppo/core_algos.py and workers/utils/losses.py, on two small tensors."""
    if not has_training(config):
        return
    actor, one, mask = made["actor"], torch.zeros(2, 3), torch.ones(2, 3)
    info = {"dp_size": 1, "batch_num_tokens": 6, "global_batch_size": 2, "loss_scale_factor": None}
    if config.algorithm.use_kl_in_reward:
        core_algos.kl_penalty(one, one, config.algorithm.kl_penalty)
        core_algos.get_kl_controller(config.algorithm.kl_ctrl).value * one
    if config.algorithm.adv_estimator == "gae":
        core_algos.compute_gae_advantage_return(one, one, mask, config.algorithm.gamma, config.algorithm.lam)
    if need_critic(config):
        core_algos.agg_loss(loss_mat=one, loss_mask=mask, loss_agg_mode=config.critic.loss_agg_mode, **info)
        one + config.critic.cliprange_value
    distills = config.distillation.distillation_loss if has_teacher(config) else None
    if distills and (distills.use_task_rewards or distills.use_policy_gradient):
        actor.policy_loss.get("loss_mode", "vanilla")  # trainer/distillation/losses.py: distillation_ppo_loss
    if distills is None and updates_actor(config):
        policy_loss_is_computed(config, actor, info)


def policy_loss_is_computed(config: Any, actor: Any, info: dict[str, Any]) -> None:
    one, mask = torch.zeros(2, 3), torch.ones(2, 3)
    actor.policy_loss.get("loss_mode", "vanilla")
    loss = core_algos.get_policy_loss_fn(actor.policy_loss.get("loss_mode", "vanilla"))
    actor.global_batch_info.update(info)
    if loss is core_algos.compute_policy_loss_vanilla:
        loss(one, one, one, mask, actor.loss_agg_mode, actor, None)
    for name, field in (("clip_cov", "clip_cov_ratio"), ("kl_cov", "kl_cov_ratio"), ("dro", "dro_beta")):
        if actor.policy_loss.get("loss_mode") == name:
            need((actor.policy_loss.get(field) or 0) > 0, f"{field} should be larger than 0")
    if actor.calculate_entropy or config.actor_rollout_ref.actor.entropy_coeff != 0.0:
        one - actor.entropy_coeff * one
    if actor.use_kl_loss:
        core_algos.kl_penalty(one, one, actor.kl_loss_type) * actor.kl_loss_coef


def stages(config: Any, gpus: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    made: dict[str, Any] = {}
    world = lambda: config.trainer.n_gpus_per_node * config.trainer.nnodes  # noqa: E731
    yield "validate_config", lambda: validate_config(config, need_reference_policy(config), need_critic(config))
    yield "dataclasses", lambda: made.update(dataclasses_are_built(config))
    yield "names", lambda: names_are_looked_up(config)
    if config.trainer.use_v1:
        yield "trainer", lambda: trainer_is_made(config)
        yield "paths", lambda: paths_are_read(config)
        yield "code", lambda: code_is_loaded(config)
    yield "pools", lambda: pools_fit(config, gpus)
    yield "engines", lambda: engines_are_built(config, made, world())
    yield "rollout", lambda: rollout_is_served(config, made, world())
    yield "batches", lambda: batches_are_divided(config, made, world())
    yield "losses", lambda: losses_are_computed(config, made)


def verdict(name: str, overrides: list[str], gpus: int) -> list[str] | None:
    """The first stage that refuses, and its words; None if none does."""
    try:
        config = composed(name, overrides)
    except Exception as error:  # noqa: BLE001  whatever it is
        return ["compose", f"{type(error).__name__}: {error}"]
    with open_dict(config):
        config.pop("hydra", None)
    OmegaConf.set_struct(config, value=True)
    try:
        for stage, run in stages(config, gpus):  # noqa: B007  named where it fails
            run()
    except Exception as error:  # noqa: BLE001  whatever it is
        return [stage, f"{type(error).__name__}: {error}"]
    return None


def main() -> None:
    warnings.simplefilter("ignore")
    folder = Path(verl.__file__).parent / "trainer" / "config"
    use_no_model()
    parse_once()
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        for name, overrides, gpus in json.load(sys.stdin)["cases"]:
            with contextlib.redirect_stdout(io.StringIO()):
                said = verdict(name, overrides, gpus)
            print(json.dumps(said), flush=True)


main()
