"""Names that verl looks up, most of them after the first rollout (verl 0.9.1)."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cloudrl.verl import keys
from cloudrl.verl.async_modes import ASYNC, BACKEND, MODULE, SEPARATE
from cloudrl.verl.keys import ACTOR, CRITIC, REF, ROLLOUT
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.setting import MODE, SAMPLER, Setting

LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
"""workers/config/actor.py: ActorConfig."""
RESUME_MODES = ("disable", "auto", "resume_path")
"""trainer/ppo/v1/trainer_base.py: _load_checkpoint."""
_OLDER_TRAINER = ("remax", "optimal_token_baseline", "tir_optimal_token_baseline")
"""They ask for what only trainer/ppo/ray_trainer.py hands over: a greedy answer, or sums of squares."""
_KL = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
_KL_TYPES = (*_KL, *(f"{name}+" for name in _KL))
"""trainer/ppo/core_algos.py: kl_penalty, kl_penalty_forward."""
_DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
"""What vLLM 0.27 and SGLang 0.5 take as `--dtype`."""
_OPTIMIZERS = ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "LBFGS", "Muon", "NAdam", "RAdam",
               "RMSprop", "Rprop", "SGD", "SparseAdam")  # fmt: skip
"""Of `torch.optim` (torch 2.11)."""
_TEACHER = "distillation"


@dataclass(frozen=True)
class Choice:
    """A key that names one of several things.

    Attributes:
        key: dotted.
        names: what verl has; empty if this is not known.
        at: where it is looked up.
        is_open: whether code of the user's may add names.
        null: whether it may be left out.
        usual: the hint where no name is similar; "" for none.
    """

    key: str
    names: Sequence[str]
    at: str
    is_open: bool = False
    null: bool = False
    usual: str = ""


def names_are_known(setting: Setting) -> Iterator[Problem]:
    """Most are looked up after the first rollout, some once all workers are up."""
    yield from unknown_choices(setting, known_choices(setting))
    yield from loggers_are_known(setting)


def unknown_choices(setting: Setting, choices: Iterator[Choice]) -> Iterator[Problem]:
    """Names that verl does not have, and that no code of the user's can bring."""
    for choice, value in _unknown(setting, choices):
        if choice.is_open and setting.brings_code:
            continue
        similar = difflib.get_close_matches(str(value).lower(), choice.names, 1) or [choice.usual]
        if value is None and setting.default(choice.key) in choice.names:
            similar = [setting.default(choice.key)]
        shown = "null" if value is None else value
        has = f"verl has {', '.join(choice.names)}" if len(choice.names) < 8 else "verl has none of that name"
        yield Problem(f"{choice.key}={shown}: {has} ({choice.at})", f"{choice.key}={similar[0]}" if similar[0] else "")


def unknown_names(setting: Setting) -> Iterator[tuple[str, str]]:
    """Names that only code of the user's can bring, with their keys."""
    for choice, value in _unknown(setting, known_choices(setting)):
        if choice.is_open and setting.brings_code:
            yield choice.key, str(value)


def _unknown(setting: Setting, choices: Iterator[Choice]) -> Iterator[tuple[Choice, object]]:
    for choice in choices:
        value = setting.get(choice.key)
        is_known = value in choice.names or (value is None and choice.null) or value == "???"
        if choice.names and not is_known and setting.has(choice.key) and not setting.follows(choice.key):
            yield choice, value


def known_choices(setting: Setting) -> Iterator[Choice]:
    """The keys that name one of several things, in the order in which verl looks them up."""
    names, resume = setting.names, "trainer/ppo/v1/trainer_base.py: _load_checkpoint"
    yield Choice(f"{ACTOR}.loss_agg_mode", LOSS_AGG_MODES, "workers/config/actor.py: ActorConfig")
    yield Choice(keys.RESUME_MODE, RESUME_MODES, resume)
    if setting.is_v1:
        yield Choice(MODE, names("register_trainer"), "trainer/ppo/v1/trainer_base.py: TRAINER_REGISTRY", is_open=True)
        if not setting.get(SAMPLER):
            replay = "trainer/ppo/v1/replay_buffer.py: ReplayBuffer"
            yield Choice("trainer.v1.sampler.max_off_policy_strategy", ("drop", "wait"), replay)
    yield from _of_algorithm(setting)
    yield from _of_rollout(setting)
    yield from _of_engines(setting)
    manager = "reward.reward_manager"
    yield Choice(f"{manager}.source", ("register", "importlib"), "trainer/ppo/reward.py: resolve_reward_manager_cls")
    if setting.get(f"{manager}.source") == "register" and not setting.get("reward.custom_reward_function.path"):
        known = names("register@experimental/reward_loop/reward_manager") + names("register@experimental/reward_loop")
        registry = "experimental/reward_loop/reward_manager/registry.py: get_reward_manager_cls"
        yield Choice(f"{manager}.name", known, registry, is_open=True)


