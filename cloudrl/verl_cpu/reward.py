"""The score of an answer to the `addition` data set: 1 for the right one, else 0. Standard library only."""

from typing import Any


def compute_score(*, solution_str: str, ground_truth: str, **_: Any) -> dict[str, float]:
    """Score one answer; a function for verl's `reward.custom_reward_function`, which passes more by name.

    Args:
        solution_str: What the model answered, without special tokens.
        ground_truth: The sum in decimal digits.

    Returns:
        `score`, on which verl trains, and `acc`, the same.
    """
    right = float(solution_str.strip() == ground_truth)
    return {"score": right, "acc": right}
