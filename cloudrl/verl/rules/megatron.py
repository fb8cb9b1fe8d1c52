"""What Megatron asks of its process groups (verl 0.9.1, workers/engine/megatron/transformer_impl.py)."""

from __future__ import annotations

from collections.abc import Iterator

from cloudrl.verl.keys import ACTOR, REF
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.setting import Setting


def megatron_groups_fit(setting: Setting) -> Iterator[Problem]:
    """workers/engine/megatron/transformer_impl.py: _init_device_mesh, which calls Megatron's initialize_model_parallel.

    All engines of a process share the groups of the one that is built first.
    """
    role = setting.built_first
    if setting.get(f"{role}.strategy") != "megatron":
        return
    sizes = {name: setting.whole(f"{role}.megatron.{name}_parallel_size") for name in (
        "tensor_model", "pipeline_model", "context", "expert_model", "expert_tensor", "virtual_pipeline_model"
    )}  # fmt: skip
    tensor, pipeline, context, experts = (
        sizes[name] or 0 for name in ("tensor_model", "pipeline_model", "context", "expert_model")
    )
    if min(tensor, pipeline, context, experts) < 1:  # which another rule reports
        return
    section, gpus = f"{role}.megatron", setting.world_size
    shared = tensor * pipeline * context
    if gpus % shared:
        yield Problem(
            f"{gpus} GPUs cannot be divided by {section}.tensor_model_parallel_size={tensor} times pipeline "
            f"({pipeline}) and context parallelism ({context})",
            _largest(setting, role, "tensor_model_parallel_size", tensor, gpus, pipeline * context),
        )
    of_experts = (sizes["expert_tensor"] or tensor) * experts * pipeline
    if experts > 1 and gpus % of_experts:
        key = f"{section}.expert_model_parallel_size"
        yield Problem(
            f"{gpus} GPUs cannot be divided by {key}={experts} times expert tensor "
            f"({sizes['expert_tensor'] or tensor}) and pipeline parallelism ({pipeline})",
            _largest(setting, role, "expert_model_parallel_size", experts, gpus, of_experts // experts),
        )
    if (sizes["virtual_pipeline_model"] is not None) and pipeline < 2:
        key = f"{section}.virtual_pipeline_model_parallel_size"
        yield Problem(
            f"{key}={sizes['virtual_pipeline_model']} needs pipeline parallelism of at least 2", f"{key}=null"
        )


def megatron_features_fit(setting: Setting) -> Iterator[Problem]:
    """workers/engine/megatron/transformer_impl.py: _check_dcp_unsupported_features, _validate_dcp_world_size."""
    for role in setting.built:
        section = f"{role}.megatron"
        if setting.get(f"{role}.strategy") != "megatron":
            continue
        if setting.get(f"{section}.use_mbridge") is False:
            yield Problem(f"{section}.use_mbridge=False: verl needs the bridge", f"{section}.use_mbridge=True")
        if setting.get(f"{section}.qat.enable") and setting.get(f"{section}.vanilla_mbridge"):
            yield Problem(f"{section}.qat needs Megatron-Bridge", f"{section}.vanilla_mbridge=False")
        if not setting.get(f"{section}.dynamic_context_parallel"):
            continue
        key = f"{section}.dynamic_context_parallel"
        if role == "critic":
            yield Problem(f"{key}: verl has it for language models only, not for a critic", f"{key}=False")
        if setting.get(f"{section}.pad_to_length"):
            yield Problem(f"{key} and {section}.pad_to_length exclude each other", f"{section}.pad_to_length=False")
        if setting.whole(f"{section}.virtual_pipeline_model_parallel_size") not in (None, 1):
            yield Problem(f"{key} and virtual pipeline parallelism exclude each other",
                          f"{section}.virtual_pipeline_model_parallel_size=null")  # fmt: skip


def _largest(setting: Setting, role: str, name: str, size: int, gpus: int, others: int) -> str:
    """The largest size below that divides what the others leave; of the actor, too, if a reference has its size."""
    if gpus % others:
        return ""
    room = gpus // others
    fitting = next(each for each in range(min(size, room), 0, -1) if room % each == 0)
    roles = (ACTOR, REF) if role == REF and setting.whole(f"{ACTOR}.megatron.{name}") == size else (role,)
    return " ".join(f"{each}.megatron.{name}={fitting}" for each in roles)


RULES = (megatron_groups_fit, megatron_features_fit)
