"""Writes tests/shards/fixtures/torch-VERSION: shards as that version of torch saves them, with values by formula.

Run it with the version's own Python, which needs nothing but torch; a throw-away environment will do:

    python -m venv /tmp/torch24 && /tmp/torch24/bin/pip install torch==2.4.1
    /tmp/torch24/bin/python tests/shards/make_fixtures.py

FSDP1 and FSDP2 over two ranks, and FSDP2 over 2 x 2 ranks, of which the second replica is left out. The calls are those
of verl 0.9.1 (utils/checkpoint/fsdp_checkpoint_manager.py, `save_checkpoint`). Where torch can use a GPU, FSDP2 alone,
of which both ranks are on that GPU, in torch-VERSION-cuda.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardedStateDictConfig, ShardingStrategy, StateDictType

HIDDEN, INTERMEDIATE, VOCABULARY = 6, 4, 13  # 13 rows over two ranks: 7 and 6
HEADS, KEY_VALUE_HEADS = 6, 1  # of one number each, so that a bias has one row: the second of two ranks has none

WORLD_SIZES = {"fsdp1": 2, "fsdp2": 2, "hsdp": 4}
KEPT = {  # some 150 KB in all; FSDP2 of torch 2.4 cannot save replicas
    "2.4.1": ("fsdp1", "fsdp2"),
    "2.6.0": ("fsdp2", "hsdp"),
    "2.8.0": ("fsdp1",),
    "2.13.0": ("fsdp2", "hsdp"),
}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS)
        self.k_proj = nn.Linear(HIDDEN, KEY_VALUE_HEADS)
        self.v_proj = nn.Linear(HIDDEN, KEY_VALUE_HEADS)
        self.o_proj = nn.Linear(HEADS, HIDDEN, bias=False)
        self.register_buffer("positions", torch.arange(5) + 255)  # int64: 257 is not a bfloat16


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, INTERMEDIATE, bias=False)
        self.up_proj = nn.Linear(HIDDEN, INTERMEDIATE, bias=False)
        self.down_proj = nn.Linear(INTERMEDIATE, HIDDEN, bias=False)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention()
        self.mlp = MLP()
        self.input_layernorm = nn.LayerNorm(HIDDEN, bias=False)
        self.post_attention_layernorm = nn.LayerNorm(HIDDEN, bias=False)


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList([Layer()])
        self.norm = nn.LayerNorm(HIDDEN, bias=False)


class Model(nn.Module):
    """The parameters of a Qwen2, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Body()
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)


def set_values(model: nn.Module) -> None:
    """Parameter number n has the values (n + i) * 0.37 % 3 - 1.5 in float32, i counting its elements."""
    for number, parameter in enumerate(model.parameters()):
        index = torch.arange(parameter.numel(), dtype=torch.float64) + number
        parameter.data.copy_((index * 0.37 % 3 - 1.5).float().view_as(parameter))


def wrapped(kind: str, model: nn.Module, world_size: int, device: str) -> nn.Module:
    if kind == "fsdp1":
        mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("fsdp",))
        return FullyShardedDataParallel(
            model, device_mesh=mesh, sharding_strategy=ShardingStrategy.FULL_SHARD, device_id=torch.device("cpu")
        )
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # before torch 2.6
        from torch.distributed._composable.fsdp import fully_shard
    shape, names = ((world_size,), ("fsdp",)) if kind == "fsdp2" else ((2, world_size // 2), ("ddp", "fsdp"))
    fully_shard(model, mesh=init_device_mesh(device, shape, mesh_dim_names=names))
    return model


def work(rank: int, kind: str, world_size: int, rendezvous: str, folder: str, device: str) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
    model = Model()
    set_values(model)
    model = wrapped(kind, model.to(device), world_size, device)
    if kind == "fsdp1":
        FullyShardedDataParallel.set_state_dict_type(
            model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=False)
        )
    state = model.state_dict()
    if rank < 2:
        torch.save(state, os.path.join(folder, f"model_world_size_{world_size}_rank_{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    version = torch.__version__.partition("+")[0]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    root = Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parent / "fixtures")
    for kind in ("fsdp2",) if device == "cuda" else KEPT.get(version, tuple(WORLD_SIZES)):
        world_size = WORLD_SIZES[kind]
        folder = root / (f"torch-{version}" if device == "cpu" else f"torch-{version}-{device}") / kind
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            arguments = (kind, world_size, os.path.join(scratch, "rendezvous"), str(folder), device)
            method = "fork" if device == "cpu" else "spawn"  # CUDA does not outlive a fork
            mp.start_processes(work, arguments, nprocs=world_size, start_method=method)


if __name__ == "__main__":
    main()
