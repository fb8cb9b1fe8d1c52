"""Every architecture that is claimed, against what transformers itself saves of it."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from shard_files import merge_role, read_safetensors, role_folder, shard_path

from cloudrl.shards.architectures import FAMILIES, WITHOUT_CRITIC

pytestmark = pytest.mark.verl  # transformers takes seconds to import

SMALL = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 8,
}


def small_model(family: str, head: str, tied: bool) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, family + head)
    return kind(kind.config_class(**SMALL, tie_word_embeddings=tied, num_labels=1))


def saved(model: Any, run: Path) -> Path:
    """The folder of an actor of one rank that has this model, without FSDP."""
    import torch

    actor = role_folder(run)
    actor.mkdir(parents=True)
    torch.save(model.state_dict(), shard_path(actor, 0, 1))
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(actor / "huggingface")
    return actor


@pytest.mark.parametrize(
    ("family", "head", "tied"),
    [
        *((family, "ForCausalLM", tied) for family in FAMILIES + WITHOUT_CRITIC for tied in (False, True)),
        *((family, "ForTokenClassification", False) for family in FAMILIES),
    ],
)
def test_as_save_pretrained(family: str, head: str, tied: bool, tmp_path: Path) -> None:
    warnings.simplefilter("ignore")
    model = small_model(family, head, tied)
    model.save_pretrained(tmp_path / "theirs")
    merge_role(saved(model, tmp_path), tmp_path / "ours", dtype="keep")
    assert read_safetensors(tmp_path / "ours") == read_safetensors(tmp_path / "theirs")
    assert (tmp_path / "ours" / "model.safetensors").read_bytes() == (
        tmp_path / "theirs" / "model.safetensors"
    ).read_bytes()
    ours, theirs = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("ours", "theirs"))
    assert ours == theirs


@pytest.mark.parametrize("family", FAMILIES + WITHOUT_CRITIC)
def test_transformers_loads_it(family: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    warnings.simplefilter("ignore")
    model = small_model(family, "ForCausalLM", tied=True)
    merge_role(saved(model, tmp_path), tmp_path / "ours")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert loaded.dtype is torch.bfloat16
    state = loaded.state_dict()
    assert state.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(state[name], value.bfloat16())
