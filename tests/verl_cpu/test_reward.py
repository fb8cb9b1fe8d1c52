"""The score of the `addition` data set, as a table of answers."""

from __future__ import annotations

import pytest

from cloudrl.verl_cpu.reward import compute_score


@pytest.mark.parametrize(
    ("answer", "score", "acc"),
    [
        ("23", 1.0, 1.0),
        (" 23\n", 1.0, 1.0),  # space around the answer is no part of it
        ("24", 0.5, 0.0),
        ("230", 0.5, 0.0),  # starts right, is wrong
        ("023", 0.5, 0.0),
        ("2x", 0.25, 0.0),
        ("is 23", 0.2, 0.0),
        ("xy", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("²³", 0.0, 0.0),  # digits to str.isdigit, not to us
        ("٢٣", 0.0, 0.0),
    ],
)
def test_score(answer: str, score: float, acc: float) -> None:
    assert compute_score("cloudrl/addition", answer, "23") == pytest.approx({"score": score, "acc": acc})


def test_verl_may_pass_more() -> None:
    assert compute_score("any", "1", "1", extra_info={"index": 0}, reward_router_address=None)["score"] == 1.0
