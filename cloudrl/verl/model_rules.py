"""What of a configuration does not go together with the model: heads, layers, experts, positions, number formats.

A rule looks at the configuration and at config.json. Each names where verl, or the engine that it starts, checks it;
engines: vLLM 0.24, SGLang 0.5, megatron-core 0.14, those of verl 0.9.1's images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cloudrl.verl.keys import ACTOR, CRITIC, MODEL, ROLLOUT
from cloudrl.verl.memory.cards import Card
from cloudrl.verl.memory.fine_tuning import sections_of
from cloudrl.verl.model_config import ModelConfig
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.setting import Setting

_SERVERS = ("vllm", "sglang", "trtllm")
_MEGATRON_CLASSES = frozenset({
    "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "DeepseekV3ForCausalLM", "MixtralForCausalLM",
    "Qwen2_5_VLForConditionalGeneration", "Llama4ForConditionalGeneration", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
    "Qwen3_5MoeForCausalLM", "LlamaForTokenClassification", "Qwen3ForTokenClassification",
})  # fmt: skip
"""Those that verl 0.9.1 builds for Megatron itself (models/mcore/registry.py: MODEL_CONFIG_CONVERTER_REGISTRY)."""
_OTHER_LENGTHS = ("max_position_embeddings", "rope_scaling", "rope_parameters")
_UNEVEN = ("num_layers_in_first", "num_layers_in_last", "account_for", "pipeline_model_parallel_layout")
_PADDING = 1024
"""Rows by which tables of one vocabulary differ at most: Qwen2.5 has 151,936 or 152,064 for the same tokens."""
_16_BIT = ("bfloat16", "bf16")


@dataclass(frozen=True)
class Models:
    """The models of a job, by the section that has their path.

    Attributes:
        actor: the one that is trained.
        critic: the critic's; None without one, or where it is not known.
        card: the GPU.
        teachers: those of a distillation, as far as they are known.
    """

    actor: ModelConfig
    critic: ModelConfig | None
    card: Card
    teachers: tuple[ModelConfig, ...] = ()

    def of(self, role: str) -> ModelConfig | None:
        """The model of a role."""
        return self.critic if role == CRITIC else self.actor


def model_problems(setting: Setting, models: Models) -> tuple[Problem, ...]:
    """All that cannot work."""
    return tuple(problem for rule in RULES for problem in rule(setting, models))


def model_notes(setting: Setting, models: Models) -> tuple[str, ...]:
    """What works otherwise than it looks, and what is not known; a sentence each."""
    return tuple(_notes(setting, models))


def heads_are_divided_by_the_rollout(setting: Setting, models: Models) -> Iterator[Problem]:
    """vLLM: config/model.py, verify_with_parallel_config; SGLang: layers/linear.py, QKVParallelLinear."""
    key = f"{ROLLOUT}.tensor_model_parallel_size"
    size = setting.whole(key) or 1
    if setting.get(f"{ROLLOUT}.name") in _SERVERS and size > 1:
        yield from _divided(key, size, models.actor)


def heads_are_divided_by_sequences(setting: Setting, models: Models) -> Iterator[Problem]:
    """models/transformers/monkey_patch.py: apply_monkey_patch."""
    for role in setting.built:
        key, size = setting.sequence_parallel(role)
        model = models.of(role)
        if setting.is_fsdp(role) and size > 1 and model is not None:
            yield from _divided(key, size, model)


def megatron_divides_the_model(setting: Setting, models: Models) -> Iterator[Problem]:
    """megatron-core: transformer/transformer_config.py, TransformerConfig.__post_init__."""
    for role in setting.built:
        model = models.of(role)
        if setting.get(f"{role}.strategy") == "megatron" and model is not None:
            yield from _megatron_divides(setting, f"{role}.megatron", model)


def _megatron_divides(setting: Setting, section: str, model: ModelConfig) -> Iterator[Problem]:
    """Heads, layers and experts, by the parallelism of a section."""
    tensor, pipeline, experts = (
        setting.whole(f"{section}.{each}_parallel_size") or 1
        for each in ("tensor_model", "pipeline_model", "expert_model")
    )
    if tensor > 1:
        yield from _divided(f"{section}.tensor_model_parallel_size", tensor, model)
    key = f"{section}.pipeline_model_parallel_size"
    layers, overrides = model.size("num_hidden_layers"), _transformer_overrides(setting, section)
    if layers and layers % pipeline and not any(name.startswith(_UNEVEN) for name in overrides):
        fits = _divisor(layers, pipeline)
        yield Problem(f"{key}={pipeline} does not divide the {layers} layers of {model.name}", f"{key}={fits}")
    key = f"{section}.expert_model_parallel_size"
    if experts > 1 and not model.experts:
        yield Problem(f"{key}={experts}, and {model.name} has no experts", f"{key}=1")
    elif experts > 1 and model.experts % experts:
        fits = _divisor(model.experts, experts)
        yield Problem(f"{key}={experts} does not divide the {model.experts} experts of {model.name}", f"{key}={fits}")


def fine_tuning_divides_the_model(setting: Setting, model: ModelConfig) -> tuple[Problem, ...]:
    """The same of verl's supervised fine-tuning, which has one model and no roles."""
    sections = sections_of(setting)
    if sections.strategy == "megatron":
        return tuple(_megatron_divides(setting, sections.engine, model))
    size = setting.whole(sections.split) or 1
    return tuple(_divided(sections.split, size, model)) if size > 1 else ()


