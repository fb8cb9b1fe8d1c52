"""Every architecture that is claimed, against what transformers itself saves of it."""

import json
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from shard_files import merge_role, read_safetensors, role_folder
from small_models import EXPERTS, small_model

from cloudrl.errors import CheckpointError
from cloudrl.shards.architectures import FAMILIES, SEEING, VISION, WITHOUT_CRITIC
from cloudrl.shards.on_disk import stays_float32
from cloudrl.shards.parameters import check_parameters
from cloudrl.shards.towers import SEES

pytestmark = pytest.mark.verl  # transformers takes seconds to import


def saved(model: Any, run: Path, state: Any = None) -> Path:
    """The folder of an actor that has this model, cut over three ranks as FSDP2 does it; `state` has its tensors."""
    from make_sharded import save

    actor = role_folder(run)
    actor.mkdir(parents=True)
    for rank in range(3):
        save(actor, model.state_dict() if state is None else state, rank, 3)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(actor / "huggingface")
    return actor


T = TypeVar("T")
IS_SLOW = os.environ.get("CLOUDRL_SLOW") == "1"


def by_turns(families: Sequence[T]) -> list[tuple[T, bool]]:
    """Each, with its embeddings tied or not by turns; both of each with CLOUDRL_SLOW=1."""
    return [
        (family, tied)
        for place, family in enumerate(families)
        for tied in ((False, True) if IS_SLOW else (place % 2 == 1,))
    ]


@pytest.mark.parametrize(
    ("family", "head", "tied"),
    [
        *((family, "ForCausalLM", tied) for family, tied in by_turns(FAMILIES + WITHOUT_CRITIC)),
        *((family, "ForTokenClassification", False) for family in (FAMILIES if IS_SLOW else FAMILIES[::3])),
        *((family, SEEING, tied) for family, tied in by_turns(VISION)),
    ],
)
def test_as_save_pretrained(family: str, head: str, tied: bool, tmp_path: Path) -> None:
    warnings.simplefilter("ignore")
    compared(small_model(family, head, tied), tmp_path)


def compared(model: Any, tmp_path: Path) -> None:
    """What is merged of it is byte for byte what transformers saves, and nothing may be missing of it."""
    model.save_pretrained(tmp_path / "theirs")
    merge_role(saved(model, tmp_path), tmp_path / "ours", dtype="keep")
    assert read_safetensors(tmp_path / "ours") == read_safetensors(tmp_path / "theirs")
    assert (tmp_path / "ours" / "model.safetensors").read_bytes() == (
        tmp_path / "theirs" / "model.safetensors"
    ).read_bytes()
    ours, theirs = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("ours", "theirs"))
    assert ours == theirs
    shapes = {name: shape for name, (_, shape, _) in read_safetensors(tmp_path / "ours").items()}
    check_each_parameter(type(model).__name__, ours, shapes)


def layer_number(name: str) -> int:
    found = re.search(r"\.(blocks|layers?)\.(\d+)\.", name)
    return int(found[2]) if found else -1


