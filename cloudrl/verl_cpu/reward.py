"""The score of an answer to the `addition` data set: 1 for the right one, else 0. Standard library only."""

from __future__ import annotations

from typing import Any


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
        `score`, on which verl trains, and `acc`, the same.
    """
    right = float(solution_str.strip() == ground_truth)
    return {"score": right, "acc": right}
