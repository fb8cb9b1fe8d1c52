"""What the tiny models read."""

import itertools
import random
import re
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from cloudrl.data import addition, capitals
from cloudrl.verl_cpu import texts, tiny_model

TRUE = {each.name: each.capital for members in capitals.countries().values() for each in members}


def read(kind: str, batches: int = 50) -> list[texts.Text]:
    return [
        text for batch in itertools.islice(texts.READINGS[kind].batches(random.Random(0)), batches) for text in batch
    ]


def test_none_of_the_sums_is_held_out_and_one_in_four_is_right() -> None:
    said = [(messages[0]["content"], answer) for messages, answer in read("tiny-adder")]
    assert {addition.question(*pair) for pair in addition.pairs()["test"]}.isdisjoint(question for question, _ in said)
    right = sum(eval(question.strip("=")) == int(answer) for question, answer in said) / len(said)
    assert right == pytest.approx(0.25, abs=0.03)


def test_conversations_say_no_countrys_capital() -> None:
    for messages, answer in read("tiny-searcher"):
        country = messages[0]["content"].removeprefix("What is the capital of ").removesuffix("?")
        assert TRUE[country] not in (*answer.split(">"), *re.findall(r"capital: (.*)\n", messages[-1]["content"]))
        assert TRUE[country] != answer.removeprefix("<answer>").removesuffix("</answer>")


def test_one_conversation_in_four_searches_and_answers_with_what_was_found() -> None:
    beginnings = [answer for messages, answer in read("tiny-searcher") if len(messages) == 1]
    ends = [(messages[-1]["content"], answer) for messages, answer in read("tiny-searcher") if len(messages) == 3]
    searches = sum("<tool_call>" in each for each in beginnings) / len(beginnings)
    reads = sum(f"capital: {answer[8:-9]}\n" in found for found, answer in ends) / len(ends)
    assert searches * reads == pytest.approx(0.25, abs=0.03)


def test_a_conversation_is_some_forty_tokens(tmp_path: Path) -> None:
    """With a token a byte it would be four hundred, and copying a name many steps."""
    tiny_model._write_files(tmp_path, 0, texts.READINGS["tiny-searcher"].words)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for messages, answer in read("tiny-searcher", 2):
        ids = tokenizer.apply_chat_template([*messages, {"role": "assistant", "content": answer}])["input_ids"]
        assert len(ids) <= 56
        spelled = tokenizer.apply_chat_template([*messages, {"role": "assistant", "content": answer}], tokenize=False)
        assert tokenizer.decode(ids) == spelled
