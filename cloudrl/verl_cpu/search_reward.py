"""The score of a conversation about the `capitals` data set: 1 for the right answer, else 0."""

from typing import Any

from verl.utils.reward_score.search_r1_like_qa_em import em_check, extract_solution


def compute_score(*, solution_str: str, ground_truth: dict[str, list[str]], **_: Any) -> dict[str, float]:
    """Score one conversation by verl's exact match, as it does Natural Questions and the like.

    Args:
        solution_str: What model and tool have written; what counts is the last `<answer>`.
        ground_truth: The right answers, under `target`.

    Returns:
        `score`, on which verl trains, and `acc`, the same.
    """
    answer = extract_solution(solution_str)
    right = float(answer is not None and em_check(answer, ground_truth["target"]))
    return {"score": right, "acc": right}