def the_engine_knows_the_class(setting: Setting, models: Models) -> Iterator[Problem]:
    """models/mcore/registry.py: hf_to_mcore_config; workers/config/model.py: HFModelConfig.__post_init__."""
    named = models.actor.values.get("architectures")
    if isinstance(named, list) and len(named) > 1:
        yield Problem(f"config.json of {models.actor.name} names {len(named)} architectures, and verl takes one")
    for role in setting.built:
        model, key = models.of(role), f"{role}.megatron.use_mbridge"
        is_own = setting.get(f"{role}.strategy") == "megatron" and setting.get(key) is False
        if is_own and model is not None and model.architecture not in (*_MEGATRON_CLASSES, ""):
            yield Problem(f"{key}=False: verl itself builds no {model.architecture} for Megatron", f"{key}=True")


def lengths_are_within_the_model(setting: Setting, models: Models) -> Iterator[Problem]:
    """workers/rollout/vllm_rollout/vllm_async_server.py: _validate_configs."""
    key, positions = f"{ROLLOUT}.max_model_len", _positions(setting, models.actor)
    limit = setting.whole(key)
    if setting.get(f"{ROLLOUT}.name") == "vllm" and positions and limit and limit > positions:
        yield Problem(
            f"{key}={limit} is more than the {positions} positions of {models.actor.name}", f"{key}={positions}"
        )


def formats_are_of_the_card(setting: Setting, models: Models) -> Iterator[Problem]:
    """vLLM: platforms/cuda.py, check_if_supports_dtype."""
    key = f"{ROLLOUT}.dtype"
    is_16_bit = str(setting.get(key)) in _16_BIT and setting.get(f"{ROLLOUT}.name") == "vllm"
    if models.card.has_bf16 is False and is_16_bit:
        dtype = f"{ACTOR}.fsdp_config.dtype"
        also = f" {dtype}=float16" if setting.is_fsdp(ACTOR) else ""
        yield Problem(f"{key}={setting.get(key)}: a {models.card.name} has no bf16", f"{key}=float16{also}")


RULES: tuple[Callable[[Setting, Models], Iterator[Problem]], ...] = (
    heads_are_divided_by_the_rollout,
    heads_are_divided_by_sequences,
    megatron_divides_the_model,
    the_engine_knows_the_class,
    lengths_are_within_the_model,
    formats_are_of_the_card,
)


