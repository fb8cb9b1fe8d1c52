"""The score of a conversation, by verl's exact match."""

import pytest

pytestmark = pytest.mark.verl


def test_the_last_answer_counts() -> None:
    from cloudrl.verl_cpu.search_reward import compute_score

    for said, score in (
        ("<answer>Buenos Aires</answer>", 1.0),
        ("Doc 1(Title: x) <answer>Lima</answer><answer>the buenos aires.</answer>", 1.0),
        ("<answer>Buenos Aires</answer><answer>Lima</answer>", 0.0),
        ("Buenos Aires", 0.0),
        ("<answer></answer>", 0.0),
    ):
        found = compute_score(data_source="x", solution_str=said, ground_truth={"target": ["Buenos Aires"]})
        assert found == {"score": score, "acc": score}
