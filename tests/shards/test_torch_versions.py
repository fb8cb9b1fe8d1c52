"""Files of several torch versions give the same model; tests/shards/make_fixtures.py has made them."""

import struct
from pathlib import Path

import pytest
from shard_files import (
    FIXTURES,
    HIDDEN,
    INTERMEDIATE,
    VOCABULARY,
    copied,
    edit,
    members,
    merge_role,
    numbers,
    read_safetensors,
    replace_in_pickle,
)

SAVES = sorted(path.relative_to(FIXTURES).as_posix() for path in FIXTURES.glob("torch-*/*"))
SHAPES = {  # in the order of the model's parameters, whose numbers decide the values
    "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
    "model.layers.0.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
    "model.layers.0.self_attn.q_proj.bias": (HIDDEN,),
    "model.layers.0.self_attn.k_proj.weight": (1, HIDDEN),
    "model.layers.0.self_attn.k_proj.bias": (1,),
    "model.layers.0.self_attn.v_proj.weight": (1, HIDDEN),
    "model.layers.0.self_attn.v_proj.bias": (1,),
    "model.layers.0.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
    "model.layers.0.mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
    "model.layers.0.mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
    "model.layers.0.mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
    "model.layers.0.input_layernorm.weight": (HIDDEN,),
    "model.layers.0.post_attention_layernorm.weight": (HIDDEN,),
    "model.norm.weight": (HIDDEN,),
    "lm_head.weight": (VOCABULARY, HIDDEN),
}
BUFFER = "model.layers.0.self_attn.positions"


def expected() -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    found = {BUFFER: ("I64", (5,), struct.pack("<5q", 255, 256, 257, 258, 259))}
    for seed, (name, shape) in enumerate(SHAPES.items()):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        found[name] = ("F32", shape, struct.pack(f"<{count}f", *numbers(seed, count)))
    return found


def merged(folder: Path, target: Path, dtype: str = "keep") -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return read_safetensors(merge_role(folder, target, dtype=dtype).path)


def test_there_are_versions_from_2_4_to_2_13() -> None:
    versions = {save.split("/")[0] for save in SAVES}
    assert {"torch-2.4.1", "torch-2.6.0", "torch-2.13.0", "torch-2.11.0-cuda"} <= versions


def test_one_of_them_was_written_from_a_gpu() -> None:
    assert b"cuda:0" in members(FIXTURES / "torch-2.11.0-cuda/fsdp2/model_world_size_2_rank_1.pt")["data.pkl"]


@pytest.mark.parametrize("save", SAVES)
def test_every_version_and_strategy_gives_the_same_model(save: str, tmp_path: Path) -> None:
    assert merged(copied(save, tmp_path), tmp_path / "model") == expected()


@pytest.mark.parametrize("save", SAVES)
def test_files_of_a_gpu_are_read_as_those_of_a_cpu(save: str, tmp_path: Path) -> None:
    actor = copied(save, tmp_path)
    for path in actor.glob("*.pt"):
        edit(path, replace_in_pickle(b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:1"))
    assert merged(actor, tmp_path / "model") == expected()


def test_a_file_saved_to_a_stream_is_named_archive(actor: Path, tmp_path: Path) -> None:
    for path in actor.glob("*.pt"):
        edit(path, lambda _: None, root="archive")
    assert merged(actor, tmp_path / "model") == expected()


def test_integers_are_kept_when_floats_become_bf16(actor: Path, tmp_path: Path) -> None:
    found = merged(actor, tmp_path / "model", "bf16")
    assert found[BUFFER] == expected()[BUFFER]
    assert {entry[0] for name, entry in found.items() if name != BUFFER} == {"BF16"}
