"""What a merge writes besides the tensors' values, and how it goes about it."""

import itertools
import json
import struct
import time
from pathlib import Path

import pytest
from crafted import InMemory, archived, dump
from shard_files import (
    HIDDEN,
    INTERMEDIATE,
    VOCABULARY,
    config_files,
    edit,
    merge,
    merge_role,
    opened,
    read_safetensors,
    replace_in_pickle,
    shard_path,
)

from cloudrl.errors import CheckpointError, InputError
from cloudrl.shards.dtypes import DType, cast_bytes
from cloudrl.shards.merge import plan_merge, write_model
from cloudrl.shards.pickled import PickledObject, Storage
from cloudrl.shards.source import LocalShard, MergeInputs
from cloudrl.shards.torch_zip import open_archive
from cloudrl.shards.validate import verify

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class FarShard(InMemory):
    """A shard that is only reached through the protocol, as one on another machine."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.read_bytes(), f"rank on another node: {path.name}")
        self.casts: list[tuple[DType, DType]] = []

    def read_cast(self, offset: int, count: int, stored: DType, wanted: DType) -> bytes:
        self.casts.append((stored, wanted))
        return super().read_cast(offset, count, stored, wanted)


def pickled(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def set_head(actor: Path, change: object) -> None:
    """Change the bytes of `lm_head.weight`, which is the last tensor, on every rank."""
    for rank in (0, 1):

        def edited(content: dict[str, bytes]) -> None:
            storages = {name: data for name, data in content.items() if name.startswith("data/")}
            last = list(storages)[-1]
            content[last] = change(content["data/0"], content[last])  # type: ignore[operator]

        edit(shard_path(actor, rank), edited)


@pytest.mark.parametrize(("dtype", "stored"), [("bf16", "BF16"), ("fp16", "F16"), ("fp32", "F32"), ("keep", "F32")])
def test_types(actor: Path, tmp_path: Path, dtype: str, stored: str) -> None:
    done = merge_role(actor, tmp_path / "model", dtype=dtype)
    found = read_safetensors(done.path)
    assert found[EMBEDDING][0] == stored
    assert (
        json.loads((done.path / "config.json").read_text())["torch_dtype"]
        == {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}[stored]
    )
    merge_role(actor, tmp_path / "kept", dtype="keep")
    kept, wanted = (
        read_safetensors(tmp_path / "kept")[EMBEDDING][2],
        next(t for t in DType if t.safetensors == stored),
    )
    assert found[EMBEDDING][2] == cast_bytes(kept, DType.FLOAT32, wanted)
    assert done.size_bytes == sum(len(data) for _, _, data in found.values())


def test_the_type_is_named_in_parts_of_the_config_too(actor: Path, tmp_path: Path) -> None:
    parts = {"text_config": {"torch_dtype": "float32"}, "vision_config": {"dtype": None, "depth": 2}}
    text = {key: value for key, value in json.loads(config_files()["config.json"]).items() if key != "torch_dtype"}
    parts["text_config"] |= text
    done = merge_role(actor, tmp_path / "model", config_files(**parts))
    found = json.loads((done.path / "config.json").read_text())
    assert found["text_config"]["torch_dtype"] == "bfloat16"
    assert found["vision_config"] == parts["vision_config"]


def test_an_unknown_type(actor: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="dtype 'int4' is unknown; choose bf16, fp16, fp32, keep"):
        merge_role(actor, tmp_path / "model", dtype="int4")


def test_shards_on_other_machines_give_the_same_bytes_and_are_cast_there(actor: Path, tmp_path: Path) -> None:
    merge_role(actor, tmp_path / "near")
    far = {rank: FarShard(shard_path(actor, rank)) for rank in (0, 1)}
    merge(MergeInputs(far, config_files()), tmp_path / "far")
    near, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("near", "far"))
    assert near == other
    assert set(far[0].casts) == {(DType.FLOAT32, DType.BFLOAT16), (DType.INT64, DType.INT64)}


def test_a_damaged_shard_on_another_machine_is_found_there(actor: Path, tmp_path: Path) -> None:
    path = shard_path(actor, 0)
    data = bytearray(path.read_bytes())
    data[open_archive(LocalShard(path)).members["data/0"].offset] ^= 1
    path.write_bytes(data)
    shards = {0: FarShard(path), 1: FarShard(shard_path(actor, 1))}
    with pytest.raises(CheckpointError, match=r"rank on another node: .* is damaged"):
        merge(MergeInputs(shards, config_files()), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_progress_ends_at_the_total(actor: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    done = merge_role(actor, tmp_path / "model", dtype="keep", on_progress=lambda *pair: seen.append(pair))
    assert seen[-1] == (done.size_bytes, done.size_bytes)
    assert [pair for pair in seen if pair[0] >= pair[1]] == seen[-1:]
    assert [pair[0] for pair in seen] == sorted(pair[0] for pair in seen)
    verify(opened(actor), on_progress=lambda *pair: seen.append(pair))
    assert seen[-1][0] == seen[-1][1]


def test_nan_is_a_warning(actor: Path, tmp_path: Path) -> None:
    set_head(actor, lambda _, old: struct.pack("<f", float("nan")) + old[4:])
    for dtype in ("bf16", "keep"):
        assert f"{HEAD} has NaN" in merge_role(actor, tmp_path / dtype, dtype=dtype).warnings
    far = {rank: FarShard(shard_path(actor, rank)) for rank in (0, 1)}
    assert f"{HEAD} has NaN" in merge(MergeInputs(far, config_files()), tmp_path / "far").warnings


def test_a_number_that_becomes_infinite_is_a_warning(actor: Path, tmp_path: Path) -> None:
    set_head(actor, lambda _, old: struct.pack("<f", -65520) + old[4:])
    warning = f"{HEAD} has infinity: fp16 ends at 65504, and bf16 and fp32 do not"
    far = {rank: FarShard(shard_path(actor, rank)) for rank in (0, 1)}
    assert merge_role(actor, tmp_path / "fp16", dtype="fp16").warnings[-1] == warning
    assert merge(MergeInputs(far, config_files()), tmp_path / "far", dtype="fp16").warnings[-1] == warning
    for dtype in ("bf16", "fp32", "keep"):
        assert not any("infinity" in each for each in merge_role(actor, tmp_path / dtype, dtype=dtype).warnings)
    set_head(actor, lambda _, old: struct.pack("<f", 65519.99) + old[4:])
    assert not any("infinity" in each for each in merge_role(actor, tmp_path / "fits", dtype="fp16").warnings)


def tiny_qwen2(folder: Path, layers: int, *, is_shared: bool) -> MergeInputs:
    """All of one rank; each tensor has a storage of 6 elements for itself, or a part of the only one."""
    kept = {"model.embed_tokens.weight": (3, 2), "model.norm.weight": (2,), "lm_head.weight": (3, 2)}
    for layer in range(layers):
        start = f"model.layers.{layer}."
        kept |= {f"{start}self_attn.{name}_proj.weight": (2, 2) for name in "qkvo"}
        kept |= {f"{start}self_attn.{name}_proj.bias": (2,) for name in "qkv"}
        kept |= {f"{start}mlp.{name}_proj.weight": (2, 2) for name in ("gate", "up", "down")}
        kept |= {f"{start}{name}_layernorm.weight": (2,) for name in ("input", "post_attention")}
    places = [("0", 6 * at) if is_shared else (str(at), 0) for at in range(len(kept))]
    sizes = {storage: 6 + offset for storage, offset in places}
    state = {
        name: PickledObject(
            "torch._utils._rebuild_tensor_v2",
            (Storage("torch.FloatStorage", storage, sizes[storage]), offset, shape, (*shape[1:], 1), False, {}),
        )
        for (name, shape), (storage, offset) in zip(kept.items(), places, strict=True)
    }
    content = {"data.pkl": dump(state)} | {f"data/{storage}": bytes(4 * size) for storage, size in sizes.items()}
    path = shard_path(folder, 0, 1)
    path.write_bytes(archived(content, path.stem))
    sides = {"hidden_size": 2, "intermediate_size": 2, "num_attention_heads": 1, "vocab_size": 3}
    return MergeInputs({0: LocalShard(path)}, config_files(**sides, num_hidden_layers=layers))


def test_thousands_of_small_tensors_take_no_time_each(tmp_path: Path) -> None:
    """Of the processor: 2,043 of them took minutes."""
    inputs = tiny_qwen2(tmp_path, 170, is_shared=False)
    began = time.process_time()
    assert merge(inputs, tmp_path / "model").tensors == 2043
    assert time.process_time() - began < 10


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_shard_that_changes_during_the_merge(tmp_path: Path, is_shared: bool) -> None:
    """Also where tensors share a storage: it is read once, and its CRC-32 is that of what was written."""
    plan = plan_merge(tiny_qwen2(tmp_path, 1, is_shared=is_shared))
    path = shard_path(tmp_path, 0, 1)
    good, member = path.read_bytes(), open_archive(LocalShard(path)).members["data/0"]
    for at in range(0, member.size_bytes, 4):
        place = member.offset + at
        path.write_bytes(good[:place] + b"\1" + good[place + 1 :])
        (tmp_path / f"model-{at}").mkdir()
        with pytest.raises(CheckpointError, match="is damaged: data/0 has CRC-32"):
            write_model(plan, tmp_path / f"model-{at}")


def test_tied_embeddings_are_written_once(actor: Path, tmp_path: Path) -> None:
    set_head(actor, lambda embedding, _: embedding)
    done = merge_role(actor, tmp_path / "model", config_files(tie_word_embeddings=True))
    assert HEAD not in read_safetensors(done.path)
    assert EMBEDDING in read_safetensors(done.path)


def test_embeddings_are_tied_where_a_config_that_says_nothing_means_it(actor: Path, tmp_path: Path) -> None:
    """transformers leaves out of config.json what is the same in all its configs; of Gemma's it is that."""
    set_head(actor, lambda embedding, _: embedding)
    for rank, name in itertools.product((0, 1), "qkv"):  # Gemma's have no bias
        bias = f"model.layers.0.self_attn.{name}_proj.bias"
        edit(shard_path(actor, rank), replace_in_pickle(pickled(bias), pickled(f"{bias}.buffer")))
    said = json.loads(config_files(architectures=["GemmaForCausalLM"], head_dim=1)["config.json"])
    del said["tie_word_embeddings"]
    done = merge_role(actor, tmp_path / "model", {"config.json": json.dumps(said).encode()})
    assert HEAD not in read_safetensors(done.path)
    assert "tie_word_embeddings" not in json.loads((done.path / "config.json").read_text())


