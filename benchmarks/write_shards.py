"""Writes the shards of a model with random numbers, as verl's FSDP2 workers save them: one process, rank after rank.

    python write_shards.py FOLDER MODEL RANKS DTYPE

torch's own stand-in for a process group makes this possible with the memory of one shard. The state dict is a real one:
DTensors over a mesh of all ranks, written with `torch.save`, under the names that transformers 5 has in memory.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# Hugging Face configs of Qwen2.5: hidden, intermediate, layers, heads, key-value heads
QWEN2 = {
    "tiny": (64, 128, 2, 4, 2),
    "0.5B": (896, 4864, 24, 14, 2),
    "1.5B": (1536, 8960, 28, 12, 2),
    "3B": (2048, 11008, 36, 16, 2),
}
# a Qwen3-MoE with the layers of a small model and many small experts: hidden, of an expert, layers, heads, experts;
# the last has as many tensors as Qwen3-30B-A3B, and little in each
MOE = {"tiny": (64, 32, 2, 4, 4), "0.6B": (512, 192, 24, 8, 64), "30B-thin": (64, 64, 48, 4, 128)}
EXPERTS = ("moe", "unfused")
"""Experts as transformers 5 has them in memory, and as transformers 4 has them: each matrix by itself."""
LORA_RANK = 32
HEAD_DIM, KEY_VALUE_HEADS = 64, 2
VOCABULARY = 151_936
Shapes = dict[str, tuple[int, ...]]


def config(model: str) -> dict[str, Any]:
    """What `huggingface/config.json` says of `moe-0.6B`, `unfused-30B-thin`, `lora-0.5B` or `dense-0.5B`."""
    kind, _, size = model.partition("-")
    if kind in EXPERTS:
        hidden, expert, layers, heads, experts = MOE[size]
        return _config("Qwen3Moe", "qwen3_moe", hidden, layers, heads) | {
            "intermediate_size": 2 * hidden, "moe_intermediate_size": expert, "num_experts": experts,
            "num_experts_per_tok": 4, "num_key_value_heads": KEY_VALUE_HEADS, "head_dim": HEAD_DIM,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False,
        }  # fmt: skip
    hidden, intermediate, layers, heads, key_value_heads = QWEN2[size]
    return _config("Qwen2", "qwen2", hidden, layers, heads) | {
        "intermediate_size": intermediate, "num_key_value_heads": key_value_heads, "tie_word_embeddings": True,
    }  # fmt: skip


def _config(family: str, model_type: str, hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "architectures": [f"{family}ForCausalLM"], "model_type": model_type, "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": VOCABULARY, "dtype": "float32",
    }  # fmt: skip


def shapes(model: str) -> Shapes:
    """Every tensor, in the order of the state dict."""
    kind, _, size = model.partition("-")
    layer = _moe_layer(*MOE[size]) if kind in EXPERTS else _dense_layer(*QWEN2[size])
    hidden, _, layers, *_ = MOE[size] if kind in EXPERTS else QWEN2[size]
    if kind == "unfused":
        layer = _unfused(layer)
    found: Shapes = {"model.embed_tokens.weight": (VOCABULARY, hidden)}
    for number in range(layers):
        found |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    found |= {"model.norm.weight": (hidden,), "lm_head.weight": (VOCABULARY, hidden)}
    return _adapted(found) if kind == "lora" else found


def _dense_layer(hidden: int, intermediate: int, _layers: int, heads: int, key_value_heads: int) -> Shapes:
    key_value = hidden // heads * key_value_heads
    return {
        "self_attn.q_proj.weight": (hidden, hidden), "self_attn.q_proj.bias": (hidden,),
        "self_attn.k_proj.weight": (key_value, hidden), "self_attn.k_proj.bias": (key_value,),
        "self_attn.v_proj.weight": (key_value, hidden), "self_attn.v_proj.bias": (key_value,),
        "self_attn.o_proj.weight": (hidden, hidden),
        "mlp.gate_proj.weight": (intermediate, hidden), "mlp.up_proj.weight": (intermediate, hidden),
        "mlp.down_proj.weight": (hidden, intermediate),
        "input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,),
    }  # fmt: skip


def _moe_layer(hidden: int, expert: int, _layers: int, heads: int, experts: int) -> Shapes:
    """The experts are fused, as in memory."""
    query, key_value = heads * HEAD_DIM, KEY_VALUE_HEADS * HEAD_DIM
    return {
        "self_attn.q_proj.weight": (query, hidden), "self_attn.k_proj.weight": (key_value, hidden),
        "self_attn.v_proj.weight": (key_value, hidden), "self_attn.o_proj.weight": (hidden, query),
        "self_attn.q_norm.weight": (HEAD_DIM,), "self_attn.k_norm.weight": (HEAD_DIM,),
        "mlp.gate.weight": (experts, hidden),
        "mlp.experts.gate_up_proj": (experts, 2 * expert, hidden), "mlp.experts.down_proj": (experts, hidden, expert),
        "input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,),
    }  # fmt: skip


def _unfused(layer: Shapes) -> Shapes:
    """The same with a matrix for each expert."""
    found: Shapes = {}
    for name, shape in layer.items():
        if not name.startswith("mlp.experts."):
            found[name] = shape
            continue
        is_pair = name.endswith("gate_up_proj")
        kinds, rows = (("gate_proj", "up_proj"), shape[1] // 2) if is_pair else (("down_proj",), shape[1])
        for expert in range(shape[0]):
            found |= {f"mlp.experts.{expert}.{kind}.weight": (rows, shape[2]) for kind in kinds}
    return found


def _adapted(found: Shapes) -> Shapes:
    """The same as peft wraps it, with an adapter at every linear layer."""
    wrapped: Shapes = {}
    for name, shape in found.items():
        module, _, kind = f"base_model.model.{name}".rpartition(".")
        if not module.endswith("_proj"):
            wrapped[f"{module}.{kind}"] = shape
            continue
        wrapped[f"{module}.base_layer.{kind}"] = shape
        if kind == "weight":
            wrapped[f"{module}.lora_A.default.weight"] = (LORA_RANK, shape[1])
            wrapped[f"{module}.lora_B.default.weight"] = (shape[0], LORA_RANK)
    return wrapped


def main() -> None:
    folder, model, ranks, dtype = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    for rank in range(ranks):
        write_rank(folder, model, ranks, rank, dtype)
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    if model.startswith("lora-"):
        meta = {"r": LORA_RANK, "lora_alpha": 2 * LORA_RANK, "task_type": "CAUSAL_LM"}
        (folder / "lora_train_meta.json").write_text(json.dumps(meta))
    (folder / "huggingface").mkdir()
    (folder / "huggingface" / "config.json").write_text(json.dumps(config(model) | {"dtype": dtype}))


def write_rank(folder: Path, model: str, ranks: int, rank: int, dtype: str) -> None:
    """One shard."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",))
    torch.manual_seed(rank)
    state: dict[str, torch.Tensor] = {}
    is_tied = config(model)["tie_word_embeddings"]
    for name, shape in shapes(model).items():
        if name.endswith("lm_head.weight") and is_tied:
            state[name] = state[name.replace("lm_head", "model.embed_tokens")]
            continue
        each = -(-shape[0] // ranks)
        rows = max(0, min(each, shape[0] - rank * each))
        local = torch.randn((rows, *shape[1:]), dtype=torch.float32).mul_(0.02).to(getattr(torch, dtype))
        strides = torch.empty(shape, device="meta").stride()
        state[name] = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=shape, stride=strides)
    torch.save(state, folder / f"model_world_size_{ranks}_rank_{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
