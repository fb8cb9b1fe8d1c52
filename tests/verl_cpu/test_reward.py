"""The score of the `addition` data set, as a table of answers."""

import pytest

from cloudrl.verl_cpu.reward import compute_score


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("23", 1.0),
        (" 23\n", 1.0),  # space around the answer is not part of it
        ("24", 0.0),
        ("230", 0.0),
        ("023", 0.0),
        ("is 23", 0.0),
        ("", 0.0),
        ("²³", 0.0),
        ("٢٣", 0.0),
    ],
)
def test_only_the_right_answer_scores(answer: str, score: float) -> None:
    assert compute_score(solution_str=answer, ground_truth="23") == {"score": score, "acc": score}


def test_verl_may_pass_more() -> None:
    more = {"data_source": "any", "extra_info": {"index": 0}, "reward_router_address": None}
    assert compute_score(solution_str="1", ground_truth="1", **more)["score"] == 1.0
