"""Which tensors of a shard are an adapter's, and what is refused."""

import json
from collections.abc import Mapping

import pytest

from cloudrl.errors import CheckpointError
from cloudrl.shards.dtypes import DType
from cloudrl.shards.lora import has_lora, read_lora
from cloudrl.shards.lora_settings import LoraSettings, read_settings, unsure_of_scale
from cloudrl.shards.tensors import Tensor, View

META = b'{"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"}'
Q = "model.layers.0.self_attn.q_proj"
EXPERTS = "model.layers.0.mlp.experts"
BASE = "base_model.model."


def tensors(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    return {f"{BASE}{name}": Tensor(shape, View("0", DType.FLOAT32, 0, shape)) for name, shape in shapes.items()}


DENSE = {
    "model.norm.weight": (6,),
    f"{Q}.base_layer.weight": (8, 6),
    f"{Q}.base_layer.bias": (8,),
    f"{Q}.lora_A.default.weight": (4, 6),
    f"{Q}.lora_B.default.weight": (8, 4),
}
FUSED = {
    f"{EXPERTS}.base_layer.base_layer.gate_up_proj": (3, 10, 6),
    f"{EXPERTS}.base_layer.base_layer.down_proj": (3, 6, 5),
    f"{EXPERTS}.base_layer.lora_A.default.weight": (24, 6),
    f"{EXPERTS}.base_layer.lora_B.default.weight": (10, 24),
    f"{EXPERTS}.lora_A.default.weight": (12, 5),
    f"{EXPERTS}.lora_B.default.weight": (6, 12),
}


def test_a_matrix() -> None:
    found = read_lora(tensors(DENSE), read_settings(META), {}, "x.pt")
    assert found.settings == LoraSettings(4, 8, "CAUSAL_LM")
    assert found.settings.scale(Q, 4) == 2
    assert found.base == {
        "model.norm.weight": f"{BASE}model.norm.weight",
        f"{Q}.weight": f"{BASE}{Q}.base_layer.weight",
        f"{Q}.bias": f"{BASE}{Q}.base_layer.bias",
    }
    (only,) = found.adapted.values()
    assert (only.module, only.target, only.experts, only.rank, only.is_parameter) == (Q, f"{Q}.weight", 1, 4, False)


@pytest.mark.parametrize(("is_alone", "width"), [(False, 5), (True, 5), (True, 6), (True, 3)])
def test_experts_are_told_apart_by_shape(is_alone: bool, width: int) -> None:
    """gate_up_proj has twice the rank, and twice the alpha. A half may be as large as the other's."""
    names = {name: shape for name, shape in FUSED.items() if "lora_" in name or not is_alone}
    names[f"{EXPERTS}.base_layer.lora_B.default.weight"] = (2 * width, 24)
    names[f"{EXPERTS}.lora_A.default.weight"] = (12, width)
    config = {"text_config": {"hidden_size": 6, "num_local_experts": 3, "moe_intermediate_size": width}}
    found = read_lora(tensors(names), read_settings(META), config, "x.pt")
    told = [(each.target, each.a, each.experts, each.rank, each.is_parameter) for each in found.adapted.values()]
    assert told == [
        (f"{EXPERTS}.gate_up_proj", f"{BASE}{EXPERTS}.base_layer.lora_A.default.weight", 3, 8, True),
        (f"{EXPERTS}.down_proj", f"{BASE}{EXPERTS}.lora_A.default.weight", 3, 4, True),
    ]
    assert list(found.base) == ([] if is_alone else [f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.down_proj"])


def test_has_lora() -> None:
    assert has_lora(tensors(DENSE))
    assert not has_lora(tensors({"model.norm.weight": (6,)}))


def changed(old: str, new: str | None) -> dict[str, tuple[int, ...]]:
    assert any(old in name for name in DENSE)
    return {name.replace(old, new or ""): shape for name, shape in DENSE.items() if new is not None or old not in name}


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (DENSE | {f"{Q}.lora_magnitude_vector.default.weight": (8,)}, "has DoRA, which is not supported"),
        (DENSE | {"model.embed_tokens.lora_embedding_A.default": (4, 9)}, "LoRA on an embedding"),
        (DENSE | {"score.modules_to_save.default.weight": (1, 6)}, r"trained as a whole \(modules_to_save\)"),
        (DENSE | {"model.embed_tokens.token_adapter.x": (1, 6)}, "tokens that were trained by themselves"),
        (DENSE | {f"{Q}.lora_B.default.bias": (8,)}, "a kind of adapter that is not supported"),
        (changed(".default.", ".other."), "a kind of adapter that is not supported"),
        (DENSE | {f"{Q}.base_layer.base_layer.bias": (8,)}, "a kind of adapter that is not supported"),
        (changed("lora_B", None), "has one half of an adapter"),
        (DENSE | {f"{Q}.lora_A.default.weight": (5, 6)}, "does not fit the model"),
        (DENSE | {f"{Q}.lora_A.default.weight": (4, 5)}, "does not fit the model"),
        (DENSE | {f"{Q}.lora_A.default.weight": (2, 6), f"{Q}.lora_B.default.weight": (8, 2)}, "the rank 4 of lora_"),
        (DENSE | {f"{Q}.lora_A.default.weight": (4, 6, 1)}, "does not fit the model"),
        (changed(".base_layer.weight", None), "does not fit the model"),
        (FUSED | {f"{EXPERTS}.lora_A.default.weight": (13, 5)}, "does not fit the model"),
        (FUSED | {f"{EXPERTS}.base_layer.base_layer.down_proj": (3, 7, 5)}, "does not fit the model"),
    ],
)
def test_what_is_refused(names: dict[str, tuple[int, ...]], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read_lora(tensors(names), read_settings(META), {}, "x.pt")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no lora_train_meta.json beside the shards"),
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "has the rank None and the alpha None"),
        (b'{"r": 4}', "has the rank 4 and the alpha None"),
        (b'{"r": 0, "lora_alpha": 8}', "has the rank 0"),
        (b'{"r": true, "lora_alpha": 8}', "has the rank True"),
        (b'{"r": 4, "lora_alpha": 1e300}', "the alpha 1e"),
        (json.dumps({"r": 4, "lora_alpha": 10**30}).encode(), "the alpha 1000"),
        (b'{"r": 4, "lora_alpha": 0}', "says that lora_alpha is 0, with which the adapter changes nothing"),
    ],
)
def test_settings_that_do_not_tell_the_scale(text: bytes | None, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        read_settings(text)
    assert "lora_train_meta.json" in str(caught.value.hint)


def peft(**settings: object) -> bytes:
    return json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8} | settings).encode()