def test_the_quantization_of_the_base_model_is_left_out(actor: Path, tmp_path: Path) -> None:
    """What was trained and saved is not quantized; a loader would take it for that."""
    done = merge_role(actor, tmp_path / "model", config_files(quantization_config={"quant_method": "fp8"}))
    assert "quantization_config" not in json.loads((done.path / "config.json").read_text())
    (warning,) = [each for each in done.warnings if "quantization_config" in each]
    assert warning.endswith("left out, since these weights are plain")


def test_embeddings_that_are_not_tied_after_all_are_kept(actor: Path, tmp_path: Path) -> None:
    done = merge_role(actor, tmp_path / "model", config_files(tie_word_embeddings=True))
    assert {HEAD, EMBEDDING} <= read_safetensors(done.path).keys()
    assert json.loads((done.path / "config.json").read_text())["tie_word_embeddings"] is False
    assert any("lm_head.weight and the embedding differ" in warning for warning in done.warnings)


def test_large_models_are_split_with_an_index(actor: Path, tmp_path: Path) -> None:
    plan = plan_merge(opened(actor), max_file_bytes=(1 << 20) + 200)
    (tmp_path / "model").mkdir()
    write_model(plan, tmp_path / "model")
    files = sorted(path.name for path in (tmp_path / "model").glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert len(files) > 2
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    whole = read_safetensors(merge_role(actor, tmp_path / "whole").path)
    assert read_safetensors(tmp_path / "model") == whole
    assert index["weight_map"].keys() == whole.keys()
    assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in whole.values())
    assert set(index["weight_map"].values()) == set(files)


