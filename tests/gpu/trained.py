"""A model of a few layers, trained by verl's own SFT trainer on the GPU; what it takes to start it.

What a run saves: shards, optimizer, and a whole model by transformers' `save_pretrained`, to be held against a merge.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

STEPS = 2
OPTIONS = (
    "trainer.device=cuda", "trainer.n_gpus_per_node=1", f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=1", "trainer.logger=[console]", "data.train_batch_size=4", "data.micro_batch_size_per_gpu=2",
    "data.use_dynamic_bsz=False", "data.num_workers=0", "data.max_length=64",
    "+model.override_config.attn_implementation=sdpa", "model.use_remove_padding=False",
    "engine.use_torch_compile=False", "optim.lr=0.1", "checkpoint.save_contents=[model,optimizer,extra,hf_model]",
)  # fmt: skip


class Case(NamedTuple):
    """How a model is trained."""

    strategy: str
    dtype: str = "fp32"
    tied: bool = False
    architecture: str = "Qwen2ForCausalLM"
    lora: bool = False

    def options(self) -> list[str]:
        """In verl's keys."""
        lora = ["model.lora_rank=4", "model.lora_alpha=10", "model.target_modules=all-linear"] if self.lora else []
        return [f"engine.strategy={self.strategy}", f"engine.model_dtype={self.dtype}", *lora]


CASES = {
    "fsdp1": Case("fsdp"),
    "fsdp1-tied-bf16": Case("fsdp", "bf16", tied=True),
    "fsdp2": Case("fsdp2"),
    "fsdp2-tied": Case("fsdp2", tied=True),
    "fsdp2-bf16-qwen3": Case("fsdp2", "bf16", architecture="Qwen3ForCausalLM"),
    "fsdp2-lora": Case("fsdp2", lora=True),
}


def write_inputs(folder: Path, case: Case) -> tuple[Path, Path]:
    """The model to start from, with random weights, and rows to train on."""
    import pandas as pd
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen3Config

    from cloudrl.verl_cpu.tiny_model import make_tiny_model

    tiny, model = make_tiny_model(folder / "tiny"), folder / "model"
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    torch.manual_seed(0)
    kind = Qwen3Config if case.architecture.startswith("Qwen3") else Qwen2Config
    config = kind(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, tie_word_embeddings=case.tied,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(model)
    tokenizer.save_pretrained(model)
    said = [
        [{"role": "user", "content": f"{number} + 1 ="}, {"role": "assistant", "content": str(number + 1)}]
        for number in range(8)
    ]
    pd.DataFrame({"messages": said}).to_parquet(folder / "train.parquet")
    return model, folder / "train.parquet"


def start(folder: Path, case: Case) -> subprocess.Popen[str]:
    """Train in a process of its own, as torchrun starts it; its steps are in `folder/checkpoints/sft`."""
    model, rows = write_inputs(folder, case)
    paths = (f"model.path={model}", f"data.train_files={rows}", f"trainer.default_local_dir={folder}/checkpoints/sft")
    command = [
        sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", "1",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "verl.trainer.sft_trainer",
        *OPTIONS, *case.options(), *paths, f"hydra.run.dir={folder / 'hydra'}",
    ]  # fmt: skip
    environ = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HOME": str(folder)}
    output = (folder / "output").open("w")
    return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True, cwd=folder, env=environ)
