"""Counts of parameters by config.json, against models of transformers."""

import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import small_model

from cloudrl.errors import CheckpointError
from cloudrl.shards.architectures import FAMILIES, SEEING, VISION, WITHOUT_CRITIC
from cloudrl.shards.counting import count_parameters
from cloudrl.shards.towers import SEES

QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.verl
@pytest.mark.parametrize("family", FAMILIES + WITHOUT_CRITIC)
@pytest.mark.parametrize("is_tied", [False, True])
def test_counts_are_those_of_transformers(family: str, is_tied: bool) -> None:
    warnings.simplefilter("ignore")
    model = small_model(family, "ForCausalLM", is_tied)
    assert_same(model)


@pytest.mark.verl
@pytest.mark.parametrize("family", VISION)
def test_the_language_part_of_a_model_that_sees(family: str) -> None:
    warnings.simplefilter("ignore")
    assert_same(small_model(family, SEEING, False))


def assert_same(model: Any) -> None:
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    found = count_parameters(config)
    seeing = ("model.vision", "model.visual", "model.multi_modal", *SEES)
    tensors = {
        each.data_ptr(): each.numel() for name, each in model.state_dict().items() if not name.startswith(seeing)
    }
    assert found.total - found.vision == sum(tensors.values())
    assert found.largest == pytest.approx(
        max(tensors.values()), rel=0.06
    )  # biases of experts are tensors by themselves
    assert found.is_exact


def test_a_model_of_7_b() -> None:
    found = count_parameters(QWEN)
    assert found.total == 7_615_616_512  # as its model card says: 7.61 B
    assert found.head == found.embedding == 152064 * 3584
    assert len(set(found.layers)) == 1


def test_an_unknown_architecture_counts_as_a_similar_one() -> None:
    found = count_parameters({**QWEN, "architectures": ["SomethingForCausalLM"]})
    assert not found.is_exact
    assert found.total == pytest.approx(7_615_616_512, rel=0.001)  # without the biases of Qwen2


def test_adapters_of_lora_have_a_rank_times_inputs_and_outputs() -> None:
    attention = (3584 + 3584) * 2 + (3584 + 512) * 2
    assert count_parameters(QWEN).low_rank == 28 * (attention + 3 * (3584 + 18944))


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "vocab_size"])
def test_a_config_without_a_size_says_so(key: str) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        count_parameters({name: value for name, value in QWEN.items() if name != key})


@given(
    st.dictionaries(
        st.sampled_from([*QWEN, "num_experts", "text_config", "vision_config", "kv_lora_rank"]),
        st.none() | st.booleans() | st.integers(-2, 10**12) | st.text(max_size=3) | st.lists(st.none()),
    )
)
@settings(deadline=None)
def test_any_config_is_counted_or_refused(changes: dict[str, object]) -> None:
    try:
        assert count_parameters({**QWEN, **changes}).total > 0
    except CheckpointError as error:
        assert "config.json" in str(error)  # noqa: PT017  either is right
