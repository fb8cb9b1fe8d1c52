"""Batched decoding with a Hugging Face model: prompts of different lengths, each with its own settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cloudrl.verl_cpu.sampling import SamplingParams, draw, filtered_log_probs

# What stands in for padding is masked out, so any id of the vocabulary will do.
_PADDING_ID = 0


@dataclass(frozen=True)
class Request:
    """One prompt to go on from."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    end_ids: frozenset[int]


@dataclass
class Completion:
    """The tokens of one answer, the ending one included, and the log-probability of each."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    has_ended: bool = False
    """False if decoding was stopped before."""


@torch.inference_mode()
def generate(
    model: Any,
    requests: Sequence[Request],
    *,
    raw_log_probs: bool = False,
    generator: torch.Generator | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> list[Completion]:
    """Decode all requests together until each has ended.

    Args:
        model: A causal language model of transformers, in evaluation mode.
        requests: At least one.
        raw_log_probs: Return log-probabilities of the model's own distribution, before temperature and filters
            (vLLM's `raw_logprobs`), instead of those of the distribution drawn from.
        generator: The source of chance; None means torch's own.
        is_stopped: Asked before each token; True ends all answers where they are.

    Returns:
        A completion a request, in their order.
    """
    ids, mask = left_padded([request.prompt_ids for request in requests])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    params = [request.params for request in requests]
    completions = [Completion() for _ in requests]
    live, cache = set(range(len(requests))), None
    while live and not is_stopped():
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache, logits = output.past_key_values, output.logits[:, -1].float()
        log_probs = filtered_log_probs(logits, params)
        tokens = draw(log_probs, params, generator=generator)
        reported = logits.log_softmax(-1) if raw_log_probs else log_probs
        picked = reported.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).tolist()
        drawn = tokens.tolist()
        for row in tuple(live):
            completion, request = completions[row], requests[row]
            completion.token_ids.append(drawn[row])
            completion.log_probs.append(picked[row])
            if drawn[row] in request.end_ids or len(completion.token_ids) >= request.max_tokens:
                completion.has_ended = True
                live.remove(row)
        ids = tokens.unsqueeze(-1)
        mask = torch.cat([mask, torch.ones_like(ids)], dim=-1)
        positions = positions[:, -1:] + 1
    return completions


def left_padded(rows: Sequence[Sequence[int]], padding_id: int = _PADDING_ID) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (rows, longest) token ids and the mask of all that is not padding."""
    width = max(map(len, rows))
    gaps = [width - len(row) for row in rows]
    ids = [[padding_id] * gap + list(row) for gap, row in zip(gaps, rows, strict=True)]
    mask = [[0] * gap + [1] * (width - gap) for gap in gaps]
    return torch.tensor(ids), torch.tensor(mask)
