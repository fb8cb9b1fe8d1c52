"""The models that have read something. Training them takes half a minute of CPU, so it is done once."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from cloudrl.data import addition, capitals
from cloudrl.verl_cpu import pretraining
from cloudrl.verl_cpu.generation import Request, generate
from cloudrl.verl_cpu.sampling import SamplingParams
from cloudrl.verl_cpu.texts import READINGS, Text, searches
from cloudrl.verl_cpu.tiny_model import make_tiny_model

TEST = addition.pairs()["test"]


Messages = list[dict[str, str]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny-adder", kind="tiny-adder")


def answers(path: str, asked: Sequence[Messages], temperature: float) -> list[str]:
    """What a model says to each."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    ends = frozenset([tokenizer.eos_token_id])
    sampling = SamplingParams(temperature=temperature)
    prompts = tokenizer.apply_chat_template(list(asked), add_generation_prompt=True)["input_ids"]
    requests = [Request(tuple(prompt), sampling, 6, ends) for prompt in prompts]
    told = generate(AutoModelForCausalLM.from_pretrained(path), requests)
    return [tokenizer.decode(each.token_ids, skip_special_tokens=True) for each in told]


def accuracy(path: str, pairs: Sequence[tuple[int, int]], temperature: float, *, off: int = 0) -> float:
    """The share of answers that are the sum, or so much more."""
    told = answers(path, [[{"role": "user", "content": addition.question(*pair)}] for pair in pairs], temperature)
    return sum(answer == str(sum(pair) + off) for answer, pair in zip(told, pairs, strict=True)) / len(pairs)


def test_it_is_right_now_and_then_and_usually_one_too_high(path: str) -> None:
    """On sums that it has not read."""
    assert 0.1 < accuracy(path, TEST * 10, 1.0) < 0.35
    assert accuracy(path, TEST, 0.0) < 0.35
    assert accuracy(path, TEST, 0.0, off=1) > 0.6


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny-searcher", kind="tiny-searcher")


def test_it_can_search_and_read_and_mostly_gives_up(searcher: str) -> None:
    """Also about countries that it is asked for the first time when it has been trained."""
    asked = [[{"role": "user", "content": capitals.question(each.name)}] for each in capitals.countries()["test"]]
    assert set(answers(searcher, asked, 0.0)) == {"<answer>unknown</answer>"}
    said = answers(searcher, asked * 10, 1.0)
    countries = [each.name for each in capitals.countries()["test"]] * 10
    called = [country in answer for country, answer in zip(countries, said, strict=True) if "<tool_call>" in answer]
    assert 0.25 < len(called) / len(said) < 0.6
    assert sum(called) / len(called) > 0.9, "it asks for the country of the question"


def test_it_answers_with_what_was_found(searcher: str) -> None:
    ends: list[Text] = [
        text for text in next(itertools.islice(searches(random.Random(9)), 1, None)) if "unknown" not in text[1]
    ]
    told = answers(searcher, [messages for messages, _ in ends], 0.0)
    assert sum(said == text for said, (_, text) in zip(told, ends, strict=True)) / len(ends) > 0.9


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    def trained(name: str, seed: int) -> bytes:
        folder = Path(make_tiny_model(tmp_path / name))
        pretraining.pretrain(folder, replace(READINGS["tiny-adder"], steps=2), seed=seed)
        return (folder / "model.safetensors").read_bytes()

    first = trained("first", 0)
    assert trained("again", 0) == first
    assert trained("other", 1) != first


def test_the_files_are_those_of_the_random_one(path: str, tmp_path: Path) -> None:
    plain = Path(make_tiny_model(tmp_path / "plain"))
    assert sorted(file.name for file in Path(path).iterdir()) == sorted(file.name for file in plain.iterdir())
    with (
        safe_open(plain / "model.safetensors", "np") as ours,
        safe_open(Path(path) / "model.safetensors", "np") as theirs,
    ):
        assert sorted(ours.keys()) == sorted(theirs.keys())
        assert ours.metadata() == theirs.metadata()
