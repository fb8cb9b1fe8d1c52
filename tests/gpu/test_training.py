"""Steps that verl saved from a GPU: trained by its own trainer, found, checked and merged by ours, bit for bit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from shard_files import members, read_safetensors
from trained import CASES, STEPS, start

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.sources import LocalSource

pytestmark = pytest.mark.gpu
WHOLE = [name for name, case in CASES.items() if not case.lora]
PATIENCE_S = 300


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, gpu: str) -> dict[str, Path]:
    """Name -> folder of a run. All train at the same time: most of it is imports."""
    folders = {name: tmp_path_factory.mktemp(name) for name in CASES}
    started = {name: start(folder, CASES[name]) for name, folder in folders.items()}
    failed = {name: process.wait(PATIENCE_S) for name, process in started.items()}
    for name, status in failed.items():
        assert status == 0, f"{name}\n{(folders[name] / 'output').read_text()[-4000:]}"
    return {name: folder / "checkpoints" / "sft" for name, folder in folders.items()}


@pytest.mark.parametrize("name", CASES)
def test_it_was_trained_on_the_gpu(runs: dict[str, Path], name: str) -> None:
    output = (runs[name].parents[1] / "output").read_text()
    losses = [float(value) for value in re.findall(r"train/loss:([0-9.]+)", output)]
    assert len(losses) == STEPS
    assert losses[0] != losses[1]
    assert float(re.findall(r"perf/max_memory_allocated_gb:([0-9.e-]+)", output)[-1]) > 0


@pytest.mark.parametrize("name", CASES)
def test_every_step_is_found_whole(runs: dict[str, Path], name: str) -> None:
    found = [*Checkpoints(LocalSource(runs[name]))]
    assert [(each.step, each.role, each.complete) for each in found] == [(1, "actor", True), (2, "actor", True)]
    for each in found:
        report = each.verify()
        assert report.findings == ()
        assert (report.ok, report.step, report.step_source) == (True, each.step, "scheduler")


@pytest.mark.parametrize("kind", ["model", "optim"])
@pytest.mark.parametrize("name", CASES)
def test_its_shards_are_of_the_gpu(runs: dict[str, Path], name: str, kind: str) -> None:
    """Else the others would show no more than files of a CPU do."""
    shard = runs[name] / f"global_step_{STEPS}" / f"{kind}_world_size_1_rank_0.pt"
    assert b"cuda:0" in members(shard)["data.pkl"]


@pytest.mark.parametrize("name", WHOLE)
def test_the_same_model_as_verl_wrote_itself(runs: dict[str, Path], name: str, tmp_path: Path) -> None:
    done = Checkpoints(LocalSource(runs[name])).latest().merge(tmp_path / "ours", dtype="keep")
    assert done.warnings == ()
    ours, theirs = (read_safetensors(each) for each in (tmp_path / "ours", saved_by_verl(runs[name])))
    assert ours == theirs
    assert {kind for kind, _, _ in ours.values()} == {"BF16" if CASES[name].dtype == "bf16" else "F32"}
    assert ("lm_head.weight" in ours) is not CASES[name].tied


@pytest.mark.parametrize("name", WHOLE)
def test_the_same_model_as_verls_merger_makes(runs: dict[str, Path], name: str, tmp_path: Path) -> None:
    command = [
        sys.executable, "-W", "ignore", "-m", "verl.model_merger", "merge", "--backend", "fsdp",
        "--local_dir", runs[name] / f"global_step_{STEPS}", "--target_dir", tmp_path / "theirs",
    ]  # fmt: skip
    environ = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environ)
    assert done.returncode == 0, done.stderr[-3000:]
    Checkpoints(LocalSource(runs[name])).latest().merge(tmp_path / "ours")
    assert read_safetensors(tmp_path / "ours") == read_safetensors(tmp_path / "theirs")


def saved_by_verl(run: Path) -> Path:
    """The folder of the whole model of the last step."""
    (found,) = (run / f"global_step_{STEPS}").rglob("huggingface/*.safetensors")
    return found.parent


@pytest.mark.parametrize("name", WHOLE)
def test_transformers_computes_the_same_with_it_on_the_gpu(
    runs: dict[str, Path], name: str, tmp_path: Path, gpu: str
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    Checkpoints(LocalSource(runs[name])).latest().merge(tmp_path / "ours", dtype="keep")
    tokens = AutoTokenizer.from_pretrained(tmp_path / "ours")("1 + 1 =", return_tensors="pt").to(gpu)
    answers, logits = [], []
    for folder in (tmp_path / "ours", saved_by_verl(runs[name])):
        # verl's config says bfloat16 beside weights in float32
        dtype = torch.bfloat16 if CASES[name].dtype == "bf16" else torch.float32
        model, loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
        assert not loaded["missing_keys"]
        assert not loaded["unexpected_keys"]
        model = model.to(gpu)
        with torch.inference_mode():
            logits.append(model(**tokens).logits)
            answers.append(model.generate(**tokens, max_new_tokens=4, do_sample=False).tolist())
    assert torch.isfinite(logits[0]).all()
    assert torch.equal(*logits)
    assert answers[0] == answers[1]


def test_an_adapter_is_taken_into_the_model_as_peft_does(runs: dict[str, Path], tmp_path: Path, gpu: str) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    found = Checkpoints(LocalSource(runs["fsdp2-lora"])).latest()
    found.merge(tmp_path / "merged", dtype="fp32")
    found.merge(tmp_path / "adapter", lora="adapter")
    base = AutoModelForCausalLM.from_pretrained(runs["fsdp2-lora"].parents[1] / "model", dtype=torch.float32)
    with_adapter = PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload().to(gpu)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).to(gpu)
    tokens = torch.arange(24, device=gpu)[None]
    with torch.inference_mode():
        theirs, ours = with_adapter(tokens).logits, merged(tokens).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    before = read_safetensors(runs["fsdp2-lora"].parents[1] / "model")
    after = read_safetensors(tmp_path / "merged")
    assert any(before[name][2] != after[name][2] for name in after)


@pytest.mark.parametrize("world_size", [2, 3])
def test_shards_of_several_gpus(world_size: int, tmp_path: Path, gpu: str) -> None:
    """DTensors of CUDA as FSDP2 has them on so many ranks, which one process says to be one after the other."""
    script = Path(__file__).with_name("cuda_shards.py")
    command = [sys.executable, "-W", "ignore", script, tmp_path / "run", str(world_size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    found = Checkpoints(LocalSource(tmp_path / "run")).latest()
    shard = tmp_path / "run" / "global_step_1" / "actor" / f"model_world_size_{world_size}_rank_{world_size - 1}.pt"
    assert b"cuda:0" in members(shard)["data.pkl"]
    found.merge(tmp_path / "ours", dtype="keep")
    assert read_safetensors(tmp_path / "ours") == read_safetensors(tmp_path / "run" / "whole")


def test_the_distributed_format_is_the_same_from_the_gpu(tmp_path: Path, gpu: str) -> None:
    """As Megatron's trainers save: the same numbers, written from the GPU and from the CPU, become the same model."""
    script = Path(__file__).parents[2] / "benchmarks" / "write_dist_ckpt.py"
    found = []
    for device in ("cpu", "cuda"):
        folder = tmp_path / device
        role, base = folder / "run" / "global_step_1" / "actor", folder / "base"
        role.mkdir(parents=True)
        base.mkdir()
        command = [sys.executable, "-W", "ignore", script, role, base, "moe-tiny", "4", device]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr[-3000:]
        (role.parent / "data.pt").write_bytes(b"data")
        Checkpoints(LocalSource(folder / "run")).latest().merge(folder / "model", base=str(base), dtype="keep")
        found.append(read_safetensors(folder / "model"))
    assert found[0] == found[1]
    assert len(found[0]) > 30
