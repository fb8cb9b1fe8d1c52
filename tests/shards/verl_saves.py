"""Checkpoints written by verl's own manager over real gloo, and merged by verl's own merger: a script for a process.

    python verl_saves.py OUT [CASE ...]

writes OUT/CASE/global_step_1/actor (shards of a small model, as a training run leaves them) and OUT/CASE/merged, of all
cases or of these.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from small_models import small_model


class Case(NamedTuple):
    """What is saved. `replicas` of 1 is plain FSDP; without a family it is the tiny model of the CPU recipes."""

    strategy: str
    world_size: int
    replicas: int = 1
    tied: bool = False
    dtype: str = "float32"
    critic: bool = False
    family: str | None = None
    lora: bool = False
    lora_only: bool = False


CASES = {
    "fsdp1": Case("fsdp", 2),
    "fsdp1-tied": Case("fsdp", 2, tied=True),
    "fsdp1-replicas": Case("fsdp", 4, replicas=2),
    "fsdp2-three-ranks-tied": Case("fsdp2", 3, tied=True),
    "fsdp2-replicas": Case("fsdp2", 4, replicas=2),
    "fsdp2-bf16": Case("fsdp2", 2, dtype="bfloat16"),
    "fsdp2-critic": Case("fsdp2", 2, critic=True),
    "fsdp1-one-rank": Case("fsdp", 1),
    "fsdp1-one-rank-tied-bf16": Case("fsdp", 1, tied=True, dtype="bfloat16"),
    "fsdp1-one-rank-critic": Case("fsdp", 1, critic=True),
    "fsdp1-one-rank-qwen3-moe": Case("fsdp", 1, family="Qwen3MoeForCausalLM"),
    "fsdp1-groups-of-one": Case("fsdp", 2, replicas=2),
    "fsdp1-three-ranks": Case("fsdp", 3),
    "fsdp1-four-ranks": Case("fsdp", 4),
    "fsdp1-five-ranks": Case("fsdp", 5),
    "fsdp2-one-rank": Case("fsdp2", 1),
    "fsdp2-one-rank-critic": Case("fsdp2", 1, critic=True),
    "fsdp2-groups-of-one": Case("fsdp2", 2, replicas=2),
    "fsdp2-four-ranks": Case("fsdp2", 4),
    "fsdp2-seven-ranks": Case("fsdp2", 7),
    "fsdp1-qwen3-moe": Case("fsdp", 2, family="Qwen3MoeForCausalLM"),
    "fsdp2-mixtral": Case("fsdp2", 3, family="MixtralForCausalLM"),
    "fsdp1-gpt-oss": Case("fsdp", 2, family="GptOssForCausalLM"),
    "fsdp2-qwen3-next": Case("fsdp2", 2, family="Qwen3NextForCausalLM"),
    "fsdp2-gemma3": Case("fsdp2", 3, tied=True, family="Gemma3ForConditionalGeneration"),
    "fsdp2-qwen2.5-vl-bf16": Case("fsdp2", 2, dtype="bfloat16", family="Qwen2_5_VLForConditionalGeneration"),
}
LORA = {
    "fsdp1-lora": Case("fsdp", 2, family="Qwen2ForCausalLM", lora=True),
    "fsdp1-lora-one-rank": Case("fsdp", 1, family="Qwen2ForCausalLM", lora=True),
    "fsdp1-lora-groups-of-one": Case("fsdp", 2, replicas=2, family="Qwen2ForCausalLM", lora=True),
    "fsdp1-lora-only-one-rank": Case("fsdp", 1, family="Qwen2ForCausalLM", lora=True, lora_only=True),
    "fsdp2-lora-one-rank": Case("fsdp2", 1, family="Qwen2ForCausalLM", lora=True),
    "fsdp2-lora-moe": Case("fsdp2", 2, family="Qwen3MoeForCausalLM", lora=True),
    "fsdp2-lora-only": Case("fsdp2", 3, family="Qwen2_5_VLForConditionalGeneration", lora=True, lora_only=True),
}
"""Merged by peft: verl's merger gives the base model without a word, or none."""
STEPS = 2
STEP = "global_step_1"