def _notes(setting: Setting, models: Models) -> Iterator[str]:
    model, card = models.actor, models.card
    room, limit = lengths_room(setting, model), setting.whole(f"{ROLLOUT}.max_model_len")
    prompt, answer = (setting.whole(f"data.max_{each}_length") or 0 for each in ("prompt", "response"))
    of = f"{ROLLOUT}.max_model_len" if room == limit else f"positions of {model.name}"
    if room is not None and prompt >= room:
        yield f"data.max_prompt_length={prompt}: a prompt of {room} tokens or more ends the job ({of})"
    elif room is not None and room < prompt + answer:
        yield (
            f"prompt and answer together may have {prompt + answer} tokens, and the rollout ends at {room} ({of}): "
            f"data.max_response_length={room - prompt} never cuts an answer"
        )
    if setting.get(f"{ROLLOUT}.quantization") == "fp8" and card.has_fp8 is False:
        yield f"{ROLLOUT}.quantization=fp8: a {card.name} has no fp8; {ROLLOUT}.quantization=null computes in bf16"
    quantized = model.values.get("quantization_config")
    if isinstance(quantized, Mapping):
        method = str(quantized.get("quant_method"))[:20]
        yield f"the weights of {model.name} are quantized ({method}): verl trains a model with bf16 weights only"
    yield from _other_vocabularies(models)
    is_bridged = setting.get(f"{ACTOR}.strategy") == "megatron" and setting.get(f"{ACTOR}.megatron.use_mbridge")
    if is_bridged and not model.counts.is_exact:
        yield f"whether Megatron's bridge has {model.architecture or 'this architecture'} is not known here"


def _other_vocabularies(models: Models) -> Iterator[str]:
    """Critic and teachers get the actor's tokens; a table that is only padded to another size has the same ones."""
    model, critic = models.actor, models.critic
    actors = model.size("vocab_size") or 0
    if critic is not None and (size := critic.size("vocab_size") or actors) < actors - _PADDING:
        yield (
            f"{model.name} has a vocabulary of {actors}, and the critic {critic.name} one of {size}: a token that "
            f"the critic does not know ends the job; {CRITIC}.model.path={model.name} has the same one"
        )
    for teacher in models.teachers:
        if abs((size := teacher.size("vocab_size") or actors) - actors) > _PADDING:
            yield (
                f"{model.name} has a vocabulary of {actors}, and the teacher {teacher.name} one of {size}: a teacher "
                "has to have the tokens of its student"
            )


def lengths_room(setting: Setting, model: ModelConfig) -> int | None:
    """Tokens that prompt and answer may have together for the rollout; None if unknown."""
    sizes = (_positions(setting, model), setting.whole(f"{ROLLOUT}.max_model_len"))
    return min(filter(None, sizes), default=None)


def _divided(key: str, size: int, model: ModelConfig) -> Iterator[Problem]:
    """Attention heads over `size` GPUs; keys and values may be repeated on each instead."""
    heads, groups = model.heads, model.kv_heads
    if heads is None:
        return
    if heads % size or not _share(groups, size):
        smaller = (each for each in range(size, 0, -1) if size % each == 0)
        fits = next(each for each in smaller if heads % each == 0 and _share(groups, each))
        what = f"{heads} attention heads" if heads % size else f"{groups} heads of keys and values"
        yield Problem(f"{key}={size} does not divide the {what} of {model.name}", f"{key}={fits}")


def _share(groups: int | None, size: int) -> bool:
    """Whether heads of keys and values can be divided, or each be on several GPUs."""
    return groups is None or groups % size == 0 or size % groups == 0


def _divisor(whole: int, size: int) -> int:
    """The largest number that divides both: GPUs are divided by `size`."""
    return math.gcd(whole, size)


def _positions(setting: Setting, model: ModelConfig) -> int | None:
    """None where the configuration changes them."""
    changed = setting.get(f"{MODEL}.override_config")
    if isinstance(changed, Mapping) and any(_mentions(changed, key) for key in _OTHER_LENGTHS):
        return None
    return model.positions


def _mentions(values: Mapping[str, object], key: str) -> bool:
    return key in values or any(_mentions(each, key) for each in values.values() if isinstance(each, Mapping))


def _transformer_overrides(setting: Setting, section: str) -> Mapping[str, object]:
    found = setting.get(f"{section}.override_transformer_config")
    return {name: value for name, value in found.items() if value is not None} if isinstance(found, Mapping) else {}
