"""Names and cuts on disk, as transformers writes and vLLM reads them."""

import math
import re

import pytest

from cloudrl.errors import CheckpointError
from cloudrl.shards.architectures import VISION
from cloudrl.shards.on_disk import Slice, on_disk, rule_of

LAYER = "model.layers.3."
EXPERTS = f"{LAYER}mlp.experts."


def names(architecture: str, name: str, shape: tuple[int, ...] = (2, 2)) -> list[str]:
    return [each.name for each in on_disk(name, shape, rule_of(architecture))]


def test_experts_become_one_matrix_each() -> None:
    rule = rule_of("Qwen3MoeForCausalLM")
    assert on_disk(f"{EXPERTS}gate_up_proj", (2, 6, 5), rule) == [
        Slice(f"{EXPERTS}0.gate_proj.weight", (3, 5), 0),
        Slice(f"{EXPERTS}0.up_proj.weight", (3, 5), 15),
        Slice(f"{EXPERTS}1.gate_proj.weight", (3, 5), 30),
        Slice(f"{EXPERTS}1.up_proj.weight", (3, 5), 45),
    ]
    assert on_disk(f"{EXPERTS}down_proj", (2, 5, 3), rule) == [
        Slice(f"{EXPERTS}0.down_proj.weight", (5, 3), 0),
        Slice(f"{EXPERTS}1.down_proj.weight", (5, 3), 15),
    ]


def test_mixtral_has_names_of_its_own() -> None:
    sparse = f"{LAYER}block_sparse_moe."
    assert names("MixtralForCausalLM", f"{EXPERTS}gate_up_proj", (1, 2, 2)) == [
        f"{sparse}experts.0.w1.weight",
        f"{sparse}experts.0.w3.weight",
    ]
    assert names("MixtralForTokenClassification", f"{EXPERTS}down_proj", (1, 2, 2)) == [f"{sparse}experts.0.w2.weight"]
    assert names("MixtralForCausalLM", f"{LAYER}mlp.gate.weight") == [f"{sparse}gate.weight"]
    assert names("MixtralForCausalLM", f"{LAYER}self_attn.q_proj.weight") == [f"{LAYER}self_attn.q_proj.weight"]


@pytest.mark.parametrize("family", ["Qwen2VL", "Qwen2_5_VL"])
def test_prefixes_of_models_that_see(family: str) -> None:
    architecture = f"{family}ForConditionalGeneration"
    assert names(architecture, "model.visual.blocks.0.attn.qkv.weight") == ["visual.blocks.0.attn.qkv.weight"]
    assert names(architecture, "model.language_model.layers.0.mlp.up_proj.weight") == [
        "model.layers.0.mlp.up_proj.weight"
    ]
    assert names(architecture, "lm_head.weight") == ["lm_head.weight"]


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("Qwen3MoeForCausalLM", f"{EXPERTS}0.gate_proj.weight"),  # of transformers 4
        ("Qwen3MoeForCausalLM", f"{LAYER}mlp.gate_proj.weight"),  # of a dense layer
        ("MixtralForCausalLM", f"{LAYER}block_sparse_moe.experts.0.w1.weight"),
        ("Qwen2_5_VLForConditionalGeneration", "visual.merger.mlp.0.weight"),
        ("Qwen3VLForConditionalGeneration", "model.visual.merger.norm.weight"),
    ],
)
def test_what_is_as_on_disk_stays(architecture: str, name: str) -> None:
    assert on_disk(name, (2, 2), rule_of(architecture)) == [Slice(name, (2, 2))]


@pytest.mark.parametrize("shape", [(), (4,), (4, 4), (2, 3, 4), (1, 2, 2, 2)])
def test_impossible_experts(shape: tuple[int, ...]) -> None:
    with pytest.raises(CheckpointError, match="not the experts of a model"):
        on_disk(f"{EXPERTS}gate_up_proj", shape, rule_of("OlmoeForCausalLM"))


@pytest.mark.parametrize("family", ["Qwen3Moe", "Mixtral"])
@pytest.mark.parametrize("shape", [(1, 2, 1), (7, 4, 3), (128, 6, 2)])
def test_slices_make_the_whole(family: str, shape: tuple[int, int, int]) -> None:
    for name in ("gate_up_proj", "down_proj"):
        slices = on_disk(f"{EXPERTS}{name}", shape, rule_of(f"{family}ForCausalLM"))
        sizes = [math.prod(each.shape) for each in slices]
        assert [each.first for each in slices] == [sum(sizes[:index]) for index in range(len(sizes))]
        assert sum(sizes) == math.prod(shape)
        assert len({each.name for each in slices}) == len(slices)


VLLM = {
    # qwen3_moe.py, qwen2_moe.py, olmoe.py and glm4_moe.py, whose experts are loaded by layers/fused_moe/layer.py with
    # ckpt_names=("gate_proj", "down_proj", "up_proj"), and deepseek_v2.py, which names these itself
    **dict.fromkeys(
        ("Qwen2Moe", "Qwen3Moe", "Olmoe", "DeepseekV3", "Glm4Moe"),
        r"model\.layers\.\d+\.mlp\.experts\.\d+\.(gate_proj|down_proj|up_proj)\.weight",
    ),
    # mixtral.py: the block's own name, and w1, w2, w3 as they are
    "Mixtral": r"model\.layers\.\d+\.block_sparse_moe\.experts\.\d+\.w[123]\.weight",
    # qwen2_vl.py, qwen2_5_vl.py and qwen3_vl.py, `hf_to_vllm_mapper`: the prefixes of the Hub, and those of
    # transformers 4.52 on, which are the only ones of Qwen3-VL
    **dict.fromkeys(("Qwen2VL", "Qwen2_5_VL"), r"(visual|model\.visual|model\.language_model|model|lm_head)\..*"),
    "Qwen3VL": r"(model\.visual|model\.language_model|lm_head)\..*",
}
"""Of vLLM's loaders (vLLM 0.33.0, vllm/model_executor/models/): the names of what our rules make, by family."""


@pytest.mark.parametrize("family", VLLM)
def test_the_names_that_vllm_loads(family: str) -> None:
    rule, sees = rule_of(f"{family}For"), family in VISION
    fused = [(f"{EXPERTS}gate_up_proj", (2, 4, 4)), (f"{EXPERTS}down_proj", (2, 4, 2))]
    seen = [("model.visual.merger.ln_q.weight", (4,)), ("model.language_model.norm.weight", (4,))]
    made = [each.name for name, shape in (seen if sees else fused) for each in on_disk(name, shape, rule)]
    assert len(made) == (2 if sees else 6)
    assert [name for name in made if not re.fullmatch(VLLM[family], name)] == []