def model_of(case: Case, tiny: str) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification

    if case.family is not None:
        family, _, head = case.family.partition("For")
        model = small_model(family, f"For{head}", case.tied).to(getattr(torch, case.dtype))
        model.config.architectures, model.config.dtype = [case.family], model.dtype
        model.config.name_or_path = tiny  # of which verl takes the generation config
        return adapted(model) if case.lora else model
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(tiny)
    config.tie_word_embeddings = case.tied
    kind = AutoModelForCausalLM
    if case.critic:  # verl 0.9.1, utils/model.py, `load_valuehead_model`; the architecture stays as it was
        config.num_labels = 1
        kind = AutoModelForTokenClassification
    model = kind.from_config(config).to(getattr(torch, case.dtype))
    model.config.name_or_path = tiny
    return model


def adapted(model: Any) -> Any:
    """As verl 0.9.1 does it (workers/engine/fsdp/transformer_impl.py, `_build_lora_module`), and as if trained."""
    import torch
    from peft import LoraConfig, TaskType, get_peft_model

    model.enable_input_require_grads()
    model = get_peft_model(
        model, LoraConfig(task_type=TaskType.CAUSAL_LM, r=4, lora_alpha=10, target_modules="all-linear", bias="none")
    )
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape) * 0.3
    return model


def wrapped(case: Case, model: Any) -> Any:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from verl.utils.fsdp_utils import apply_fsdp2, get_fsdp_wrap_policy

    parts = case.world_size // case.replicas
    shape, names = ((parts,), ("fsdp",)) if case.replicas == 1 else ((case.replicas, parts), ("ddp", "fsdp"))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    if case.strategy == "fsdp2":
        apply_fsdp2(model, {"mesh": mesh, "reshard_after_forward": True}, {})
        return model
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=get_fsdp_wrap_policy(model, None, is_lora=case.lora),
        device_mesh=mesh,
        sharding_strategy=ShardingStrategy.FULL_SHARD if case.replicas == 1 else ShardingStrategy.HYBRID_SHARD,
        device_id=torch.device("cpu"),
    )


def save(rank: int, case: Case, tiny: str, rendezvous: str, folder: str) -> None:
    import torch
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=case.world_size
    )
    model = wrapped(case, model_of(case, tiny))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    for _ in range(0 if case.lora else STEPS):
        model(input_ids=torch.arange(24)[None]).logits.float().pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    contents = ["model", "optimizer", "extra"]
    FSDPCheckpointManager(
        model=model,
        optimizer=optimizer,
        lr_scheduler=scheduler,
        processing_class=AutoTokenizer.from_pretrained(tiny),
        checkpoint_config=OmegaConf.create(
            {"load_contents": contents, "save_contents": contents, "save_lora_only": case.lora_only}
        ),
    ).save_checkpoint(folder, global_step=STEPS)
    torch.distributed.destroy_process_group()


def merge(case: Case, actor: str, target: str) -> None:
    """As `python -m verl.model_merger merge` does, without starting a Python for each case."""
    del case
    from verl.model_merger.__main__ import main

    sys.argv = ["merger", "merge", "--backend", "fsdp", "--local_dir", actor, "--target_dir", target]
    main()


def main() -> None:
    import torch.multiprocessing as mp
    import verl.utils.checkpoint.fsdp_checkpoint_manager  # noqa: F401 - once, before the forks

    from cloudrl.verl_cpu.tiny_model import make_tiny_model

    logging.disable(logging.INFO)
    out = Path(sys.argv[1])
    tiny = make_tiny_model(out / "tiny")
    cases, lora = ({name: each[name] for name in each if name in (sys.argv[2:] or each)} for each in (CASES, LORA))
    for name, case in (cases | lora).items():
        folder = out / name
        (folder / STEP).mkdir(parents=True)
        arguments = (case, tiny, str(folder / "rendezvous"), str(folder / STEP / "actor"))
        mp.start_processes(save, arguments, nprocs=case.world_size, start_method="fork")
        (folder / STEP / "data.pt").write_bytes(b"data")  # the driver writes it when all ranks have saved
    for name, case in cases.items():
        merge(case, str(out / name / STEP / "actor"), str(out / name / "merged"))
    for name, case in lora.items():
        model = model_of(case, tiny)
        model.save_pretrained(out / name / "adapter")
        model.merge_and_unload().save_pretrained(out / name / "merged")


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