def _of_algorithm(setting: Setting) -> Iterator[Choice]:
    if not setting.trains:
        return
    algorithms = "trainer/ppo/core_algos.py"
    yield Choice(keys.ESTIMATOR, setting.names("register_adv_est"), f"{algorithms}: get_adv_estimator_fn", is_open=True)
    if ACTOR in setting.ever_trained and not setting.get(f"{_TEACHER}.enabled"):
        losses = setting.names("register_policy_loss")
        yield Choice(f"{ACTOR}.policy_loss.loss_mode", losses, f"{algorithms}: get_policy_loss_fn", is_open=True)
        if setting.get(f"{ACTOR}.use_kl_loss"):
            yield Choice(f"{ACTOR}.kl_loss_type", _KL_TYPES, f"{algorithms}: kl_penalty_forward")
    if setting.get("algorithm.use_kl_in_reward"):
        yield Choice("algorithm.kl_penalty", _KL_TYPES, f"{algorithms}: kl_penalty_forward")
        yield Choice("algorithm.kl_ctrl.type", ("fixed", "adaptive"), f"{algorithms}: get_kl_controller")
    if setting.uses_critic:
        yield Choice(f"{CRITIC}.loss_agg_mode", LOSS_AGG_MODES, f"{algorithms}: agg_loss")
    if setting.get(f"{_TEACHER}.enabled"):
        known = setting.names("register_distillation_loss")
        at = "trainer/distillation/losses.py: get_distillation_loss_settings"
        yield Choice(f"{_TEACHER}.distillation_loss.loss_mode", known, at, is_open=True)


def _of_rollout(setting: Setting) -> Iterator[Choice]:
    engines = tuple(name.partition("/")[0] for name in setting.names("rollouts"))
    engines += ("hf",) if engines and setting.get("trainer.device") == "cpu" else ()  # cloudrl/verl_cpu
    yield Choice(f"{ROLLOUT}.name", engines, "workers/rollout/base.py: get_rollout_class", is_open=True)
    if setting.get(f"{ROLLOUT}.mode") != "sync":  # which another rule reports
        yield Choice(f"{ROLLOUT}.mode", ("async",), "workers/rollout/base.py: get_rollout_class", is_open=True)
    engine = setting.get(f"{ROLLOUT}.name")
    if engine in ("vllm", "sglang"):
        server = "workers/rollout/vllm_rollout/vllm_async_server.py: launch_server"
        yield Choice(f"{ROLLOUT}.dtype", _DTYPES, server)
        kinds = ("fp8", "torchao", "ascend") if engine == "vllm" else ("fp8",)
        yield Choice(f"{ROLLOUT}.quantization", kinds, f"workers/rollout/{engine}_rollout: quantization", null=True)
    if not setting.get(MODULE):
        backends = setting.names("CheckpointEngineRegistry.register")
        at = "checkpoint_engine/base.py: CheckpointEngineRegistry"
        usual = "nccl" if setting.is_v1 and setting.get(MODE) == SEPARATE else "naive"
        yield Choice(BACKEND, backends, at, is_open=True, usual=usual)


def _of_engines(setting: Setting) -> Iterator[Choice]:
    registry, types = "workers/engine/base.py: get_engine_cls", "utils/torch_dtypes.py: PrecisionType"
    for role in setting.built:
        model = "value_model" if role == CRITIC else "language_model"
        engines = setting.names(f"EngineRegistry.register/{model}")
        yield Choice(f"{role}.strategy", engines, registry, is_open=True)
        if not setting.is_fsdp(role):
            continue
        section = f"{role}.{'fsdp' if role == CRITIC else 'fsdp_config'}"
        dtypes = setting.names("dtypes")
        if setting.get(f"{section}.model_dtype") not in (16, 32):
            yield Choice(f"{section}.model_dtype", dtypes, types, null=True)
        if setting.get(f"{section}.mixed_precision") is not None:
            for part in ("param_dtype", "reduce_dtype", "buffer_dtype"):
                yield Choice(f"{section}.mixed_precision.{part}", dtypes, types)
        if role != REF and setting.get(f"{role}.optim.optimizer_impl") == "torch.optim":
            yield Choice(f"{role}.optim.optimizer", _OPTIMIZERS, "workers/config/optimizer.py: build_optimizer")


def loggers_are_known(setting: Setting) -> Iterator[Problem]:
    """utils/tracking.py: Tracking, which is made once all workers are up."""
    known = (*setting.names("loggers"), "tracking")
    value = setting.get(keys.LOGGER)
    if len(known) == 1 or not setting.has(keys.LOGGER):
        return
    if not isinstance(value, (str, list)):
        shown = "null" if value is None else value
        yield Problem(f"{keys.LOGGER}={shown}: verl needs names here (utils/tracking.py: Tracking)",
                      f"{keys.LOGGER}=[console]")  # fmt: skip
        return
    named = [value] if isinstance(value, str) else [str(each) for each in value]
    meant = [next(iter(difflib.get_close_matches(name, known, 1)), "") if name not in known else name for name in named]
    if wrong := [name for name in named if name not in known]:
        hint = f"{keys.LOGGER}=[{','.join(meant)}]" if all(meant) else ""
        yield Problem(f"{keys.LOGGER}: verl has no logger {', '.join(wrong)} (utils/tracking.py: supported_backend)",
                      hint)  # fmt: skip


def estimators_have_what_they_ask(setting: Setting) -> Iterator[Problem]:
    """trainer/ppo/core_algos.py: compute_gae_advantage_return, compute_remax_outcome_advantage, ..."""
    key, name = keys.ESTIMATOR, setting.get(keys.ESTIMATOR)
    if name == "gae" and setting.trains and not setting.uses_critic:
        yield Problem(f"{key}=gae needs a critic, and {keys.USES_CRITIC}=False", f"{keys.USES_CRITIC}=True")
    is_built_in = setting.get(MODE) in ("sync", *ASYNC)
    if name in _OLDER_TRAINER and setting.trains and setting.is_v1 and is_built_in:
        yield Problem(f"{key}={name} works with verl's older trainer alone", f"{keys.USE_V1}=False")


RULES = (names_are_known, estimators_have_what_they_ask)
