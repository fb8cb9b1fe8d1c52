"""Answers that verl has written down."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.report import Sample, StepAnswers
from cloudrl.report.samples import PER_PROMPT, PER_STEP, READ_BYTES, STEPS, answers_text, choose_steps, parse_samples

ROW = {"input": "1 + 1?", "output": "2", "gts": "2", "score": 1.0, "step": 5, "uid": "x", "acc": True, "pred": "2"}


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def samples(content: bytes) -> list[Sample]:
    return parse_samples(content, 1)[0]


def test_a_line_as_verl_writes_it():
    [sample], answers = parse_samples(lines(ROW), 5)
    assert replace(sample, prompt_id="") == Sample(5, "1 + 1?", "2", 1.0, "2", {"acc": "true", "pred": "2"})
    assert answers == StepAnswers(5, 1, 1, 1, 1, 1)


@pytest.mark.parametrize("score", [None, "good", float("nan"), float("inf"), 10**400])
def test_a_score_that_is_no_number(score: object):
    [sample] = samples(lines({**ROW, "score": score}))
    assert sample.score is None


def test_of_each_step_the_same_prompts():
    prompts = [f"prompt {number}" for number in range(200)]
    chosen = [
        [sample.prompt for sample in samples(lines(*({**ROW, "input": each} for each in order)))]
        for order in (prompts, prompts[::-1])
    ]
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == PER_STEP


def test_prompts_that_begin_alike_are_not_one():
    long = "x" * 5000
    first, second = samples(lines({**ROW, "input": f"{long} 1"}, {**ROW, "input": f"{long} 2"}))
    assert first.prompt == second.prompt
    assert first.prompt_id != second.prompt_id


@pytest.mark.parametrize(
    ("prompts", "answers", "said"),
    [
        (64, 8, "8 answers each of 64 prompts; 40 of them, of 5 prompts, are on this page"),
        (2, 30, f"30 answers each of 2 prompts; {2 * PER_PROMPT} of them, of 2 prompts, are on this page"),
        (1, 1, "1 answer each of 1 prompt"),
        (30, 1, "1 answer each of 30 prompts"),
    ],
)
def test_how_many_answers_there_are_is_said(prompts: int, answers: int, said: str):
    rows = [{**ROW, "input": f"prompt {prompt}"} for prompt in range(prompts) for _ in range(answers)]
    assert str(parse_samples(lines(*rows), 1)[1]) == said


def test_answers_of_only_some_prompts_several_times():
    assert str(parse_samples(lines(ROW, ROW, {**ROW, "input": "x"}), 1)[1]) == "3 answers of 2 prompts"


def test_a_file_that_is_longer_than_what_is_read():
    content = lines({**ROW, "output": "x" * (READ_BYTES // 2)}) * 2
    assert str(parse_samples(content[:READ_BYTES], 1)[1]).startswith("more than 1 answer each of 1 prompt, as only the")


def test_steps_with_the_same_numbers_share_a_sentence():
    steps = [StepAnswers(10, 8, 8, 1, 8, 8), StepAnswers(20, 8, 8, 1, 8, 8), StepAnswers(30, 9, 9, 1, 9, 9)]
    assert answers_text(steps, 3) == ["steps 10, 20: 1 answer each of 8 prompts", "step 30: 1 answer each of 9 prompts"]
    assert answers_text(steps, 4_000)[0] == "3 of the 4,000 steps with answers are on this page"


def test_long_texts_are_cut_and_it_is_said():
    [sample] = samples(lines({**ROW, "output": "x" * 5000}))
    assert sample.answer == "x" * 4000 + " … (1,000 more characters)"


def test_the_last_line_may_be_cut_off():
    content = lines(ROW, ROW)
    assert len(samples(content[:-10])) == 1


values = st.recursive(st.none() | st.floats() | st.text(max_size=3), st.lists, max_leaves=5)
keys = ("output", "input", "score", "gts", "more")


@given(st.binary(max_size=200) | values.map(lambda value: lines(dict.fromkeys(keys, value))))
def test_nothing_makes_it_fail(content: bytes):
    for sample in samples(content):
        sample.answer.encode()


def test_steps_are_spread_and_the_last_is_among_them():
    chosen = choose_steps([*range(10, 1010, 10), 10])
    assert (len(chosen), chosen[0], chosen[-1]) == (STEPS, 10, 1000)
    assert choose_steps([3, 1]) == [1, 3]
    assert choose_steps([]) == []
