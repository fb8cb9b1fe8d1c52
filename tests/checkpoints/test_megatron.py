"""Megatron's checkpoints: what is there, whether it is all, and a whole model copied or cast."""

import json
import random
import re
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from megatron_files import expected, extracted, weights
from safetensors.numpy import save_file
from shard_files import read_safetensors

from cloudrl.checkpoints.handle import CheckpointHandle, Checkpoints
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import CheckpointError, InputError
from cloudrl.saves.megatron_layout import Kind
from cloudrl.saves.names import INDEX
from cloudrl.shards.dtypes import DType, cast_bytes
from cloudrl.shards.plan import HEAD
from cloudrl.shards.report import Report

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 8, "vocab_size": 13,
    "torch_dtype": "float32",
}  # fmt: skip
FORMAT = {"format": "pt"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder with weights in the distributed format, of a step that is whole, saved by verl's own manager."""
    return weights(extracted("qwen2-uneven-padded", tmp_path / "run"))


@pytest.fixture
def base(data: Path) -> Path:
    """A folder with what the base model has beside its weights."""
    folder = data.parents[4] / "base"
    folder.mkdir()
    (data.parents[3] / "config.json").rename(folder / "config.json")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x")
    (folder / INDEX).write_text("{}")
    return folder


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


def latest(data: Path) -> CheckpointHandle:
    return Checkpoints(LocalSource(data.parents[3])).select(data.parents[2].name.rpartition("_")[2])


def test_the_distributed_format(data: Path, base: Path, tmp_path: Path) -> None:
    found = latest(data)
    assert (found.complete, found.info.weights) == (True, (Kind.DIST, "model/dist_ckpt/"))
    assert found.info.locations.popitem()[1] == (0, 1, 2, 3)
    report = found.verify()
    assert (report.findings, report.ranks, report.world_size) == ((), (0, 1, 2, 3), 4)
    assert (report.step, report.tensors) == (1, 10)
    with pytest.raises(CheckpointError, match="neither config nor tokenizer") as caught:
        found.merge(tmp_path / "model")
    assert "--base MODEL" in str(caught.value.hint)
    merged = found.merge(tmp_path / "model", base=str(base), dtype="keep")
    assert read_safetensors(merged.path) == expected(tmp_path / "run")
    assert sorted(path.name for path in merged.path.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_config_beside_it_as_in_verl_0_8(data: Path, base: Path, tmp_path: Path) -> None:
    role = data.parents[1]
    data.rename(role / "dist_ckpt")
    shutil.rmtree(role / "model")
    shutil.rmtree(role / "extra")
    base.rename(role / "huggingface")
    for name in ("model.safetensors", INDEX):
        (role / "huggingface" / name).unlink()
    (role / "ckpt_contents.json").unlink()
    found = Checkpoints(LocalSource(tmp_path / "run")).latest()
    assert found.info.weights == (Kind.DIST, "dist_ckpt/")
    assert read_safetensors(found.merge(tmp_path / "model", dtype="keep").path) == expected(tmp_path / "run")


@pytest.mark.parametrize("name", ["", "nothing/such/as/this", "./missing", "~/missing", "missing"])
def test_a_base_that_is_none(data: Path, name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is no folder|has no config"):
        latest(data).merge(tmp_path / "model", base=name or str(tmp_path))


def test_a_base_that_another_run_had(data: Path, base: Path, tmp_path: Path) -> None:
    text = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(text | {"num_hidden_layers": 2}))
    with pytest.raises(CheckpointError, match="num_hidden_layers = 2, and the run had 3"):
        latest(data).merge(tmp_path / "model", base=str(base))


def damage(report: Report) -> list[str]:
    return [finding.message for finding in report.findings if finding.fatal]


@pytest.mark.parametrize("folder", ["model", "extra"])
def test_a_file_that_is_missing_or_empty(data: Path, folder: str) -> None:
    path = max((data.parents[1] / folder / "dist_ckpt").glob("*.distcp"), key=lambda path: path.stat().st_size)
    path.write_bytes(b"")
    (empty,) = damage(latest(data).verify())
    assert "has 0 bytes, and an item of it ends at" in empty
    path.unlink()
    (missing,) = damage(latest(data).verify())
    assert missing == f"{folder}/dist_ckpt/{path.name} is named in .metadata, and is not there"


@pytest.mark.parametrize("folder", ["model", "extra"])
def test_a_bit_that_has_flipped(data: Path, folder: str) -> None:
    path = max((data.parents[1] / folder / "dist_ckpt").glob("*.distcp"), key=lambda path: path.stat().st_size)
    good = path.read_bytes()
    for at in range(200, len(good), 997):
        path.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        if zipped_bytes(good, at):
            assert damage(latest(data).verify()), at


def zipped_bytes(data: bytes, at: int) -> bool:
    """Whether a byte is in a storage: headers, dates and what fills up may change without harm."""
    start = data.rindex(b"PK\3\4", 0, at)
    name, extra = struct.unpack_from("<2H", data, start + 26)
    return (
        b"/data/" in data[start + 30 : start + 30 + name]
        and start + 30 + name + extra <= at < start + 30 + name + extra + 16
    )


def test_a_save_that_was_cut_off_has_no_metadata(data: Path, tmp_path: Path) -> None:
    (data / ".metadata").unlink()
    found = Checkpoints(LocalSource(data.parents[4])).select(1)
    assert found.info.missing == ("model/dist_ckpt/.metadata",)
    assert not found.verify().ok
    with pytest.raises(CheckpointError, match=r"has no model/dist_ckpt/\.metadata"):
        found.merge(tmp_path / "model", base="x")


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"no pickle", b".", random.Random(0).randbytes(300)])
def test_damaged_metadata(data: Path, content: bytes) -> None:
    (data / ".metadata").write_bytes(content)
    assert len(damage(latest(data).verify())) == 1


