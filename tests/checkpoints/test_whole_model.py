"""A whole model, as Megatron saves it by default: copied, cast, and refused where it is damaged."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megatron_files import extracted, latest
from safetensors.numpy import save_file
from shard_files import read_safetensors

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import CheckpointError
from cloudrl.saves.megatron_layout import Kind
from cloudrl.saves.names import INDEX
from cloudrl.shards.dtypes import DType, cast_bytes
from cloudrl.shards.plan import HEAD

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 8, "vocab_size": 13,
    "torch_dtype": "float32",
}  # fmt: skip
FORMAT = {"format": "pt"}


def write_model(folder: Path, **files: Mapping[str, np.ndarray]) -> None:
    """A whole model, as a bridge writes it: its weights, by file and name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in files.items():
        save_file(dict(tensors), folder / f"{name}.safetensors", FORMAT)
    where = {tensor: f"{name}.safetensors" for name, tensors in files.items() for tensor in tensors}
    if len(files) > 1:
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A whole model in two files, as verl saves it by default, beside optimizer and random states."""
    role = tmp_path / "run" / "global_step_3" / "actor"
    layers = {"model.norm.weight": numbers(8), HEAD: numbers(13, 8)}
    write_model(
        role / "model" / "huggingface",
        **{"model-00001-of-00002": {"model.embed_tokens.weight": numbers(13, 8)}, "model-00002-of-00002": layers},
    )
    other = extracted("qwen2-uneven-padded", tmp_path / "other")
    (other / "extra").rename(role / "optimizer")
    (role / "ckpt_contents.json").write_text('{"global_step": 3, "world_size": 2}')
    (role.parent / "data.pt").write_bytes(b"x")
    return role / "model" / "huggingface"


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


def write_second(model: Path, **tensors: np.ndarray) -> None:
    """Other tensors in the second file."""
    save_file(tensors, model / "model-00002-of-00002.safetensors", FORMAT)


def write_single(model: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Another model, in one file."""
    for path in (*model.glob("model-*"), model / INDEX):
        path.unlink()
    write_model(model, model=tensors)


def merged(model: Path, **options: str) -> tuple[dict[str, tuple[str, tuple[int, ...], bytes]], dict[str, Any]]:
    """The tensors and the config that it merges to."""
    target = model.parents[4] / "model"
    latest(model).merge(target, **options)
    return read_safetensors(target), json.loads((target / "config.json").read_text())


def test_a_whole_model_is_copied(model: Path, tmp_path: Path) -> None:
    found = latest(model)
    report = found.verify()
    assert (found.info.missing, found.info.weights) == ((), (Kind.MODEL, "model/huggingface/"))
    assert (report.ok, report.tensors, report.step, report.step_source) == (True, 3, 3, "manifest")
    merged = found.merge(tmp_path / "model", dtype="keep")
    assert (merged.tensors, merged.warnings) == (3, ())
    assert read_safetensors(tmp_path / "model") == read_safetensors(model)
    assert json.loads((tmp_path / "model" / "config.json").read_text()) == CONFIG
    assert (tmp_path / "model" / "tokenizer.json").read_text() == "{}"


def test_a_whole_model_is_cast(model: Path) -> None:
    after, config = merged(model)
    assert config["torch_dtype"] == "bfloat16"
    for name, (_, shape, data) in read_safetensors(model).items():
        assert after[name] == ("BF16", shape, cast_bytes(data, DType.FLOAT32, DType.BFLOAT16))


def of_class(model: Path, **config: object) -> None:
    """Another config than `CONFIG`."""
    (model / "config.json").write_text(json.dumps(CONFIG | config))


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "BrandNewForCausalLM"])
def test_a_whole_model_inside_a_wrapper(model: Path, architecture: str) -> None:
    """It would load with random numbers; of an architecture that is not known nothing tells what is right."""
    tensors = {"_orig_mod.model.embed_tokens.weight": numbers(13, 8), "_orig_mod.model.norm.weight": numbers(8)}
    write_single(model, tensors | {f"_orig_mod.{HEAD}": numbers(13, 8)})
    of_class(model, architectures=[architecture], num_hidden_layers=0)
    if architecture == "Qwen2ForCausalLM":
        assert merged(model)[0].keys() == {"model.embed_tokens.weight", "model.norm.weight", HEAD}
    else:
        with pytest.raises(CheckpointError, match="has tensors inside `_orig_mod`, and it is not known which names"):
            merged(model)


