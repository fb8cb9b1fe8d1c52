"""Some seconds of pretraining, after which a tiny model says what its texts say.

torch and transformers are the image's, imported when it starts.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudrl.verl_cpu.texts import Reading, Text

if TYPE_CHECKING:
    import torch

_STEPS_A_LINE = 50
_WARM_UP_STEPS = 20
_LARGER = 10.0
"""Than the initial values of matrices, which the first steps would wipe out."""
_NO_TARGET = -100  # torch.nn.functional.cross_entropy leaves it out


def pretrain(folder: Path, reading: Reading, *, seed: int = 0) -> None:
    """Train the model in a folder, in its place. Its weights follow from the seed, on one kind of processor.

    Args:
        folder: What `tiny_model` has written.
        reading: What it reads, and for how long.
        seed: Decides what the texts say.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)  # the order of additions, and with it the weights, would depend on the number
    tokenize = _Tokenizer(AutoTokenizer.from_pretrained(folder))
    model = AutoModelForCausalLM.from_pretrained(folder)
    if reading.words:  # to copy a word is learned sooner where reading and writing it begin alike
        with torch.no_grad():
            model.lm_head.weight.copy_(model.model.embed_tokens.weight.mul_(_LARGER))
    optimizer = torch.optim.AdamW(model.parameters(), lr=reading.learning_rate, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, reading.steps))
    batches = reading.batches(random.Random(seed))  # noqa: S311 - no secret
    for step, texts in enumerate(itertools.islice(batches, reading.steps)):
        if step % _STEPS_A_LINE == 0:
            sys.stdout.write(f"pretraining, step {step} of {reading.steps}\n")  # `status` shows the last line
            sys.stdout.flush()
        optimizer.zero_grad()
        _loss(model, tokenize, texts).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})


def _rate(step: int, steps: int) -> float:
    """Of the learning rate: a short warm-up, and a straight way down over the second half."""
    return min(1.0, (step + 1) / _WARM_UP_STEPS, 2 * (steps - step) / steps)


class _Tokenizer:
    """Token ids of prompts and answers. Keeping those of sums, which come again, saves a quarter of the training."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._kept: dict[str, list[int]] = {}

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """The messages by the chat template, up to where the model answers."""
        key = repr(messages)
        if key not in self._kept:
            encoded = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True)
            self._kept[key] = encoded["input_ids"]
        return self._kept[key]

    def answer(self, text: str) -> list[int]:
        """The answer and its end."""
        if text not in self._kept:
            self._kept[text] = [*self._tokenizer.encode(text), self._tokenizer.eos_token_id]
        return self._kept[text]


def _loss(model: Any, tokenize: _Tokenizer, texts: Sequence[Text]) -> torch.Tensor:
    """The cross entropy of the answers and their ends. Rows are padded on the left, so that answers end together."""
    import torch

    from cloudrl.verl_cpu.generation import left_padded

    answers = [tokenize.answer(answer) for _, answer in texts]
    rows = [tokenize.prompt(messages) + answer for (messages, _), answer in zip(texts, answers, strict=True)]
    ids, mask = left_padded(rows)
    targets, _ = left_padded(answers, _NO_TARGET)
    logits = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
        logits_to_keep=targets.shape[1] + 1,
    ).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=_NO_TARGET)
