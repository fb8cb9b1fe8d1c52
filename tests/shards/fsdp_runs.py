"""Trains a small model under real FSDP over gloo, saves and loads with verl's own manager: a script for a process.

    python fsdp_runs.py PATH_OF_JOBS

PATH_OF_JOBS is a JSON list of {"case", "ranks", "folder", "load"}: train STEPS steps over so many ranks and save into
`folder/global_step_2/actor`, or with `load` load that from there. Then `folder/state.pt` has the whole model and
optimizer, and `folder/loss.json` the count of steps and the losses after two more.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

STEPS = 2
STEP = f"global_step_{STEPS}"
CASES: dict[str, dict[str, Any]] = {
    "fsdp1": {}, "fsdp2": {}, "fsdp1-tied": {"tied": True}, "fsdp2-tied-bf16": {"tied": True, "dtype": "bfloat16"},
    "fsdp1-lora": {"lora": True}, "fsdp2-lora": {"lora": True}, "fsdp1-moe": {"family": "Qwen3MoeForCausalLM"},
    "fsdp1-vision": {"family": "Qwen2_5_VLForConditionalGeneration"},
    "fsdp2-moe": {"family": "MixtralForCausalLM"}, "fsdp1-orig": {}, "fsdp1-replicas": {}, "fsdp2-replicas": {},
}  # fmt: skip


def make_model(name: str) -> Any:
    """The model of a case; the same on all ranks."""
    import torch
    from small_models import small_model

    case = CASES[name]
    family, _, head = case.get("family", "Qwen2ForCausalLM").partition("For")
    model = small_model(family, f"For{head}", case.get("tied", False))
    torch.manual_seed(0)
    model = model.to(getattr(torch, case.get("dtype", "float32")))
    model.model.register_buffer("positions", torch.arange(5) + 255)
    if case.get("lora"):
        from peft import LoraConfig, TaskType, get_peft_model

        model.enable_input_require_grads()
        settings = LoraConfig(task_type=TaskType.CAUSAL_LM, r=3, lora_alpha=6, target_modules="all-linear", bias="none")
        model = get_peft_model(model, settings)
    return model


def shard(name: str, model: Any, ranks: int) -> Any:
    """The model under FSDP, as verl 0.9.1 does it (workers/engine/fsdp/transformer_impl.py, `_build_fsdp_module`)."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from verl.utils.fsdp_utils import apply_fsdp2, get_fsdp_wrap_policy

    shape, names = ((ranks,), ("fsdp",)) if "replicas" not in name else ((ranks // 2, 2), ("ddp", "fsdp"))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    if name.startswith("fsdp2"):
        apply_fsdp2(model, {"mesh": mesh, "reshard_after_forward": True}, {})
        return model
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=get_fsdp_wrap_policy(model, None, is_lora="lora" in name),
        device_mesh=mesh,
        sharding_strategy=ShardingStrategy.FULL_SHARD if len(shape) == 1 else ShardingStrategy.HYBRID_SHARD,
        device_id=torch.device("cpu"),
        use_orig_params="orig" in name,
    )


def whole_state(name: str, model: Any, optimizer: Any) -> dict[str, Any]:
    """Everything gathered."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

    if name.startswith("fsdp2"):
        whole, state = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
        return {"model": whole, "optimizer": state}
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        whole = {name: value.clone() for name, value in model.state_dict().items()}
        return {"model": whole, "optimizer": FullyShardedDataParallel.full_optim_state_dict(model, optimizer)}


def run(rank: int, job: dict[str, Any]) -> None:
    import torch
    from omegaconf import OmegaConf
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    name, ranks, folder = job["case"], job["ranks"], Path(job["folder"])
    rendezvous = f"file://{folder / 'rendezvous'}"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    model = shard(name, make_model(name), ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))

    def step() -> float:
        loss = model(input_ids=torch.arange(24)[None] % 20).logits.float().pow(2).mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return float(loss.detach())

    contents = ["model", "optimizer", "extra"]
    manager = FSDPCheckpointManager(
        model=model, optimizer=optimizer, lr_scheduler=scheduler, processing_class=None,
        checkpoint_config=OmegaConf.create({"load_contents": contents, "save_contents": contents}),
    )  # fmt: skip
    if job.get("load"):
        manager.load_checkpoint(str(folder / STEP / "actor"))
    else:
        for _ in range(STEPS):
            step()
        (folder / STEP).mkdir(exist_ok=True)
        manager.save_checkpoint(str(folder / STEP / "actor"), global_step=STEPS)
    state = whole_state(name, model, optimizer)
    if rank == 0:
        torch.save(state, folder / "state.pt")  # at once: with one rank, what was gathered is what is trained
    losses = [step(), step()]
    if rank == 0:
        (folder / "loss.json").write_text(json.dumps([scheduler.last_epoch, *losses]))
    torch.distributed.destroy_process_group()


def main() -> None:
    import torch.multiprocessing as mp
    import verl.utils.checkpoint.fsdp_checkpoint_manager  # noqa: F401 - once, before the forks

    logging.disable(logging.INFO)
    for job in json.loads(Path(sys.argv[1]).read_text()):
        Path(job["folder"]).mkdir(parents=True, exist_ok=True)
        mp.start_processes(run, (job,), nprocs=job["ranks"], start_method="fork")


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