@pytest.mark.parametrize("case", ["qwen2-default", "qwen2-default-critic"])
def test_what_verl_saves_by_default(case: str, tmp_path: Path) -> None:
    role = extracted(case, tmp_path / "run")
    found = Checkpoints(LocalSource(tmp_path / "run")).latest(role=role.name)
    assert (found.info.missing, found.verify().ok) == ((), True)
    wanted = expected(tmp_path / "run")
    if role.name == "critic":
        wanted["score.bias"] = ("BF16", (1,), bytes(2))
    assert read_safetensors(found.merge(tmp_path / "model", dtype="keep").path) == wanted


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


def test_a_whole_model_is_cast(model: Path, tmp_path: Path) -> None:
    latest(model).merge(tmp_path / "model")
    before, after = read_safetensors(model), read_safetensors(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    for name, (_, shape, data) in before.items():
        assert after[name] == ("BF16", shape, cast_bytes(data, DType.FLOAT32, DType.BFLOAT16))


def of_class(model: Path, **config: object) -> None:
    """Another config than `CONFIG`."""
    (model / "config.json").write_text(json.dumps(CONFIG | config))


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "BrandNewForCausalLM"])
def test_a_whole_model_inside_a_wrapper(model: Path, architecture: str, tmp_path: Path) -> None:
    """It would load with random numbers; of an architecture that is not known nothing tells what is right."""
    tensors = {"_orig_mod.model.embed_tokens.weight": numbers(13, 8), "_orig_mod.model.norm.weight": numbers(8)}
    write_model(model, model=tensors | {f"_orig_mod.{HEAD}": numbers(13, 8)})
    for path in (*model.glob("model-*"), model / INDEX):
        path.unlink()
    of_class(model, architectures=[architecture], num_hidden_layers=0)
    if architecture == "Qwen2ForCausalLM":
        latest(model).merge(tmp_path / "model")
        assert read_safetensors(tmp_path / "model").keys() == {
            "model.embed_tokens.weight", "model.norm.weight", HEAD,
        }  # fmt: skip
    else:
        with pytest.raises(CheckpointError, match="has tensors inside `_orig_mod`, and it is not known which names"):
            latest(model).merge(tmp_path / "model")


def test_a_class_may_have_something_that_is_named_module(model: Path, tmp_path: Path) -> None:
    write_model(model, model={"model.embed.weight": numbers(13, 8), "model.module.weight": numbers(8)})
    for path in (*model.glob("model-*"), model / INDEX):
        path.unlink()
    of_class(model, architectures=["BrandNewForCausalLM"])
    latest(model).merge(tmp_path / "model")
    assert read_safetensors(tmp_path / "model").keys() == {"model.embed.weight", "model.module.weight"}


ROUTER, MTP = "model.layers.0.mlp.gate.e_score_correction_bias", "model.layers.0.eh_proj.weight"


@pytest.mark.parametrize("count", [0, 1])
def test_layers_that_predict_further_tokens_are_copied(model: Path, count: int, tmp_path: Path) -> None:
    """They stand behind all others, of which there are none here. The router's correction keeps its type."""
    tensors = {"model.embed_tokens.weight": numbers(13, 8), "model.norm.weight": numbers(8), HEAD: numbers(13, 8)}
    write_model(model, model=tensors | {ROUTER: numbers(4), MTP: numbers(8, 16)})
    for path in (*model.glob("model-*"), model / INDEX):
        path.unlink()
    of_class(model, architectures=["DeepseekV3ForCausalLM"], num_hidden_layers=0, num_nextn_predict_layers=count)
    if not count:
        with pytest.raises(CheckpointError, match="there are 1 layers"):
            latest(model).merge(tmp_path / "model")
        return
    latest(model).merge(tmp_path / "model")
    merged = read_safetensors(tmp_path / "model")
    assert merged.keys() == tensors.keys() | {ROUTER, MTP}
    assert (merged[ROUTER], merged[MTP][0]) == (("F32", (4,), numbers(4).tobytes()), "BF16")


