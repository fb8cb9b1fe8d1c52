"""Answers that verl has written down."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.report import Sample
from cloudrl.report.samples import PER_STEP, STEPS, choose_steps, parse_samples

ROW = {"input": "1 + 1?", "output": "2", "gts": "2", "score": 1.0, "step": 5, "uid": "x", "acc": True, "pred": "2"}


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_a_line_as_verl_writes_it():
    assert parse_samples(lines(ROW), 5) == [Sample(5, "1 + 1?", "2", 1.0, "2", {"acc": "true", "pred": "2"})]


@pytest.mark.parametrize("score", [None, "good", float("nan"), float("inf"), 10**400])
def test_a_score_that_is_no_number(score: object):
    [sample] = parse_samples(lines({**ROW, "score": score}), 5)
    assert sample.score is None


def test_of_each_step_the_same_prompts():
    prompts = [f"prompt {number}" for number in range(200)]
    chosen = [
        [sample.prompt for sample in parse_samples(lines(*({**ROW, "input": each} for each in order)), 1)]
        for order in (prompts, prompts[::-1])
    ]
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == PER_STEP


def test_long_texts_are_cut_and_it_is_said():
    [sample] = parse_samples(lines({**ROW, "output": "x" * 5000}), 1)
    assert sample.answer == "x" * 4000 + " … (1,000 more characters)"


def test_the_last_line_may_be_cut_off():
    content = lines(ROW, ROW)
    assert len(parse_samples(content[:-10], 1)) == 1


values = st.recursive(st.none() | st.floats() | st.text(max_size=3), st.lists, max_leaves=5)
keys = ("output", "input", "score", "gts", "more")


@given(st.binary(max_size=200) | values.map(lambda value: lines(dict.fromkeys(keys, value))))
def test_nothing_makes_it_fail(content: bytes):
    for sample in parse_samples(content, 1):
        sample.answer.encode()


def test_steps_are_spread_and_the_last_is_among_them():
    chosen = choose_steps([*range(10, 1010, 10), 10])
    assert (len(chosen), chosen[0], chosen[-1]) == (STEPS, 10, 1000)
    assert choose_steps([3, 1]) == [1, 3]
    assert choose_steps([]) == []
