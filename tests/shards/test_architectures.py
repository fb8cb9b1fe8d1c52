"""Every architecture that is claimed, against what transformers itself saves of it."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from shard_files import merge_role, read_safetensors, role_folder
from small_models import small_model

from cloudrl.errors import CheckpointError
from cloudrl.shards.architectures import FAMILIES, SEEING, SEES, VISION, WITHOUT_CRITIC
from cloudrl.shards.on_disk import stays_float32
from cloudrl.shards.parameters import check_parameters

pytestmark = pytest.mark.verl  # transformers takes seconds to import


def saved(model: Any, run: Path) -> Path:
    """The folder of an actor that has this model, cut over three ranks as FSDP2 does it."""
    from make_sharded import save

    actor = role_folder(run)
    actor.mkdir(parents=True)
    for rank in range(3):
        save(actor, model.state_dict(), rank, 3)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(actor / "huggingface")
    return actor


@pytest.mark.parametrize(
    ("family", "head", "tied"),
    [
        *((family, "ForCausalLM", tied) for family in FAMILIES + WITHOUT_CRITIC for tied in (False, True)),
        *((family, "ForTokenClassification", False) for family in FAMILIES),
        *((family, SEEING, tied) for family in VISION for tied in (False, True)),
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
    shapes = {name: shape for name, (_, shape, _) in read_safetensors(tmp_path / "ours").items()}
    check_each_parameter(family + head, ours, shapes)


def check_each_parameter(architecture: str, config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    """Without any of them, with another shape of it, or with one more, it is not the model of the config."""
    check_parameters(architecture, config, shapes)
    bad = [{**shapes, "model.layers.1.odd.weight": (1,)}]
    for name, shape in shapes.items():
        if not name.startswith(SEES):
            bad += [{each: shapes[each] for each in shapes if each != name}] * (name != "score.bias")
            bad += [shapes | {name: (*shape, 1)}, shapes | {name: (*shape[:-1], 7)}] * (name != "score.bias")
    for each in bad:
        with pytest.raises(CheckpointError, match=r"config\.json"):
            check_parameters(architecture, config, each)


WITH_SHARED_EXPERT = ("Qwen2Moe", "Qwen3Next", "Qwen3_5Moe")
ACTORS = [(family, "ForCausalLM") for family in FAMILIES + WITHOUT_CRITIC] + [(family, SEEING) for family in VISION]


@pytest.mark.parametrize(("family", "head"), ACTORS)
def test_a_config_without_the_size_of_a_head(family: str, head: str, tmp_path: Path) -> None:
    """Also with a size of experts that there are none of, as Qwen3-Coder's has it."""
    small_model(family, head, tied=False, without={"head_dim"}).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for each in (config, config.get("text_config", {})):
        each.pop("head_dim", None)
        if family not in WITH_SHARED_EXPERT:
            each["shared_expert_intermediate_size"] = 0
    shapes = {name: shape for name, (_, shape, _) in read_safetensors(tmp_path).items()}
    check_parameters(family + head, config, shapes)


@pytest.mark.parametrize("family", ["Qwen2Moe", "Qwen3Moe"])
def test_a_mixture_without_experts(family: str, tmp_path: Path) -> None:
    """Each layer of it has an MLP (transformers 5.10, `Qwen3MoeDecoderLayer`)."""
    small_model(family, "ForCausalLM", tied=False, num_experts=0, num_local_experts=0).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    shapes = {name: shape for name, (_, shape, _) in read_safetensors(tmp_path).items()}
    assert sum("mlp.gate_proj" in name for name in shapes) == 2
    check_parameters(f"{family}ForCausalLM", config, shapes)


@pytest.mark.parametrize(("family", "head"), ACTORS)
def test_transformers_loads_it(family: str, head: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    warnings.simplefilter("ignore")
    sees = head == SEEING
    model = small_model(family, head, tied=True)
    merge_role(saved(model, tmp_path), tmp_path / "ours")
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    loaded, about = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(about.values()), about
    assert loaded.dtype is torch.bfloat16
    state = loaded.state_dict()
    assert state.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(state[name], value.to(state[name].dtype) if stays_float32(name) else value.bfloat16())
