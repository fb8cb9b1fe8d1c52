"""Lets models answer a test split: `python -m cloudrl.sdk.demo_generate TEST.parquet MODEL...` prints JSON.

A process of its own: torch and transformers come and go with it.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudrl.errors import CheckpointError

_NEW_TOKENS = 3
_TIMEOUT_S = 180.0
_QUIET = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


@dataclass(frozen=True)
class Answered:
    """What one model says to each question of a split: its most probable answer."""

    questions: tuple[str, ...]
    truths: tuple[str, ...]
    answers: tuple[str, ...]

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        right = sum(answer == truth for answer, truth in zip(self.answers, self.truths, strict=True))
        return right / len(self.truths)


def ask(models: Sequence[Path], test: Path) -> list[Answered]:
    """Put the questions of a test split to several models, in a fresh process that loads them with transformers.

    Args:
        models: Folders.
        test: A parquet file in verl's columns.

    Returns:
        As many as there are models, in their order.

    Raises:
        CheckpointError: transformers cannot load one, or takes too long.
    """
    command = [sys.executable, "-m", "cloudrl.sdk.demo_generate", str(test), *map(str, models)]
    with tempfile.TemporaryDirectory(prefix="cloudrl-answers-") as folder:  # torch leaves a folder there
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                env={**os.environ, **_QUIET, "TMPDIR": folder},
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CheckpointError(f"transformers has not loaded {models[-1]} within {_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise CheckpointError(f"transformers cannot load {' or '.join(map(str, models))}: {last}")
    answered = json.loads(done.stdout.splitlines()[-1])
    return [Answered(**{field: tuple(texts) for field, texts in answers.items()}) for answers in answered]


def _answer_all(test: str, models: Sequence[str]) -> list[dict[str, list[str]]]:
    from pyarrow import parquet

    rows = parquet.read_table(test).to_pylist()
    asked = {
        "questions": [row["prompt"][0]["content"] for row in rows],
        "truths": [row["reward_model"]["ground_truth"] for row in rows],
    }
    return [{**asked, "answers": _answers(model, [row["prompt"] for row in rows])} for model in models]


def _answers(model: str, prompts: Sequence[Sequence[dict[str, str]]]) -> list[str]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    network = AutoModelForCausalLM.from_pretrained(model)
    inputs = tokenizer.apply_chat_template(
        list(prompts), add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        outputs = network.generate(**inputs, max_new_tokens=_NEW_TOKENS, do_sample=False)
    answers = tokenizer.batch_decode(outputs[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return [answer.strip() for answer in answers]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_answer_all(sys.argv[1], sys.argv[2:])) + "\n")
