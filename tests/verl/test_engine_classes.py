"""Architectures that a rollout engine has no class for: told before anything is paid for, with what to do."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from memory_truth import setting_of

from cloudrl.verl.engine_classes import engine_of, known_engines, unread, unserved
from cloudrl.verl.keys import MODEL, ROLLOUT
from cloudrl.verl.model_config import ModelConfig, known_model, known_models
from cloudrl.verl.releases import RELEASES
from cloudrl.verl.setting import Setting, applied

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "engine_classes.py"


def model(architecture: str, **values: Any) -> ModelConfig:
    return ModelConfig("me/mine", {"architectures": [architecture], **values}, "./mine/config.json")


def setting(engine: str = "vllm", **values: Any) -> Setting:
    return applied(setting_of({"ref": False, "dyn": True, "verl": "0.9.1"}), {f"{ROLLOUT}.name": engine, **values})


def told(engine: str, version: str, found: ModelConfig, verl: str = "0.9.1", **values: Any) -> list[str]:
    return list(unserved(setting(engine, **values), found, version, verl))


def test_every_release_with_a_known_engine_was_read() -> None:
    named = {(row.rollout, row.rollout_version) for row in RELEASES if row.rollout_version}
    assert named == {(each.engine, each.version) for each in known_engines()}


@pytest.mark.parametrize("engine", known_engines(), ids=str)
def test_known_models_are_served(engine: Any) -> None:
    """SGLang 0.5 has no class for two of them, which transformers has."""
    architectures = {
        found.architecture for name in known_models() if (found := known_model(name)) and not engine.serves(found)
    }
    assert architectures == (set() if engine.engine == "vllm" else {"SmolLM3ForCausalLM", "SeedOssForCausalLM"})


def test_a_class_that_the_engine_lacks() -> None:
    [sentence] = told("vllm", "0.24.0", model("NovelForCausalLM"))
    assert sentence == (
        "vLLM 0.24.0 has no class NovelForCausalLM, which config.json of me/mine names: it tries the implementation in "
        "transformers, and where that is not made for it, the job ends minutes later. Or take an image with a newer "
        "engine (--set image=...), or register the class in code of your own (--working-dir)."
    )


def test_the_other_engine_of_that_release_of_verl_has_it() -> None:
    [sentence] = told("sglang", "0.5.12", model("SmolLM3ForCausalLM"))
    assert "vLLM 0.24.0 has it: actor_rollout_ref.rollout.name=vllm, on a cluster with --set rollout=vllm." in sentence
    [sentence] = told("sglang", "0.5.12", model("SmolLM3ForCausalLM"), verl="0.8.0")
    assert "vLLM 0.20.2 has it" in sentence


def test_code_that_comes_with_the_model() -> None:
    mine = model("NovelForCausalLM", auto_map={"AutoModelForCausalLM": "modeling.Novel"})
    assert f"{MODEL}.trust_remote_code=True" in told("vllm", "0.24.0", mine)[0]
    assert "trust_remote_code" not in told("vllm", "0.24.0", mine, **{f"{MODEL}.trust_remote_code": True})[0]


def test_a_class_that_vllm_has_removed() -> None:
    gone = model("MiniMaxM1ForCausalLM")
    assert "(vLLM had it until 0.23.0)" in told("vllm", "0.24.0", gone)[0]
    assert told("vllm", "0.20.2", gone) == []


@pytest.mark.parametrize(
    ("engine", "version", "found"),
    [
        ("vllm", "0.24.0.dev2+cu130", model("Qwen3ForCausalLM")),
        ("vllm", "0.24.0", model("Qwen3_5MoeForConditionalGeneration")),
        ("vllm", "0.24.0", ModelConfig("me/bare", {}, "./bare/config.json")),
        ("vllm", "0.99.0", model("NovelForCausalLM")),
        ("trtllm", "1.0", model("NovelForCausalLM")),
    ],
    ids=[
        "a build of it",
        "the whole model",
        "no architecture",
        "a release that was not read",
        "an engine that was not",
    ],
)
def test_nothing_to_say(engine: str, version: str, found: ModelConfig) -> None:
    assert told(engine, version, found) == []


@pytest.mark.parametrize(
    ("engine", "version", "architecture", "says"),
    [
        ("vllm", None, "NovelForCausalLM", "whether vLLM has NovelForCausalLM (its release is unknown)"),
        ("vllm", "0.99.0", "NovelForCausalLM", "whether vLLM has NovelForCausalLM (its release 0.99.0 was not read)"),
        ("trtllm", None, "Qwen3ForCausalLM", "whether trtllm has Qwen3ForCausalLM (its classes were not read)"),
        ("vllm", "0.24.0", "NovelForCausalLM", ""),
        ("vllm", None, "Qwen3ForCausalLM", ""),
        ("???", None, "NovelForCausalLM", ""),
    ],
)
def test_what_is_not_known(engine: str, version: str | None, architecture: str, says: str) -> None:
    assert unread(setting(engine), model(architecture), version) == says


def test_a_fork_of_a_model_of_the_table() -> None:
    """Its own config.json counts, not the class that the table has for it."""
    qwen = known_model("Qwen/Qwen3.5-4B")
    assert qwen is not None
    engine = engine_of("vllm", "0.24.0")
    assert engine is not None
    assert engine.serves(qwen)
    assert not engine.serves(replace(qwen, is_of_table=False))


def test_the_table_is_made_of_wheels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("engine_classes_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    vllm, sglang = tmp_path / "vllm-0.24.0-cp38-abi3-any.whl", tmp_path / "sglang-0.5.12-py3-none-any.whl"
    with zipfile.ZipFile(vllm, "w") as files:
        tables = [f"{name} = {{'{name[1]}ForCausalLM': ('a', 'b')}}" for name in script.GENERATES]
        files.writestr(script.REGISTRY, "\n".join([*tables, f"{script.REMOVED} = {{'Old': '0.22.0'}}", "_X = {**_Y}"]))
    with zipfile.ZipFile(sglang, "w") as files:
        files.writestr("sglang/srt/models/one.py", "\ufeffclass A: ...\nEntryClass = A")
        files.writestr("sglang/srt/models/two.py", "EntryClass = [B, C]")
        files.writestr("sglang/srt/models/helper.py", "x = 1")
        files.writestr("sglang/srt/models/sub/three.py", "EntryClass = D")
    script.main([str(vllm), str(sglang), str(tmp_path / "torch-2.0-any.whl")])
    first, second = json.loads(capsys.readouterr().out)["engines"]
    assert (first["engine"], first["version"], first["classes"], first["removed"]) == (
        "sglang",
        "0.5.12",
        ["A", "B", "C"],
        {},
    )
    assert second["classes"] == ["MForCausalLM", "TForCausalLM"]
    assert second["removed"] == {"Old": "0.22.0"}
