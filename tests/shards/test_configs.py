"""A config that is not that of the tensors: it would load as a model with random numbers in it."""

import shutil
from pathlib import Path

import pytest
from shard_files import config_files, merge_role, rename_tensor

from cloudrl.errors import CheckpointError


@pytest.mark.parametrize(
    ("changes", "word", "way_out"),
    [
        ({"architectures": ["Qwen3VLMoeForConditionalGeneration"]}, "transposed", "Keep the shards"),
        ({"architectures": ["BrandNewForCausalLM"]}, "never compared", "Keep the shards"),
        ({"architectures": ["PhiForCausalLM"]}, "never compared", "python -m verl.model_merger merge"),
        ({"architectures": None}, "names no architecture", "config.json of the base model"),
    ],
)
def test_configs_that_are_not_covered(
    actor: Path, tmp_path: Path, changes: dict[str, object], word: str, way_out: str
) -> None:
    """verl's merger is the way out of those alone whose result was loaded (test_verl_merger.py)."""
    with pytest.raises(CheckpointError, match=word) as caught:
        merge_role(actor, tmp_path / "model", config_files(**changes))
    assert way_out in str(caught.value.hint)
    assert ("model_merger" in way_out) == ("model_merger" in str(caught.value.hint))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": 14}, r"model.embed_tokens.weight is \[13, 6\], and by config.json it is \[14, 6\]"),
        ({"hidden_size": 8}, r"model.embed_tokens.weight is \[13, 6\], and by config.json it is \[13, 8\]"),
        ({"num_hidden_layers": 3}, "there are 1 layers, and config.json says 3"),
        ({"num_hidden_layers": 10**30}, "there are 1 layers, and config.json says 1000000000000000000000000000000"),
        ({"num_attention_heads": 3}, r"k_proj.weight is \[1, 6\], and by config.json it is \[2, 6\]"),
        ({"num_attention_heads": 12, "head_dim": 1}, r"q_proj.weight is \[6, 6\], and by config.json it is \[12, 6\]"),
        ({"num_key_value_heads": 6}, r"k_proj.weight is \[1, 6\], and by config.json it is \[6, 6\]"),
        ({"intermediate_size": 5}, r"gate_proj.weight is \[4, 6\], and by config.json it is \[5, 6\]"),
        ({"hidden_size": -1}, "config.json says hidden_size: '-1', and that is not a size"),
        ({"hidden_size": "6"}, "config.json says hidden_size: '6', and that is not a size"),
        ({"num_hidden_layers": True}, "config.json says num_hidden_layers: 'True', and that is not a size"),
        (
            {"architectures": ["LlamaForCausalLM"]},
            "there are 3 tensors that by config.json no LlamaFor.*bias",
        ),
        ({"architectures": ["Qwen3ForCausalLM"], "head_dim": 1}, "no rank has .*q_norm.weight, and by config.json"),
        ({"architectures": ["Phi3ForCausalLM"]}, "no rank has .*qkv_proj.weight"),
        ({"architectures": ["MixtralForCausalLM"], "num_local_experts": 10**30}, "no rank has .*block_sparse_moe.gate"),
    ],
)
def test_a_config_that_is_not_of_these_tensors(
    actor: Path, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        merge_role(actor, tmp_path / "model", config_files(**changes))
    assert "Is it the config of this model?" in str(caught.value.hint)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("name", ["model.norm.weight", "lm_head.weight", "model.layers.0.self_attn.k_proj.bias"])
def test_a_tensor_that_no_rank_has(actor: Path, tmp_path: Path, name: str) -> None:
    rename_tensor(actor, name, f"{name.rpartition('.')[0]}.buffer" if name != "lm_head.weight" else "model.buffer")
    with pytest.raises(CheckpointError, match=f"no rank has {name}, and by config.json this Qwen2ForCausalLM has one"):
        merge_role(actor, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_no_config(actor: Path) -> None:
    shutil.rmtree(actor / "huggingface")
    with pytest.raises(CheckpointError, match=r"no huggingface/config\.json"):
        merge_role(actor, actor.parent / "model")
