"""Lets a merged model answer questions: `python -m cloudrl.cli._demo_generate MODEL QUESTION...` prints JSON.

A process of its own: torch and transformers come and go with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from cloudrl.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_NEW_TOKENS = 2
_TIMEOUT_S = 180.0
_QUIET = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


def ask(model: Path, questions: Sequence[str], *, timeout_s: float = _TIMEOUT_S) -> list[str]:
    """The most probable answer to each question, from a fresh process that loads the model with transformers.

    Raises:
        CheckpointError: transformers cannot load it, or takes too long.
    """
    command = [sys.executable, "-m", "cloudrl.cli._demo_generate", str(model), *questions]
    with tempfile.TemporaryDirectory(prefix="cloudrl-answers-") as folder:  # torch leaves a folder there
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                env={**os.environ, **_QUIET, "TMPDIR": folder},
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CheckpointError(f"transformers has not loaded {model} within {timeout_s:g} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise CheckpointError(f"transformers cannot load {model}: {last}")
    return [str(answer) for answer in json.loads(done.stdout.splitlines()[-1])]


def _answers(model: str, questions: Sequence[str]) -> list[str]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model)
    answers = []
    for question in questions:
        message = [{"role": "user", "content": question}]
        given = tokenizer.apply_chat_template(
            message, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.no_grad():
            told = network.generate(**given, max_new_tokens=_NEW_TOKENS, do_sample=False)
        answers.append(tokenizer.decode(told[0, given["input_ids"].shape[1] :], skip_special_tokens=True))
    return answers


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_answers(sys.argv[1], sys.argv[2:])) + "\n")
