"""A save of verl's own SFT trainer, trained on two CPUs: found, checked and merged."""

import os
from pathlib import Path

import pytest
from shard_files import read_safetensors
from verl_forks import Script

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.sources import LocalSource

pytestmark = pytest.mark.verl
STEP = 2
OPTIONS = (
    "trainer.device=cpu", "trainer.n_gpus_per_node=2", f"trainer.total_training_steps={STEP}",
    f"trainer.save_freq={STEP}", "trainer.logger=[console]", "data.train_batch_size=4",
    "data.micro_batch_size_per_gpu=2", "data.use_dynamic_bsz=False", "data.num_workers=0", "data.max_length=64",
    "+model.override_config.attn_implementation=sdpa", "model.use_remove_padding=False", "engine.strategy=fsdp2",
    "engine.use_torch_compile=False", "optim.lr=0.1",
    # the last is a whole model by transformers' save_pretrained, to be held against ours
    "checkpoint.save_contents=[model,optimizer,extra,hf_model]",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the trainer leaves of a run."""
    import pandas as pd

    from cloudrl.verl_cpu.tiny_model import make_tiny_model

    folder = tmp_path_factory.mktemp("sft")
    tiny = make_tiny_model(folder / "tiny")
    said = [
        [{"role": "user", "content": f"{number} + 1 ="}, {"role": "assistant", "content": str(number + 1)}]
        for number in range(8)
    ]
    pd.DataFrame({"messages": said}).to_parquet(folder / "train.parquet")
    run = folder / "checkpoints" / "sft"
    paths = (f"model.path={tiny}", f"data.train_files={folder / 'train.parquet'}", f"trainer.default_local_dir={run}")
    environ = os.environ | {
        "HF_HUB_OFFLINE": "1", "VERL_PLATFORM": "cpu", "HOME": str(folder), "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "DIST_INIT_METHOD": (folder / "rendezvous").as_uri(),
    }  # fmt: skip
    script, words = Path(__file__).with_name("sft_save.py"), (*OPTIONS, *paths, f"hydra.run.dir={folder / 'hydra'}")
    ranks = [
        Script(script, words, environ={**environ, "RANK": rank, "LOCAL_RANK": rank}, folder=folder) for rank in "01"
    ]
    for rank in ranks:
        rank.end()
    return run


def test_it_becomes_the_model_that_was_trained(run: Path, tmp_path: Path) -> None:
    (found,) = Checkpoints(LocalSource(run.parent))
    assert (found.run, found.step, found.role, found.complete) == ("sft", STEP, "actor", True)
    report = found.verify()
    assert report.findings == ()
    assert (report.ok, report.step, report.step_source, report.world_size) == (True, STEP, "scheduler", 2)
    found.merge(tmp_path / "ours", dtype="keep")
    ours, theirs = read_safetensors(tmp_path / "ours"), read_safetensors(run / f"global_step_{STEP}" / "huggingface")
    assert ours == theirs
    before = read_safetensors(run.parent.parent / "tiny")
    assert all(ours[name][2] != before[name][2] for name in ours if name.endswith("_proj.weight"))


def test_transformers_loads_it(run: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    Checkpoints(LocalSource(run)).latest().merge(tmp_path / "ours", dtype="keep")
    model, loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not loaded["missing_keys"]
    assert not loaded["unexpected_keys"]
    tokens = AutoTokenizer.from_pretrained(tmp_path / "ours")("1 + 1 =", return_tensors="pt")
    assert torch.isfinite(model(**tokens).logits).all()