def test_a_critic_gets_its_head(model: Path, tmp_path: Path) -> None:
    critic = model.parents[1].rename(model.parents[2] / "critic") / "model" / "huggingface"
    save_file(
        {"model.norm.weight": numbers(8), HEAD: numbers(1, 8)}, critic / "model-00002-of-00002.safetensors", FORMAT
    )
    origin = LocalSource(tmp_path / "run")
    Checkpoints(origin).select(3, role="critic").merge(tmp_path / "model", dtype="keep")
    tensors, config = read_safetensors(tmp_path / "model"), json.loads((tmp_path / "model" / "config.json").read_text())
    assert tensors["score.weight"] == ("F32", (1, 8), numbers(1, 8).tobytes())
    assert tensors["score.bias"] == ("F32", (1,), bytes(4))
    assert HEAD not in tensors
    assert (config["architectures"], config["id2label"]) == (["Qwen2ForTokenClassification"], {"0": "LABEL_0"})


@pytest.mark.parametrize("name", ["Qwen2VLForConditionalGeneration", "Olmo2ForCausalLM"])
def test_a_critic_that_no_class_can_load(model: Path, name: str, tmp_path: Path) -> None:
    save_file(
        {"model.norm.weight": numbers(8), HEAD: numbers(1, 8)}, model / "model-00002-of-00002.safetensors", FORMAT
    )
    of_class(model, architectures=[name])
    with pytest.raises(CheckpointError, match=f"no class for a critic made from {name}"):
        latest(model).merge(tmp_path / "model")


@pytest.mark.parametrize("is_same", [True, False])
def test_a_head_that_should_be_the_embedding(model: Path, is_same: bool, tmp_path: Path) -> None:
    head = numbers(13, 8) if is_same else numbers(13, 8) + 1
    save_file({"model.norm.weight": numbers(8), HEAD: head}, model / "model-00002-of-00002.safetensors", FORMAT)
    of_class(model, tie_word_embeddings=True)
    merged = latest(model).merge(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["tie_word_embeddings"] is is_same
    assert (HEAD in read_safetensors(tmp_path / "model")) is not is_same
    assert [HEAD in warning for warning in merged.warnings] == [True] * (not is_same)


def test_a_model_that_sees_and_is_tied_below_its_top(model: Path, tmp_path: Path) -> None:
    """As transformers 4.52 to 4.57 save Qwen2-VL; 5 takes a model for untied whose top does not say it."""
    save_file({"model.norm.weight": numbers(8)}, model / "model-00002-of-00002.safetensors", FORMAT)
    (model / INDEX).unlink()
    of_class(model, architectures=["Qwen2VLForConditionalGeneration"], text_config={"tie_word_embeddings": True})
    latest(model).merge(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["tie_word_embeddings"] is True


def test_a_model_that_sees_and_has_a_head_of_its_own(model: Path, tmp_path: Path) -> None:
    """Its config says so wherever a release of transformers looks for it: 4.57 in text_config, 5 at the top."""
    save_file(
        {"model.norm.weight": numbers(8), HEAD: numbers(13, 8) + 1}, model / "model-00002-of-00002.safetensors", FORMAT
    )
    below = {"tie_word_embeddings": True, "dtype": "float32"}
    of_class(model, architectures=["Qwen2VLForConditionalGeneration"], text_config=below)
    latest(model).merge(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert HEAD in read_safetensors(tmp_path / "model")
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
    ("name", "gap"),
    [
        ("ckpt_contents.json", "ckpt_contents.json"),
        ("model/huggingface/config.json", "model/huggingface/config.json"),
        (f"model/huggingface/{INDEX}", f"model/huggingface/{INDEX}"),
        ("model/huggingface/model-00002-of-00002.safetensors", "model/huggingface/model-00002-of-00002.safetensors"),
        ("optimizer/dist_ckpt/.metadata", "optimizer/dist_ckpt/.metadata"),
    ],
)
def test_a_file_of_a_whole_model_that_is_missing(model: Path, name: str, gap: str) -> None:
    (model.parents[1] / name).unlink()
    assert latest(model).info.missing == (gap,)


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
    "no JSON": (lambda data: data[:8] + b"[" + data[9:], "its header is none"),
    "another type": (lambda data: data.replace(b'"F32"', b'"F8x"'), "of type 'F8x'"),
    "another place": (lambda data: data.replace(b"[416,", b"[415,"), "would lie at bytes 415"),
    "another shape": (lambda data: data.replace(b"[13,8]", b"[12,8]"), "would lie at bytes"),
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
def test_an_index_that_does_not_fit(model: Path, how: str, tmp_path: Path) -> None:
    where, message = INDICES[how]
    (model / INDEX).write_text(json.dumps({"weight_map": where}))
    assert message in latest(model).verify().findings[0].message
    with pytest.raises(CheckpointError, match=message):
        latest(model).merge(tmp_path / "model")


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


def test_a_model_without_an_adapter(model: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no LoRA adapter, but a whole model"):
        latest(model).merge(tmp_path / "again", lora="adapter")