def check_each_parameter(architecture: str, config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    """Without any of them, with another shape of it, or with one more, it is not the model of the config."""
    check_parameters(architecture, config, shapes)
    bad = [{**shapes, "model.layers.1.odd.weight": (1,)}]
    if any(name.startswith(SEES) for name in shapes):
        last = max((name for name in shapes if name.startswith(SEES) and "audio" not in name), key=layer_number)
        bad.append(
            {name: shapes[name] for name in shapes if f".{layer_number(last)}." not in name or name[:3] != last[:3]}
        )
    for name in sorted(shapes)[:: 1 + len(shapes) // 100]:
        shape = shapes[name]
        in_layer = re.search(r"\.(blocks|layers?)\.\d", name)
        if not name.startswith(SEES) or in_layer:
            bad += [{each: shapes[each] for each in shapes if each != name}] * (name != "score.bias")
            bad += [shapes | {name: (*shape, 1)}, shapes | {name: (*shape[:-1], 7)}] * (name != "score.bias")
    for each in bad:
        with pytest.raises(CheckpointError, match=r"config\.json"):
            check_parameters(architecture, config, each)


@pytest.mark.parametrize(
    ("family", "head"), [("Qwen3Moe", "ForCausalLM"), ("Gemma3", SEEING), ("Qwen2", "ForCausalLM")]
)
def test_wrapped_as_torch_wraps_it(family: str, head: str, tmp_path: Path) -> None:
    """Of a compiled model, with compiled and checkpointed modules in it, verl's merger writes the names as they are."""
    import torch
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    warnings.simplefilter("ignore")
    model = small_model(family, head, tied=False)
    model.save_pretrained(tmp_path / "theirs")
    layers = model.model.language_model.layers if head == SEEING else model.model.layers
    layers[0].self_attn = torch.compile(layers[0].self_attn)
    layers[1] = checkpoint_wrapper(torch.compile(layers[1]))
    wrapped = torch.nn.parallel.DataParallel(torch.compile(model))
    actor = saved(model, tmp_path, wrapped.state_dict())
    assert all(name.startswith("module._orig_mod.") for name in wrapped.state_dict())
    merge_role(actor, tmp_path / "ours", dtype="keep")
    assert read_safetensors(tmp_path / "ours") == read_safetensors(tmp_path / "theirs")


MIXTURE = {"enable_moe_block": True, "num_experts": 3, "moe_intermediate_size": 8, "top_k_experts": 2}
PLAIN_GEMMA4 = {"num_kv_shared_layers": 0, "use_double_wide_mlp": False, "hidden_size_per_layer_input": 0}
ODD: list[tuple[str, dict[str, Any]]] = [
    ("GptOss", {"attention_bias": False, "num_key_value_heads": 2, "num_hidden_layers": 3, "layer_types": None}),
    ("DeepseekV2", {"q_lora_rank": 6, "first_k_dense_replace": 0}),
    ("DeepseekV2", {"first_k_dense_replace": 2, "n_shared_experts": 1, "num_hidden_layers": 3}),
    ("Llama4", {"moe_layers": None, "interleave_moe_layer_step": 2, "num_hidden_layers": 5, "attention_bias": True}),
    ("Llama4", {"moe_layers": [], "num_key_value_heads": 2}),
    ("Qwen3Next", {"layer_types": None, "full_attention_interval": 3, "num_hidden_layers": 7, "attention_bias": True}),
    ("Qwen3Next", {"decoder_sparse_step": 2, "mlp_only_layers": [], "linear_num_value_heads": 2}),
    ("Qwen3Next", {"num_experts": 0, "num_local_experts": 0, "n_routed_experts": 0}),
    ("Qwen3_5", {"layer_types": None, "num_hidden_layers": 9, "linear_value_head_dim": 5, "attention_bias": True}),
    ("Qwen3_5Moe", {"layer_types": ["full_attention"] * 2, "shared_expert_intermediate_size": 3}),
    ("Gemma3", {"num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True}),
    ("Gemma4", PLAIN_GEMMA4 | {"layer_types": None, "num_hidden_layers": 7, "attention_bias": True}),
    ("Gemma4", PLAIN_GEMMA4 | MIXTURE | {"attention_k_eq_v": True, "num_global_key_value_heads": 1}),
    ("Gemma4", MIXTURE | {"num_kv_shared_layers": 1, "attention_k_eq_v": True, "num_global_key_value_heads": 4}),
    ("Gemma4", {"use_double_wide_mlp": False, "num_kv_shared_layers": 1, "num_hidden_layers": 13, "layer_types": None}),
]


@pytest.mark.parametrize(("odd", "tied"), by_turns(range(len(ODD))))
def test_odd_configs(odd: int, tied: bool, tmp_path: Path) -> None:
    """Layers of several kinds, and keys that the config leaves out; what comes out of it answers as the model did."""
    import torch

    warnings.simplefilter("ignore")
    family, changes = ODD[odd]
    model = small_model(family, "ForCausalLM", tied, **changes).eval()
    compared(model, tmp_path)
    loaded = type(model).from_pretrained(tmp_path / "ours").eval()
    prompt = torch.arange(3, 20)[None]
    with torch.no_grad():
        ours, theirs = (each(input_ids=prompt, use_cache=False).logits for each in (loaded, model))
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("InternVL", {"model_type": "qwen3"}),
        ("InternVL", {"model_type": "qwen3_moe", "mlp_only_layers": [0]} | EXPERTS),
        ("InternVL", {"model_type": "gpt_oss"} | EXPERTS),
        ("Glm4v", {"num_key_value_heads": 2}),
        ("Glm4vMoe", {"attention_bias": False, "first_k_dense_replace": 0}),
        *((family, changes) for family, changes in ODD if family in VISION),
    ],
)
def test_odd_configs_of_models_that_see(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    warnings.simplefilter("ignore")
    compared(small_model(family, SEEING, tied=False, **changes), tmp_path)


def test_a_language_part_that_was_never_compared(tmp_path: Path) -> None:
    model = small_model("InternVL", SEEING, tied=False, model_type="llama")
    with pytest.raises(CheckpointError, match="cannot be merged with a 'llama' as its language part: only with qwen2"):
        merge_role(saved(model, tmp_path), tmp_path / "ours")


@pytest.mark.parametrize(
    ("family", "extra", "wrong"),
    [
        ("Qwen3Next", "mtp.layers.0.mlp.gate.weight", "mtq.norm.weight"),
        ("Qwen3_5Moe", "mtp.norm.weight", "model.mtp.weight"),
        ("Gemma4", "model.layers.2.self_attn.k_proj.weight", "model.layers.1.self_attn.x_proj.weight"),
        ("Gemma4", "model.layers.3.self_attn.v_norm.weight", "model.layers.1.self_attn.v_norm.weight"),
    ],
)
def test_what_models_of_the_hub_have_more(family: str, extra: str, wrong: str, tmp_path: Path) -> None:
    """A whole model that Megatron-Bridge saved has it as the base model has it; transformers leaves it out."""
    model = small_model(family, "ForCausalLM", tied=False)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    shapes = {name: shape for name, (_, shape, _) in read_safetensors(tmp_path).items()}
    check_parameters(type(model).__name__, config, shapes | {extra: (1, 1)})
    with pytest.raises(CheckpointError, match=f"there are 1 tensors .*: {wrong}"):
        check_parameters(type(model).__name__, config, shapes | {wrong: (1, 1)})


def test_experts_that_the_hub_has_fused(tmp_path: Path) -> None:
    model = small_model("Qwen3_5Moe", SEEING, tied=False)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    check_parameters(type(model).__name__, config, shapes)
    name = "model.language_model.layers.1.mlp.experts.down_proj"
    with pytest.raises(CheckpointError, match=f"no rank has {name}"):
        check_parameters(type(model).__name__, config, {each: shapes[each] for each in shapes if each != name})
    with pytest.raises(CheckpointError, match=rf"{name} is \[5, 8, 16\], and by config.json it is \[5, 16, 8\]"):
        check_parameters(type(model).__name__, config, shapes | {name: (5, 8, 16)})


WITH_SHARED_EXPERT = ("Qwen2Moe", "Qwen3Next", "Qwen3_5Moe")
ACTORS = [(family, "ForCausalLM") for family in FAMILIES + WITHOUT_CRITIC] + [(family, SEEING) for family in VISION]


@pytest.mark.parametrize(("family", "head"), ACTORS)
def test_a_config_without_the_size_of_a_head(family: str, head: str, tmp_path: Path) -> None:
    """Also with a size of experts that it does not have, as Qwen3-Coder's has it."""
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