def test_a_class_may_have_something_that_is_named_module(model: Path) -> None:
    write_single(model, {"model.embed.weight": numbers(13, 8), "model.module.weight": numbers(8)})
    of_class(model, architectures=["BrandNewForCausalLM"])
    assert merged(model)[0].keys() == {"model.embed.weight", "model.module.weight"}


ROUTER, MTP = "model.layers.0.mlp.gate.e_score_correction_bias", "model.layers.0.eh_proj.weight"


@pytest.mark.parametrize("count", [0, 1])
def test_layers_that_predict_further_tokens_are_copied(model: Path, count: int) -> None:
    """They stand behind all others, which are missing here. The router's correction keeps its type."""
    tensors = {"model.embed_tokens.weight": numbers(13, 8), "model.norm.weight": numbers(8), HEAD: numbers(13, 8)}
    write_single(model, tensors | {ROUTER: numbers(4), MTP: numbers(8, 16)})
    of_class(model, architectures=["DeepseekV3ForCausalLM"], num_hidden_layers=0, num_nextn_predict_layers=count)
    if not count:
        with pytest.raises(CheckpointError, match="there are 1 layers"):
            merged(model)
        return
    found, _ = merged(model)
    assert found.keys() == tensors.keys() | {ROUTER, MTP}
    assert (found[ROUTER], found[MTP][0]) == (("F32", (4,), numbers(4).tobytes()), "BF16")


def test_a_critic_gets_its_head(model: Path, tmp_path: Path) -> None:
    critic = model.parents[1].rename(model.parents[2] / "critic") / "model" / "huggingface"
    write_second(critic, **{"model.norm.weight": numbers(8), HEAD: numbers(1, 8)})
    Checkpoints(LocalSource(tmp_path / "run")).select(3, role="critic").merge(tmp_path / "model", dtype="keep")
    tensors, config = read_safetensors(tmp_path / "model"), json.loads((tmp_path / "model" / "config.json").read_text())
    assert tensors["score.weight"] == ("F32", (1, 8), numbers(1, 8).tobytes())
    assert tensors["score.bias"] == ("F32", (1,), bytes(4))
    assert HEAD not in tensors
    assert (config["architectures"], config["id2label"]) == (["Qwen2ForTokenClassification"], {"0": "LABEL_0"})


@pytest.mark.parametrize("name", ["Qwen2VLForConditionalGeneration", "Olmo2ForCausalLM"])
def test_a_critic_that_no_class_can_load(model: Path, name: str) -> None:
    write_second(model, **{"model.norm.weight": numbers(8), HEAD: numbers(1, 8)})
    of_class(model, architectures=[name])
    with pytest.raises(CheckpointError, match=f"no class for a critic made from {name}"):
        merged(model)