def test_other_files_come_along_and_weights_do_not(actor: Path, tmp_path: Path) -> None:
    files = config_files() | {
        "chat_template.jinja": b"{{ messages }}",
        "additional_chat_templates/tools.jinja": b"x",
        "generation_config.json": b"{}",
        "model.safetensors": b"old",
        "pytorch_model.bin": b"old",
        "model.safetensors.index.json": b"old",
    }
    done = merge_role(actor, tmp_path / "model", files)
    found = {path.relative_to(done.path).as_posix() for path in done.path.rglob("*") if path.is_file()}
    assert found == {
        "additional_chat_templates/tools.jinja",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert len(read_safetensors(done.path)) == 16


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a//x", "x\0", ""])
def test_a_file_that_leads_out_of_the_folder(actor: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="is named"):
        merge_role(actor, tmp_path / "model", config_files() | {name: b"x"})


@pytest.mark.parametrize("names", [["x" * 300], ["x", "x/y"]])
def test_a_file_that_cannot_be_written(actor: Path, tmp_path: Path, names: list[str]) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match="cannot be written"):
        merge_role(actor, tmp_path / "model", config_files() | dict.fromkeys(names, b"x"))
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_config_that_is_none(actor: Path, tmp_path: Path, text: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        merge_role(actor, tmp_path / "model", {"config.json": text})


def test_the_plan_reads_no_tensor(actor: Path) -> None:
    plan = plan_merge(opened(actor))
    assert sum(output.elements for output in plan.outputs) == sum(
        (2 * VOCABULARY * HIDDEN, 2 * HIDDEN * (HIDDEN + 1), HIDDEN + 2, 3 * INTERMEDIATE * HIDDEN, 3 * HIDDEN, 5)
    )
    assert list(plan.files) == ["model.safetensors"]
    assert plan.size_bytes > sum(output.size_bytes for output in plan.outputs)
