"""Writes a step as verl's FSDP workers would: `python make_sharded.py FOLDER WORLD_SIZE STEP...`, with torch.

Some MB of float32 in DTensors; there is one process, which says to be one rank after the other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

HIDDEN, VOCABULARY, LAYERS = 256, 2001, 2
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": HIDDEN, "intermediate_size": 512,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": VOCABULARY,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "dtype": "float32",
}  # fmt: skip


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        base = f"model.layers.{layer}."
        found |= {f"{base}self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
        found |= {f"{base}self_attn.{name}_proj.bias": (HIDDEN,) for name in "qkv"}
        found |= {f"{base}mlp.{name}_proj.weight": (512, HIDDEN) for name in ("gate", "up")}
        found |= {f"{base}mlp.down_proj.weight": (HIDDEN, 512)}
        found |= {f"{base}{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
    return found | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}


def save(folder: Path, state: Mapping[str, torch.Tensor], rank: int, world_size: int, *, device: str = "cpu") -> None:
    """One rank's part of a model; every rank has the whole of what is not a float."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    mesh = init_device_mesh(device, (world_size,), mesh_dim_names=("fsdp",))
    parts = {}
    for name, whole in state.items():
        if whole.dim() == 0 or not whole.is_floating_point():
            parts[name] = whole
            continue
        chunks = list(torch.chunk(whole.detach(), world_size))
        local = (chunks[rank] if rank < len(chunks) else whole[:0]).clone().to(device)
        parts[name] = DTensor.from_local(
            local, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
        )
    torch.save(parts, folder / f"model_world_size_{world_size}_rank_{rank}.pt")
    dist.destroy_process_group()


def whole(step: int) -> dict[str, torch.Tensor]:
    """The model of a step."""
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes().items()}


def save_step(folder: Path, step: int, rank: int, world_size: int, *, device: str = "cpu") -> None:
    save(folder, whole(step), rank, world_size, device=device)
    extra = {"lr_scheduler": {"last_epoch": step}, "rng": {}}
    torch.save(extra, folder / f"extra_state_world_size_{world_size}_rank_{rank}.pt")


def main(root: str, step: int, world_size: int, *, device: str = "cpu") -> None:
    folder = Path(root) / f"global_step_{step}" / "actor"
    (folder / "huggingface").mkdir(parents=True)
    for rank in range(world_size):
        save_step(folder, step, rank, world_size, device=device)
    (folder / "huggingface" / "config.json").write_text(json.dumps(CONFIG))
    (folder / "huggingface" / "tokenizer.json").write_text("{}")
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world_size}))
    (folder.parent / "data.pt").write_bytes(b"data")
    (Path(root) / "latest_checkpointed_iteration.txt").write_text(str(step))


if __name__ == "__main__":
    for step in sys.argv[3:]:
        main(sys.argv[1], int(step), int(sys.argv[2]))
