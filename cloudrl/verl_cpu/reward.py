"""The score of an answer to the `addition` data set.

A right answer scores 1. Any other scores half the share of its characters that are digits: a model that starts
from random weights learns first to answer with a number, then which number. Standard library only.
"""

from __future__ import annotations

from typing import Any

_DIGITS = frozenset("0123456789")


def compute_score(
    data_source: str,  # noqa: ARG001 - verl passes it
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,  # noqa: ARG001
    **_: Any,
) -> dict[str, float]:
    """Score one answer; the signature is verl's for `reward.custom_reward_function`.

    Args:
        data_source: The data set's name; not used.
        solution_str: What the model answered, without special tokens.
        ground_truth: The sum in decimal digits.
        extra_info: The row's extra fields; not used.

    Returns:
        `score`, from 0 to 1, on which verl trains, and `acc`, 1 for a right answer and else 0.
    """
    answer = solution_str.strip()
    if answer == ground_truth:
        return {"score": 1.0, "acc": 1.0}
    digits = sum(character in _DIGITS for character in answer)
    return {"score": 0.5 * digits / max(1, len(answer)), "acc": 0.0}
