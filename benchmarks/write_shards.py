"""Writes one rank's shard of a Qwen2 of a given size, with random numbers, as verl's FSDP2 workers save it.

    python write_shards.py FOLDER MODEL WORLD_SIZE RANK DTYPE

torch's own stand-in for a process group makes this possible with one process and the memory of one shard. The
state dict is a real one: DTensors over a mesh of all ranks, written with `torch.save`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# Hugging Face configs of Qwen2.5: hidden, intermediate, layers, heads, key-value heads, tied embeddings
MODELS = {
    "tiny": (64, 128, 2, 4, 2, True),
    "0.5B": (896, 4864, 24, 14, 2, True),
    "1.5B": (1536, 8960, 28, 12, 2, True),
    "3B": (2048, 11008, 36, 16, 2, True),
}
VOCABULARY = 151_936


def config(model: str, dtype: str) -> dict[str, Any]:
    """What `huggingface/config.json` says."""
    hidden, intermediate, layers, heads, key_value_heads, tied = MODELS[model]
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": tied,
        "dtype": dtype,
    }


def shapes(model: str) -> dict[str, tuple[int, ...]]:
    """Every tensor, in the order of the state dict."""
    hidden, intermediate, layers, heads, key_value_heads, _ = MODELS[model]
    key_value = hidden // heads * key_value_heads
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, hidden)}
    for layer in range(layers):
        for name, shape in {
            "self_attn.q_proj.weight": (hidden, hidden),
            "self_attn.q_proj.bias": (hidden,),
            "self_attn.k_proj.weight": (key_value, hidden),
            "self_attn.k_proj.bias": (key_value,),
            "self_attn.v_proj.weight": (key_value, hidden),
            "self_attn.v_proj.bias": (key_value,),
            "self_attn.o_proj.weight": (hidden, hidden),
            "mlp.gate_proj.weight": (intermediate, hidden),
            "mlp.up_proj.weight": (intermediate, hidden),
            "mlp.down_proj.weight": (hidden, intermediate),
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
        }.items():
            found[f"model.layers.{layer}.{name}"] = shape
    return found | {"model.norm.weight": (hidden,), "lm_head.weight": (VOCABULARY, hidden)}


def main() -> None:
    folder, model, world_size, rank, dtype = (sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("fsdp",))
    torch.manual_seed(rank)
    state: dict[str, torch.Tensor] = {}
    for name, shape in shapes(model).items():
        if name == "lm_head.weight":
            state[name] = state["model.embed_tokens.weight"]
            continue
        each = -(-shape[0] // world_size)
        rows = max(0, min(each, shape[0] - rank * each))
        local = torch.randn((rows, *shape[1:]), dtype=torch.float32).mul_(0.02).to(getattr(torch, dtype))
        strides = torch.empty(shape, device="meta").stride()
        state[name] = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=shape, stride=strides)
    torch.save(state, Path(folder) / f"model_world_size_{world_size}_rank_{rank}.pt")
    if rank == 0:
        (Path(folder) / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world_size}))
        (Path(folder) / "huggingface").mkdir(exist_ok=True)
        (Path(folder) / "huggingface" / "config.json").write_text(json.dumps(config(model, dtype)))


if __name__ == "__main__":
    main()