def test_scales_that_peft_tells() -> None:
    plain = read_settings(META, peft())
    assert (plain.scale(Q, 4), plain.fits(Q, 4), plain.fits(Q, 8), plain.is_told) == (2, True, False, True)
    assert read_settings(None, peft(use_rslora=True)).scale(Q, 4) == 4
    told = read_settings(META, peft(rank_pattern={"q_proj": 2}, alpha_pattern={"layers.1.*": 1, ".*q_proj": 6}))
    assert (told.scale(Q, 2), told.fits(Q, 2), told.fits(Q, 4)) == (3, True, False)
    assert told.scale(Q.replace("0", "1"), 2) == 0.5
    pair = f"{EXPERTS}.gate_up_proj"
    assert (told.scale(pair, 8), told.fits(pair, 8), told.fits(f"{EXPERTS}.down_proj", 8)) == (2, True, False)
    assert read_settings(None, peft(use_rslora=True)).scale(pair, 8) == pytest.approx(16 / 8**0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is not JSON"),
        (b"[]", "is not that of a LoRA adapter"),
        (peft(peft_type="IA3"), "is not that of a LoRA adapter"),
        (peft(r=0), "has the rank 0"),
        (peft(lora_alpha=None), "the alpha None"),
        (peft(lora_alpha=float("nan")), "the alpha nan"),
        (peft(r=8), "has rank 4 and alpha 8, and adapter_config.json beside it rank 8 and alpha 8"),
        (peft(lora_alpha=9), "beside it rank 4 and alpha 9"),
        (peft(use_dora=True), "has use_dora, which is not supported"),
        (peft(rank_pattern=[1]), "an impossible rank_pattern"),
        (peft(rank_pattern={"q_proj": True}), "an impossible rank_pattern"),
        (peft(alpha_pattern={"q_proj": "8"}), "an impossible alpha_pattern"),
        (peft(alpha_pattern={"(": 8}), "no pattern"),
        (peft(alpha_pattern={"(a+)+": 8}), "too complex"),
        (peft(alpha_pattern={".*.*.*.*": 8}), "too complex"),
        (peft(alpha_pattern={"a" * 301: 8}), "too complex"),
    ],
)
def test_configs_of_peft_that_are_refused(text: bytes, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        read_settings(META, text)
    assert caught.value.hint


def test_a_scale_that_nothing_tells() -> None:
    settings = read_settings(META)
    assert unsure_of_scale(settings, "", "x.pt") == []
    assert unsure_of_scale(read_settings(META, peft()), "/adapter", "x.pt") == []
    (warning,) = unsure_of_scale(settings, None, "x.pt")
    assert "is multiplied with 2: " in warning
    assert "copy its adapter_config.json beside the shards" in warning
    with pytest.raises(CheckpointError, match="the run started from the adapter /adapter, and") as caught:
        unsure_of_scale(settings, "/adapter", "x.pt")
    assert "Copy adapter_config.json of that adapter beside the shards: x.pt" in str(caught.value.hint)


def test_a_model_of_many_matrices_is_gone_through_once() -> None:
    """Once for each of them took hours with the 18,000 of experts that are not fused."""

    class Counted(dict[str, Tensor]):
        reads = 0

        def __getitem__(self, name: str) -> Tensor:
            Counted.reads += 1
            return super().__getitem__(name)

    module = "model.layers.{}.mlp.up_proj"
    kinds = {"base_layer": (6, 4), "lora_A.default": (4, 4), "lora_B.default": (6, 4)}
    names = {f"{module.format(layer)}.{kind}.weight": shape for layer in range(50) for kind, shape in kinds.items()}

    found = read_lora(Counted(tensors(names)), read_settings(META), {}, "x.pt")

    assert len(found.adapted) == 50
    assert Counted.reads == len(names)
