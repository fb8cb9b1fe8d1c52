"""Names in which torch's wrappers, or somebody's own, are around the model: never a model of random numbers."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from crafted import InMemory
from shard_files import config_files, edit, merge_role, opened, read_safetensors, shard_path

from cloudrl.errors import CheckpointError
from cloudrl.shards.parameters import check_parameters
from cloudrl.shards.shard import open_shard
from cloudrl.shards.way_out import way_out
from cloudrl.shards.wrappers import WRAPPERS, common_prefix, name_around

LAYER = re.compile(r"(model\.layers\.\d+\.)(.*)")


def rename_all(actor: Path, change: Callable[[str], str]) -> None:
    """Give every tensor another name, on both ranks."""
    names = list(open_shard(opened(actor).shards[0], 0).tensors)

    def in_pickle(content: dict[str, bytes]) -> None:
        data = content["data.pkl"]
        for name in names:
            data = data.replace(pickled(name), pickled(change(name)))
        content["data.pkl"] = data

    for rank in (0, 1):
        edit(shard_path(actor, rank), in_pickle)


def pickled(name: str) -> bytes:
    return b"X" + len(name).to_bytes(4, "little") + name.encode()


def within_layers(name: str) -> str:
    """As FSDP1 wraps layers, activation checkpointing what is in them, and torch.compile all of it."""
    name = LAYER.sub(r"\1_fsdp_wrapped_module._checkpoint_wrapped_module.\2", name)
    return f"_orig_mod.module._fsdp_wrapped_module.{name}"


@pytest.mark.parametrize(
    "change",
    [
        *(lambda name, wrapper=wrapper: f"{wrapper}.{name}" for wrapper in WRAPPERS),
        *(
            lambda name, wrapper=wrapper: LAYER.sub(rf"\1{wrapper}.{wrapper}.\2", name)
            for wrapper in WRAPPERS
        ),
        lambda name: name.replace(".weight", "._orig_mod.weight"),
        within_layers,
    ],
)  # fmt: skip
def test_known_wrappers_are_left_out(actor: Path, tmp_path: Path, change: Callable[[str], str]) -> None:
    expected = read_safetensors(merge_role(actor, tmp_path / "first").path)
    rename_all(actor, change)
    done = merge_role(actor, tmp_path / "second")
    assert read_safetensors(done.path) == expected
    assert done.warnings == merge_role(actor, tmp_path / "third").warnings


def refused(actor: Path, words: str, files: dict[str, bytes] | None = None) -> None:
    """Nothing is written, and no hint leads to a merger that would write it."""
    with pytest.raises(CheckpointError, match=words) as caught:
        merge_role(actor, actor.parent / "model", files)
    assert "model_merger" not in str(caught.value.hint)
    assert "Is it the config" not in str(caught.value.hint)
    assert caught.value.hint
    assert not (actor.parent / "model").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda name: f"policy.{name}", "every tensor is inside `policy`: policy."),
        (lambda name: f"policy.net._orig_mod.{name}", r"every tensor is inside `policy\.net`: "),
        (lambda name: f"model.{name}", r"no rank has model.embed_tokens.weight: it is inside `model`, as model\.model"),
        (
            lambda name: LAYER.sub(r"\1_mine.\2", name),
            r"model.layers.0.self_attn.q_proj.weight: it is inside `_mine`, as model.layers.0._mine.self_attn.q_proj",
        ),
        (
            lambda name: name.replace("model.layers.", "model._mine.layers."),
            r"no rank has model.layers.0.self_attn.q_proj.weight: it is inside `_mine`",
        ),
        (lambda name: name.replace(".mlp.", ".mlp._orig_mod._mine."), r"mlp.gate_proj.weight: it is inside `_mine`"),
    ],
)
def test_other_modules_are_named(actor: Path, change: Callable[[str], str], words: str) -> None:
    rename_all(actor, change)
    refused(actor, words)


@pytest.mark.parametrize("name", ["_flat_param", "_fsdp_wrapped_module._flat_param", "model.layers.0.flat_param"])
def test_flattened_parameters(actor: Path, name: str) -> None:
    rename_all(actor, lambda old: name if old == "model.norm.weight" else old)
    refused(actor, f"{name} has the parameters of a whole module in one row")


def test_two_tensors_of_one_name(actor: Path) -> None:
    rename_all(actor, lambda old: "_orig_mod.lm_head.weight" if old == "model.norm.weight" else old)
    refused(actor, "has two tensors that are both lm_head.weight without the wrappers of torch: ")


@pytest.mark.parametrize(
    "change", [lambda name: f"_orig_mod.{name}", lambda name: f"policy.{name}", lambda name: f"model.{name}"]
)
def test_the_way_out_of_plain_names_is_none_of_these(actor: Path, change: Callable[[str], str]) -> None:
    """verl's merger merges a Phi, but not from such names."""
    files = config_files(architectures=["PhiForCausalLM"])
    with pytest.raises(CheckpointError) as caught:
        merge_role(actor, actor.parent / "model", files)
    command = f"python -m verl.model_merger merge --backend fsdp --local_dir {actor} --target_dir ./model"
    assert str(caught.value.hint).endswith(command)
    rename_all(actor, change)
    refused(actor, "PhiForCausalLM cannot be merged: it was never compared", files)


def test_the_way_out_of_shards_on_nodes(actor: Path) -> None:
    """They have to be in one folder for it."""
    data = shard_path(actor, 0).read_bytes()
    label = "node 1 (10.0.0.2): /checkpoints/run/global_step_20/actor/model_world_size_2_rank_0.pt"
    shard = open_shard(InMemory(data, label), 0)
    hint = way_out("PhiForCausalLM", shard.tensors.keys(), shard, is_plain=True)
    assert hint.endswith(
        "\ncloudrl checkpoints pull 20 --to ./raw\npython -m verl.model_merger merge --backend fsdp "
        "--local_dir raw/global_step_20/actor --target_dir ./model"
    )
    assert way_out("Other", shard.tensors.keys(), shard, is_plain=True).endswith(
        "cloudrl checkpoints pull 20 --to ./raw"
    )


def test_a_tensor_that_is_missing_below_a_wrapper(actor: Path, tmp_path: Path) -> None:
    """The wrapper is not the cause, but the message says that it was there."""
    rename_all(actor, lambda name: f"_orig_mod.{name.replace('norm.weight', 'norm.buffer')}")
    with pytest.raises(CheckpointError, match=r"no rank has .*norm.weight.*shards have: _orig_mod\)") as caught:
        merge_role(actor, tmp_path / "model")
    assert "Is it the config of this model?" in str(caught.value.hint)


def test_a_module_in_the_part_that_sees() -> None:
    """Its names are not in the table, but no class has such a name."""
    name = "visual.blocks.0._mine.attn.qkv.weight"
    with pytest.raises(CheckpointError, match="weight is inside `_mine`"):
        check_parameters("Qwen2_5_VLForConditionalGeneration", {}, {name: (1, 1)})


def test_the_config_of_another_model_is_not_a_wrapper() -> None:
    names = ["model.language_model.embed_tokens.weight", "model.visual.norm.weight", "lm_head.weight"]
    assert name_around("model.embed_tokens.weight", names) is None
    assert common_prefix(names) == ""
    assert common_prefix(["a.b.weight"]) == "a.b."
    assert common_prefix([]) == ""
