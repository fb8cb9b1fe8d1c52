"""What verl's own merger makes of architectures that cloudrl sends to it: a script for a process.

    python verl_others.py OUT ARCHITECTURE...

prints each of them whose result does not load as the model that it was, and why.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from small_models import EXPERTS, SMALL

WITHOUT = {"FalconForCausalLM": {"head_dim"}}
MORE = {
    "BambaForCausalLM": {"mamba_n_heads": 4, "mamba_d_head": 8},
    "Dots1ForCausalLM": {"n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
}


def made(architecture: str) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, architecture)
    given = {key: value for key, value in (SMALL | EXPERTS).items() if key not in WITHOUT.get(architecture, ())}
    model = kind(kind.config_class(**given | MORE.get(architecture, {})))
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape)
    model.config.architectures = [architecture]
    return model


def merge(model: Any, actor: Path, target: Path) -> None:
    from make_sharded import save
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from verl.model_merger.__main__ import main

    actor.mkdir(parents=True)
    for rank in range(2):
        save(actor, model.state_dict(), rank, 2)
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 2}))
    model.config.save_pretrained(actor / "huggingface")
    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(actor / "huggingface")
    sys.argv = ["merger", "merge", "--backend", "fsdp", "--local_dir", str(actor), "--target_dir", str(target)]
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        main()


def problem(model: Any, folder: Path) -> str | None:
    import torch

    merge(model, folder / "actor", folder / "merged")
    loaded, about = type(model).from_pretrained(folder / "merged", output_loading_info=True)
    if any(about.values()):
        return str(about)
    state = loaded.state_dict()
    differ = [name for name, value in model.state_dict().items() if not torch.equal(state[name], value.bfloat16())]
    return f"differ: {differ}" if differ else None


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    out, *architectures = sys.argv[1:]
    for each in architectures:
        if why := problem(made(each), Path(out) / each):
            print(f"{each}: {why}")
        shutil.rmtree(Path(out) / each)
