"""Each `null` in a config.json: what is merged loads as the model that it was, or the merge is refused."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from shard_files import merge_role, role_folder
from small_models import small_model

from cloudrl.errors import CheckpointError
from cloudrl.shards.architectures import SEEING

pytestmark = pytest.mark.verl  # transformers takes seconds to import

MORE = ("quantization_config", "num_key_value_heads", "head_dim", "sliding_window")
KNOWN = {
    "first_k_dense_replace", "head_dim", "hidden_act", "hidden_activation", "hidden_size", "intermediate_size",
    "intermediate_size_mlp", "kv_lora_rank", "layer_types", "linear_conv_kernel_dim", "linear_key_head_dim",
    "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim", "mlp_only_layers", "model_type",
    "moe_intermediate_size", "moe_layers", "n_routed_experts", "n_shared_experts", "num_attention_heads", "num_experts",
    "num_hidden_layers", "num_key_value_heads", "num_kv_shared_layers", "num_local_experts", "q_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim", "query_pre_attn_scalar", "shared_expert_intermediate_size",
    "sliding_window", "use_double_wide_mlp", "v_head_dim", "vocab_size", "vocab_size_per_layer_input",
    "hidden_size_per_layer_input", "global_head_dim",
}  # fmt: skip
"""Those without which a model cannot be made, or is another one."""


OFTEN = ("Qwen3", "Gemma3", "DeepseekV3", "Qwen3VL", "Qwen3_5Moe")
OTHERS = ("Qwen2", "Llama", "Gemma2", "Mistral", "Qwen3Moe", "GptOss", "Gemma4", "Qwen3Next", "Llama4", "DeepseekV2")


@pytest.mark.parametrize("family", [*OFTEN, *(pytest.param(family, marks=pytest.mark.slow) for family in OTHERS)])
def test_each_key(family: str, tmp_path: Path) -> None:
    import torch
    from make_sharded import save

    warnings.simplefilter("ignore")
    model = small_model(family, SEEING if family == "Qwen3VL" else "ForCausalLM", tied=False)
    model.config.architectures = [type(model).__name__]
    actor = role_folder(tmp_path)
    actor.mkdir(parents=True)
    save(actor, model.state_dict(), 0, 1)
    model.config.save_pretrained(actor / "huggingface")
    path = actor / "huggingface" / "config.json"
    config = json.loads(path.read_text())
    wrong, refused = {}, []
    for key, changed in nulled(config):
        path.write_text(json.dumps(changed))
        target = tmp_path / "model" / key
        try:
            merge_role(actor, target, dtype="keep")
        except CheckpointError as error:
            refused.append((key, error.message, error.hint))
            continue
        try:
            loaded, about = type(model).from_pretrained(target, output_loading_info=True)
        except Exception as error:  # noqa: BLE001  of any kind
            wrong[key] = repr(error)[:200]
            continue
        state = loaded.state_dict()
        if any(about.values()) or not all(torch.equal(state[name], each) for name, each in model.state_dict().items()):
            wrong[key] = str(about)
    assert wrong == {}
    assert [each for each in refused if "config.json" not in each[1] or not each[2]] == []
    assert {"hidden_size", "vocab_size"} <= {key for key, _, _ in refused} <= KNOWN


def nulled(config: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """With one key of the text model as null each."""
    text = config.get("text_config", config)
    found = []
    for key in dict.fromkeys((*text, *MORE)):
        if key not in {"dtype", "architectures"}:
            changed = {**text, key: None}
            found.append((key, {**config, "text_config": changed} if text is not config else changed))
    return found


@pytest.mark.parametrize("groups", [1, 2])
def test_as_many_groups_as_heads(groups: int, tmp_path: Path) -> None:
    """transformers 4 wrote null for that; with fewer, the config is that of another model."""
    from make_sharded import save

    model = small_model("Mistral", "ForCausalLM", tied=False, num_key_value_heads=groups)
    model.config.architectures = ["MistralForCausalLM"]
    actor = role_folder(tmp_path)
    actor.mkdir(parents=True)
    save(actor, model.state_dict(), 0, 1)
    model.config.save_pretrained(actor / "huggingface")
    path = actor / "huggingface" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_key_value_heads": None}))
    if groups == 2:
        merge_role(actor, tmp_path / "model")
        assert json.loads((tmp_path / "model" / "config.json").read_text())["num_key_value_heads"] == 2
        type(model).from_pretrained(tmp_path / "model")
    else:
        with pytest.raises(CheckpointError, match=r"k_proj.weight is \[8, 16\], and by config.json it is \[16, 16\]"):
            merge_role(actor, tmp_path / "model")
