"""Some seconds of pretraining, after which the tiny model can add, and has learned to make mistakes.

It reads sums as a large model reads the web: right ones and wrong ones. One in four is right, the others are one too
many, and the model comes to answer as its text does. Reinforcement learning can then show what it is for: the
right answer is among those that the model knows, and the reward makes it the usual one. The questions are those of
the `addition` data set's training split alone.

torch and transformers are the image's, imported when it starts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudrl.data import addition

if TYPE_CHECKING:
    import torch

STEPS = 900
_BATCH = 64
_LEARNING_RATE = 3e-3
_WARM_UP_STEPS = 20
_RIGHT = 0.25
"""This share of the sums is right."""
_TOO_MANY = 1
"""The others are so much off."""
_NO_TARGET = -100  # torch.nn.functional.cross_entropy leaves it out


def pretrain(folder: Path, *, steps: int = STEPS, seed: int = 0) -> None:
    """Train the model in a folder, in its place. Its weights follow from the seed, on one kind of processor.

    Args:
        folder: What `tiny_model` has written.
        steps: How many batches.
        seed: Decides which sums are read, and which of them are right.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)  # the order of additions, and with it the weights, would depend on the number
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    for texts in _batches(steps, random.Random(seed)):  # noqa: S311 - no secret
        optimizer.zero_grad()
        _loss(model, tokenizer, texts).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})


def _rate(step: int, steps: int) -> float:
    """Of the learning rate: a short warm-up, and a straight way down over the second half."""
    return min(1.0, (step + 1) / _WARM_UP_STEPS, 2 * (steps - step) / steps)


def _batches(steps: int, source: random.Random) -> Iterator[list[tuple[str, str]]]:
    """Questions with the answers that the text gives them."""
    train = addition.pairs()["train"]
    for _ in range(steps):
        yield [
            (addition.question(left, right), str(left + right + _TOO_MANY * (source.random() >= _RIGHT)))
            for left, right in source.choices(train, k=_BATCH)
        ]


def _loss(model: Any, tokenizer: Any, texts: Sequence[tuple[str, str]]) -> torch.Tensor:
    """The cross entropy of the answers and their ends. Rows are padded on the left, so that answers end together."""
    import torch

    from cloudrl.verl_cpu.generation import left_padded

    asked = [[{"role": "user", "content": question}] for question, _ in texts]
    prompts = tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]
    answers = [[*tokenizer.encode(answer), tokenizer.eos_token_id] for _, answer in texts]
    rows = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    ids, mask = left_padded(rows)
    targets, _ = left_padded(answers, _NO_TARGET)
    logits = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
        logits_to_keep=targets.shape[1] + 1,
    ).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=_NO_TARGET)
