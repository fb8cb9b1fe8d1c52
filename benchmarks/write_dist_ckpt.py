"""Writes a Qwen3-MoE of random numbers in Megatron's distributed format, and the config of its base model.

    python write_dist_ckpt.py FOLDER BASE MODEL RANKS [cuda]

torch's own writer of that format, run by as many processes as there are ranks, with Megatron's keys: each expert is
whole on one rank, and of everything else each rank has some rows. Megatron itself is not needed; what its own writer
saves is in tests/shards/fixtures/megatron. With `cuda` all ranks have their tensors on one GPU; the numbers are the
same.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from write_shards import HEAD_DIM, KEY_VALUE_HEADS, MOE, VOCABULARY, Shapes, config


def shapes(size: str) -> tuple[Shapes, Shapes]:
    """Tensors that are cut by rows, and those of experts, which come whole."""
    hidden, expert, layers, heads, experts = MOE[size]
    cut: Shapes = {
        "embedding.word_embeddings.weight": (VOCABULARY, hidden), "decoder.final_layernorm.weight": (hidden,),
        "output_layer.weight": (VOCABULARY, hidden),
    }  # fmt: skip
    whole: Shapes = {}
    for number in range(layers):
        layer = f"decoder.layers.{number}."
        cut |= {
            f"{layer}self_attention.linear_qkv.weight": ((heads + 2 * KEY_VALUE_HEADS) * HEAD_DIM, hidden),
            f"{layer}self_attention.linear_qkv.layer_norm_weight": (hidden,),
            f"{layer}self_attention.linear_proj.weight": (hidden, heads * HEAD_DIM),
            f"{layer}self_attention.q_layernorm.weight": (HEAD_DIM,),
            f"{layer}self_attention.k_layernorm.weight": (HEAD_DIM,),
            f"{layer}pre_mlp_layernorm.weight": (hidden,),
            f"{layer}mlp.router.weight": (experts, hidden),
        }
        for each in range(experts):
            whole[f"{layer}mlp.experts.experts.{each}.linear_fc1.weight"] = (2 * expert, hidden)
            whole[f"{layer}mlp.experts.experts.{each}.linear_fc2.weight"] = (hidden, expert)
    return cut, whole


def write_rank(rank: int, role: Path, size: str, ranks: int, device: str) -> None:
    """This rank's part."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    dist.init_process_group("gloo", init_method=f"file://{role}/meeting", rank=rank, world_size=ranks)
    mesh = init_device_mesh(device, (ranks,))
    torch.manual_seed(rank)
    cut, whole = shapes(size)
    state: dict[str, torch.Tensor] = {}
    for name, (rows, *rest) in cut.items():
        state[name] = DTensor.from_local(torch.randn(rows // ranks, *rest).bfloat16().to(device), mesh, [Shard(0)])
    for number, (name, shape) in enumerate(whole.items()):
        if number // 2 % ranks == rank:
            state[name] = torch.randn(shape).bfloat16().to(device)
    dcp.save(state, checkpoint_id=role / "model" / "dist_ckpt")
    dist.destroy_process_group()


def main() -> None:
    role, base, model, ranks = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    import torch.distributed.checkpoint  # noqa: F401  once, before the processes are forked
    import torch.multiprocessing as mp

    device = "cuda" if sys.argv[5:] == ["cuda"] else "cpu"
    method = "fork" if device == "cpu" else "spawn"  # CUDA does not outlive a fork
    mp.start_processes(write_rank, (role, model.partition("-")[2], ranks, device), ranks, start_method=method)
    (role / "meeting").unlink(missing_ok=True)
    (role / "ckpt_contents.json").write_text("{}")
    (base / "config.json").write_text(json.dumps(config(model)))


if __name__ == "__main__":
    main()