@pytest.mark.parametrize("is_same", [True, False])
def test_a_head_that_should_be_the_embedding(model: Path, is_same: bool, tmp_path: Path) -> None:
    head = numbers(13, 8) if is_same else numbers(13, 8) + 1
    write_second(model, **{"model.norm.weight": numbers(8), HEAD: head})
    of_class(model, tie_word_embeddings=True)
    done = latest(model).merge(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["tie_word_embeddings"] is is_same
    assert (HEAD in read_safetensors(tmp_path / "model")) is not is_same
    assert [HEAD in warning for warning in done.warnings] == [True] * (not is_same)


def test_a_model_that_sees_and_is_tied_below_its_top(model: Path) -> None:
    """As transformers 4.52 to 4.57 save Qwen2-VL; 5 takes a model for untied whose top does not say it."""
    write_second(model, **{"model.norm.weight": numbers(8)})
    (model / INDEX).unlink()
    of_class(model, architectures=["Qwen2VLForConditionalGeneration"], text_config={"tie_word_embeddings": True})
    assert merged(model)[1]["tie_word_embeddings"] is True


def test_a_model_that_sees_and_has_a_head_of_its_own(model: Path) -> None:
    """Its config says so wherever a release of transformers looks for it: 4.57 in text_config, 5 at the top."""
    write_second(model, **{"model.norm.weight": numbers(8), HEAD: numbers(13, 8) + 1})
    below = {"tie_word_embeddings": True, "dtype": "float32"}
    of_class(model, architectures=["Qwen2VLForConditionalGeneration"], text_config=below)
    found, config = merged(model)
    assert HEAD in found
    assert config["tie_word_embeddings"] is False
    assert config["text_config"] == {"tie_word_embeddings": False, "dtype": "bfloat16"}


def test_the_layout_of_verl_0_8(model: Path, tmp_path: Path) -> None:
    role = model.parents[1]
    model.rename(role / "huggingface")
    (role / "optimizer" / "dist_ckpt").rename(role / "dist_ckpt")
    (role / "ckpt_contents.json").unlink()
    shutil.rmtree(role / "model")
    found = Checkpoints(LocalSource(tmp_path / "run")).latest()
    assert found.info.weights == (Kind.MODEL, "huggingface/")
    assert found.merge(tmp_path / "model").tensors == 3


@pytest.mark.parametrize(
    "name",
    [
        "ckpt_contents.json", "model/huggingface/config.json", f"model/huggingface/{INDEX}",
        "model/huggingface/model-00002-of-00002.safetensors", "optimizer/dist_ckpt/.metadata",
    ],
)  # fmt: skip
def test_a_file_of_a_whole_model_that_is_missing(model: Path, name: str) -> None:
    (model.parents[1] / name).unlink()
    assert latest(model).info.missing == (name,)


def test_a_save_without_weights(model: Path) -> None:
    shutil.rmtree(model)
    found = latest(model)
    assert found.info.missing == ("the weights",)
    with pytest.raises(CheckpointError, match="has no weights"):
        found.merge(model.parent / "merged")


SPOILED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut off": (lambda data: data[:-1], "is cut off or too long"),
    "longer": (lambda data: data + b"x", "is cut off or too long"),
    "empty": (lambda _: b"", "its header would have 0 bytes"),
    "a header of no end": (lambda data: b"\xff" * 8 + data[8:], "its header would have"),
    "no JSON": (lambda data: data[:8] + b"[" + data[9:], "its header cannot be read"),
    "another type": (lambda data: data.replace(b'"F32"', b'"F8x"'), "of type 'F8x'"),
    "another place": (lambda data: data.replace(b"[416,", b"[415,"), "would be at bytes 415"),
    "another shape": (lambda data: data.replace(b"[13,8]", b"[12,8]"), "would be at bytes"),
    "a negative shape": (lambda data: data.replace(b"[13,8]", b"[-3,8]"), "impossible shape or place"),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_damaged_file_of_a_whole_model(model: Path, how: str, tmp_path: Path) -> None:
    spoil, message = SPOILED[how]
    path = model / "model-00002-of-00002.safetensors"
    path.write_bytes(spoil(path.read_bytes()))
    found = latest(model)
    (finding, *_) = found.verify().findings
    assert (finding.fatal, message in finding.message) == (True, True)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        found.merge(tmp_path / "model")
    assert not (tmp_path / "model").exists()


INDICES = {
    "names another file": ({"model.norm.weight": "x.safetensors"}, "names 1 files that are not there: x.safetensors"),
    "lacks a tensor": ({"model.norm.weight": "model-00002-of-00002.safetensors"}, "disagree on 2 tensors"),
    "is a list": ([], "has no weight_map"),
}


@pytest.mark.parametrize("how", INDICES)
def test_an_index_that_does_not_fit(model: Path, how: str) -> None:
    where, message = INDICES[how]
    (model / INDEX).write_text(json.dumps({"weight_map": where}))
    assert message in latest(model).verify().findings[0].message
    with pytest.raises(CheckpointError, match=message):
        merged(model)


def test_another_step_in_the_folder(model: Path) -> None:
    (model.parents[1] / "ckpt_contents.json").write_text('{"global_step": 4}')
    fatal = [finding.message for finding in latest(model).verify().findings if finding.fatal]
    assert fatal == ["ckpt_contents.json says that this is step 4, and the folder step 3"]


def test_an_adapter_is_handed_out(model: Path, tmp_path: Path) -> None:
    shutil.rmtree(model)
    adapter = model / "adapter"
    write_model(adapter, adapter_model={"base_model.model.x.lora_A.weight": numbers(2, 8)})
    (adapter / "config.json").unlink()
    (adapter / "adapter_config.json").write_text('{"r": 2}')
    found = latest(model)
    assert (found.info.missing, found.verify().ok) == ((), True)
    with pytest.raises(CheckpointError, match="the adapter alone was saved"):
        found.merge(tmp_path / "model")
    found.merge(tmp_path / "model", lora="adapter")
    assert read_safetensors(tmp_path / "model") == read_safetensors(adapter)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    (adapter / "adapter_config.json").unlink()
    assert latest(model).info.missing == ("model/huggingface/adapter/adapter_config.json",)
    with pytest.raises(CheckpointError, match=r"has no adapter_config\.json"):
        latest(model).merge(tmp_path / "again", lora="adapter")


def test_a_model_without_an_adapter(model: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no LoRA adapter, but a whole model"):
        merged(model, lora="adapter")
