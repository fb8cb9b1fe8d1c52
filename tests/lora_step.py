"""A step with a LoRA adapter, for tests: all tensors of a small Qwen2, one rank, written without torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from shards.crafted import archived, dump

from cloudrl.shards.pickled import PickledObject, Storage

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 8, "intermediate_size": 12,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 11,
    "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip
RANK, ALPHA = 2, 6
META = {"r": RANK, "lora_alpha": ALPHA, "task_type": "CAUSAL_LM"}
_LAYER = "model.layers.0."
MODEL = {
    "model.embed_tokens.weight": (11, 8),
    f"{_LAYER}self_attn.q_proj.weight": (8, 8), f"{_LAYER}self_attn.q_proj.bias": (8,),
    f"{_LAYER}self_attn.k_proj.weight": (4, 8), f"{_LAYER}self_attn.k_proj.bias": (4,),
    f"{_LAYER}self_attn.v_proj.weight": (4, 8), f"{_LAYER}self_attn.v_proj.bias": (4,),
    f"{_LAYER}self_attn.o_proj.weight": (8, 8),
    f"{_LAYER}mlp.gate_proj.weight": (12, 8), f"{_LAYER}mlp.up_proj.weight": (12, 8),
    f"{_LAYER}mlp.down_proj.weight": (8, 12),
    f"{_LAYER}input_layernorm.weight": (8,), f"{_LAYER}post_attention_layernorm.weight": (8,),
    "model.norm.weight": (8,),
    "lm_head.weight": (11, 8),
}  # fmt: skip
Floats = dict[str, "np.ndarray[Any, np.dtype[Any]]"]


def write_lora_step(run: Path, step: int) -> Floats:
    """Write it as verl does, all linear layers adapted; returns the tensors of the merged model."""
    numbers = np.random.default_rng(step)
    stored: Floats = {}
    merged: Floats = {}
    for name, shape in MODEL.items():
        whole = numbers.integers(-64, 64, shape).astype("<f4") / 64
        module = name.removesuffix(".weight")
        if not module.endswith("_proj"):
            stored[f"base_model.model.{name}".replace("_proj.bias", "_proj.base_layer.bias")] = merged[name] = whole
            continue
        a, b = (numbers.integers(-8, 8, size).astype("<f4") / 8 for size in ((RANK, shape[1]), (shape[0], RANK)))
        stored[f"base_model.model.{module}.base_layer.weight"] = whole
        stored[f"base_model.model.{module}.lora_A.default.weight"] = a
        stored[f"base_model.model.{module}.lora_B.default.weight"] = b
        merged[name] = whole + ALPHA / RANK * (b @ a)  # exact: these are small fractions
    actor = run / f"global_step_{step}" / "actor"
    (actor / "huggingface").mkdir(parents=True)
    (actor / "model_world_size_1_rank_0.pt").write_bytes(torch_file(stored, "model_world_size_1_rank_0"))
    (actor / "huggingface" / "config.json").write_text(json.dumps(CONFIG))
    (actor / "huggingface" / "tokenizer.json").write_text("{}")
    (actor / "lora_train_meta.json").write_text(json.dumps(META))
    (actor.parent / "data.pt").write_bytes(b"data")
    (run / "latest_checkpointed_iteration.txt").write_text(str(step))
    return merged


def torch_file(tensors: Floats, root: str) -> bytes:
    """What `torch.save` makes of float32 tensors."""
    content = {f"data/{number}": value.tobytes() for number, value in enumerate(tensors.values())}
    state = {name: _tensor(str(number), value) for number, (name, value) in enumerate(tensors.items())}
    return archived({"data.pkl": dump(state), **content}, root)


def _tensor(key: str, value: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> PickledObject:
    strides = tuple(stride // value.itemsize for stride in value.strides)
    storage = Storage("torch.FloatStorage", key, value.size)
    return PickledObject("torch._utils._rebuild_tensor_v2", (storage, 0, value.shape, strides, False, {}))
