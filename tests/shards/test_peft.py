"""LoRA against peft itself: merged as by `merge_and_unload`, and as a folder that peft loads."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_sharded import save
from shard_files import merge_role, read_safetensors, role_folder
from small_models import small_model

from cloudrl.errors import CheckpointError

pytestmark = pytest.mark.verl  # peft and transformers take seconds to import

FAMILIES = {
    "Qwen2": "ForCausalLM",
    "Qwen3Moe": "ForCausalLM",
    "Qwen2Moe": "ForCausalLM",
    "Mixtral": "ForCausalLM",
    "DeepseekV3": "ForCausalLM",
    "Qwen2_5_VL": "ForConditionalGeneration",
    "DeepseekV2": "ForCausalLM",
    "GptOss": "ForCausalLM",
    "Llama4": "ForCausalLM",
    "Qwen3Next": "ForCausalLM",
    "Qwen3_5Moe": "ForCausalLM",
    "Gemma4": "ForCausalLM",
    "Gemma3": "ForConditionalGeneration",
    "InternVL": "ForConditionalGeneration",
    "Glm4v": "ForConditionalGeneration",
}
RANK, ALPHA = 4, 10
OTHER_ORDER = re.compile(r"\.experts\.|\.shared_expert|_b_proj\.|\.per_layer_projection\.")
"""What peft and torch sum in another order than numpy: experts, and matrices that are as narrow as here."""


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def adapted(family: str, dtype: str, *, base: Any = None, **settings: Any) -> Any:
    """As verl 0.9.1 makes it, workers/engine/fsdp/transformer_impl.py, `_build_lora_module`; all halves have values."""
    import torch
    from peft import LoraConfig, TaskType, get_peft_model

    base = base or small_model(family, FAMILIES[family], tied=False).to(getattr(torch, dtype))
    base.config.architectures = [type(base).__name__]
    lora = {"r": RANK, "lora_alpha": ALPHA, "target_modules": "all-linear"} | settings
    model = get_peft_model(base, LoraConfig(task_type=TaskType.CAUSAL_LM, bias="none", **lora))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(False)
        if "lora_" in name:
            parameter.data = (torch.randn(parameter.shape) * 0.3).to(base.dtype)
    return model


def saved(model: Any, run: Path, *, adapter_alone: bool = False) -> Path:
    """As verl saves it, cut over three ranks."""
    actor = role_folder(run)
    actor.mkdir(parents=True)
    state = {name: value for name, value in model.state_dict().items() if "lora_" in name or not adapter_alone}
    for rank in range(3):
        save(actor, state, rank, 3)
    model.config.save_pretrained(actor / "huggingface")
    meta = {"r": RANK, "lora_alpha": ALPHA, "task_type": "CAUSAL_LM"}
    (actor / "lora_train_meta.json").write_text(json.dumps(meta))
    return actor


def merged_by_peft(model: Any, folder: Path) -> dict[str, Any]:
    model.merge_and_unload().save_pretrained(folder)
    return read_safetensors(folder)


def floats(entry: Any) -> Any:
    kind, shape, data = entry
    assert kind == "F32"
    return np.frombuffer(data, "<f4").reshape(shape)


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_in_float32(family: str, tmp_path: Path) -> None:
    model = adapted(family, "float32")
    merge_role(saved(model, tmp_path), tmp_path / "ours", dtype="fp32")
    ours, theirs = read_safetensors(tmp_path / "ours"), merged_by_peft(model, tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    others = {name for name in ours if ours[name] != theirs[name]}
    assert [name for name in others if not OTHER_ORDER.search(name)] == []
    assert all(np.allclose(floats(ours[name]), floats(theirs[name]), rtol=1e-5, atol=1e-5) for name in others)
    config, other = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("ours", "theirs"))
    assert config.pop("torch_dtype", "float32") == other.pop("dtype", "float32") == "float32"
    assert config == other


def test_bf16_is_rounded_once(tmp_path: Path) -> None:
    """peft loads an adapter as float32, and then does so, too; merging a bf16 adapter, it rounds B A by itself."""
    import torch
    from peft import PeftModel

    model = adapted("Qwen2", "bfloat16")
    model.save_pretrained(tmp_path / "adapter")
    merge_role(saved(model, tmp_path), tmp_path / "ours")
    loaded = PeftModel.from_pretrained(model.unload(), str(tmp_path / "adapter"))
    assert {each.dtype for name, each in loaded.named_parameters() if "lora_" in name} == {torch.float32}
    assert read_safetensors(tmp_path / "ours") == merged_by_peft(loaded, tmp_path / "theirs")


@pytest.mark.parametrize("adapter_alone", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_for_peft(family: str, adapter_alone: bool, tmp_path: Path) -> None:
    from peft import PeftModel

    model = adapted(family, "float32")
    actor = saved(model, tmp_path, adapter_alone=adapter_alone)
    merge_role(actor, tmp_path / "ours", lora="adapter")
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors",
    ]  # fmt: skip
    model.save_pretrained(tmp_path / "peft")
    assert read_safetensors(tmp_path / "ours") == read_safetensors(tmp_path / "peft")
    base = small_model(family, FAMILIES[family], tied=False)
    loaded = PeftModel.from_pretrained(base, str(tmp_path / "ours"))
    assert merged_by_peft(loaded, tmp_path / "loaded") == merged_by_peft(model, tmp_path / "theirs")


def test_an_adapter_of_experts_alone(tmp_path: Path) -> None:
    """Whose gate_up_proj has the rank of all others."""
    from peft import PeftModel

    targets = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    model = adapted("Qwen3Moe", "float32", target_modules=[], target_parameters=targets)
    actor = saved(model, tmp_path)
    merge_role(actor, tmp_path / "ours", dtype="fp32")
    merge_role(actor, tmp_path / "adapter", lora="adapter")
    loaded = PeftModel.from_pretrained(small_model("Qwen3Moe", "ForCausalLM", tied=False), str(tmp_path / "adapter"))
    ours, theirs = read_safetensors(tmp_path / "ours"), merged_by_peft(model, tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    assert all(np.allclose(floats(ours[name]), floats(theirs[name]), rtol=1e-5, atol=1e-5) for name in ours)
    assert merged_by_peft(loaded, tmp_path / "loaded") == theirs


@pytest.mark.parametrize(
    ("family", "experts"), [("GptOss", "mlp.experts"), ("Llama4", "feed_forward.experts"), ("Gemma4", "experts")]
)
def test_adapters_of_experts_that_stay_fused(family: str, experts: str, tmp_path: Path) -> None:
    """Refused: they are transposed, or at another place. Here they are square, so that shapes do not tell."""
    mixture = {"enable_moe_block": True, "num_experts": 5, "moe_intermediate_size": 8, "top_k_experts": 2}
    base = small_model(
        family, "ForCausalLM", tied=False, **(mixture if family == "Gemma4" else {"intermediate_size": 8})
    )
    targets = [f"{experts}.gate_up_proj", f"{experts}.down_proj"]
    model = adapted(family, "float32", base=base, target_modules=[], target_parameters=targets)
    actor = saved(model, tmp_path)
    for lora in ("merge", "adapter"):
        with pytest.raises(CheckpointError, match="is an adapter of experts, which is not supported"):
            merge_role(actor, tmp_path / lora, lora=lora)


# where several patterns fit the first counts, and peft writes them in the order of the alphabet
SCALES: dict[str, dict[str, Any]] = {
    "rslora": {"use_rslora": True},
    "alpha": {"alpha_pattern": {"[kq]_proj": 5, r"layers\.1\.mlp\..*": 20, "q_proj": 3}},
    "rank": {"rank_pattern": {"^model.layers.0.self_attn.k_proj": 2, "down_proj": 7}},
    "all": {"use_rslora": True, "rank_pattern": {"v_proj": 3}, "alpha_pattern": {"v_proj": 9, "o_proj": 0.5}},
}


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3Moe", "Qwen2_5_VL"])
@pytest.mark.parametrize("scales", SCALES)
def test_scales_of_an_adapter_that_was_made_elsewhere(family: str, scales: str, tmp_path: Path) -> None:
    """verl trains it with `model.lora_adapter_path`; its config beside the shards tells what it is multiplied with."""
    from peft import PeftModel

    model = adapted(family, "float32", **SCALES[scales])
    actor = saved(model, tmp_path)
    model.save_pretrained(tmp_path / "peft")
    (actor / "adapter_config.json").write_bytes((tmp_path / "peft" / "adapter_config.json").read_bytes())
    done = merge_role(actor, tmp_path / "ours", dtype="fp32")
    assert not any("is multiplied with" in warning for warning in done.warnings)
    merge_role(actor, tmp_path / "adapter", lora="adapter")
    assert read_safetensors(tmp_path / "adapter") == read_safetensors(tmp_path / "peft")
    base = small_model(family, FAMILIES[family], tied=False)
    loaded = merged_by_peft(PeftModel.from_pretrained(base, str(tmp_path / "adapter")), tmp_path / "loaded")
    ours, theirs = read_safetensors(tmp_path / "ours"), merged_by_peft(model, tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    assert all(np.allclose(floats(ours[name]), floats(theirs[name]), rtol=1e-5, atol=1e-5) for name in ours)
    assert loaded == theirs


@pytest.mark.parametrize("lora", ["merge", "adapter"])
def test_wrappers_around_a_model_with_an_adapter(lora: str, tmp_path: Path) -> None:
    model = adapted("Qwen2", "float32")
    merge_role(saved(model, tmp_path), tmp_path / "ours", lora=lora)
    state = {
        f"_orig_mod.{name.replace('.self_attn.', '._checkpoint_wrapped_module.self_attn.')}": value
        for name, value in model.state_dict().items()
    }
    for rank in range(3):
        save(role_folder(tmp_path), state, rank, 3)
    merge_role(role_folder(tmp_path), tmp_path / "theirs", lora=lora)
    assert read_safetensors(tmp_path / "ours") == read_safetensors(tmp_path / "theirs")
