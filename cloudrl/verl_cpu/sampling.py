"""Temperature, top-k and top-p, as verl's rollout engines apply them.

verl asks its engines for `rollout.logprobs_mode=processed_logprobs` (verl 0.9.1, trainer/config/rollout/
rollout.yaml): the log-probability of a token is that of the distribution it was drawn from, after temperature,
top-k and top-p. The order and the borders are vLLM's: temperature, then top-k with ties at the border kept, then
top-p with the most probable token always kept, and of equal ones at its border any. A temperature under 1e-5
means greedy, where top-k and top-p do not apply and the log-probabilities are those of temperature 1
(vllm/v1/sample/sampler.py, sampling_params.py). transformers' warpers do the same and are what is used.

verl's trainer computes log-probabilities of its own with the temperature only, so a run with top-k or top-p shows
the distance between the two in its metrics (rollout_probs_diff), on a CPU as with vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are drawn.

    Attributes:
        temperature: Divides the logits; under 1e-5 the most probable token is taken.
        top_k: Draw from this many most probable tokens; -1 and 0 mean from all.
        top_p: Draw from the fewest most probable tokens that reach this probability; 1 means from all.
        max_tokens: Stop after this many tokens; None means as many as the server allows.
        stop_token_ids: End at these tokens, besides the model's own.
        ignore_eos: Do not end at the model's own.
        logprobs: Whether log-probabilities are wanted.
    """

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    max_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = True

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature}: it must be 0 or more")
        if self.top_k < -1:
            raise ValueError(f"top_k={self.top_k}: it must be -1 or 0 (all tokens) or a number of tokens")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: it must be over 0 and at most 1")

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is taken."""
        return self.temperature < 1e-5

    @classmethod
    def from_verl(cls, params: Mapping[str, Any]) -> SamplingParams:
        """Read the mapping that verl's agent loops pass to `generate`.

        Raises:
            ValueError: For a setting that would change what is drawn and that is not supported here.
        """
        settings = {key: value for key, value in params.items() if value is not None}
        if settings.pop("repetition_penalty", 1.0) != 1.0:
            raise ValueError(f"repetition_penalty={params['repetition_penalty']}: the CPU rollout knows 1.0 only")
        if "max_new_tokens" in settings:  # SGLang's name for it, which verl accepts too
            settings.setdefault("max_tokens", settings.pop("max_new_tokens"))
        unknown = sorted(settings.keys() - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"the CPU rollout does not know the sampling settings {', '.join(unknown)}")
        if "stop_token_ids" in settings:
            settings["stop_token_ids"] = tuple(settings["stop_token_ids"])
        return cls(**settings)


def filtered_log_probs(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Return the log-probabilities of the distributions to draw from.

    Args:
        logits: (rows, vocabulary), any floating type.
        params: of each row; those of a greedy one are the log-probabilities of temperature 1.

    Returns:
        (rows, vocabulary), float32; -inf for what was filtered out, and each row's probabilities sum to 1.
    """
    scores = logits.to(torch.float32, copy=True)
    for param in set(params):
        rows = torch.tensor([own == param for own in params])
        for warper in _warpers(param):
            scores[rows] = warper(None, scores[rows])
    return scores.log_softmax(-1)


def _warpers(params: SamplingParams) -> list[Any]:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    if params.is_greedy:
        return []
    chosen = [TemperatureLogitsWarper(float(params.temperature))]  # Hydra makes `temperature=1` a whole number
    if params.top_k > 0:
        chosen.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        chosen.append(TopPLogitsWarper(params.top_p))
    return chosen


def draw(
    log_probs: torch.Tensor, params: Sequence[SamplingParams], *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Draw one token a row: the most probable in greedy rows, else by its probability.

    Args:
        log_probs: (rows, vocabulary), as `filtered_log_probs` returns them.
        params: of each row.
        generator: The source of chance; None means torch's own.

    Returns:
        (rows,), token ids.
    """
    drawn = torch.multinomial(log_probs.exp(), 1, generator=generator).squeeze(-1)
    return torch.where(torch.tensor([param.is_greedy for param in params]), log_probs.argmax(-1), drawn)
