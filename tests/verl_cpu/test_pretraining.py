"""The model that has read sums. Training it for this takes some 15 seconds of CPU, so it is done once."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from cloudrl.data import addition
from cloudrl.verl_cpu import pretraining
from cloudrl.verl_cpu.generation import Request, generate
from cloudrl.verl_cpu.sampling import SamplingParams
from cloudrl.verl_cpu.tiny_model import make_tiny_model

TEST = addition.pairs()["test"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny-adder", pretrained=True)


def accuracy(path: str, pairs: Sequence[tuple[int, int]], temperature: float, *, off: int = 0) -> float:
    """The share of answers that are the sum, or so much more."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    ends = frozenset([tokenizer.eos_token_id])
    sampling = SamplingParams(temperature=temperature)
    asked = [[{"role": "user", "content": addition.question(*pair)}] for pair in pairs]
    prompts = tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]
    requests = [Request(tuple(prompt), sampling, 3, ends) for prompt in prompts]
    told = generate(AutoModelForCausalLM.from_pretrained(path), requests)
    answers = [tokenizer.decode(each.token_ids, skip_special_tokens=True) for each in told]
    return sum(answer == str(sum(pair) + off) for answer, pair in zip(answers, pairs, strict=True)) / len(pairs)


def test_it_is_right_now_and_then_and_usually_one_too_high(path: str) -> None:
    """On sums that it has not read."""
    assert 0.1 < accuracy(path, TEST * 10, 1.0) < 0.35
    assert accuracy(path, TEST, 0.0) < 0.35
    assert accuracy(path, TEST, 0.0, off=1) > 0.6


def test_it_reads_none_of_the_sums_that_are_held_out() -> None:
    texts = [text for batch in pretraining._batches(50, random.Random(0)) for text in batch]
    held_out = {addition.question(*pair) for pair in TEST}
    assert held_out.isdisjoint(question for question, _ in texts)
    right = sum(eval(question.strip("=")) == int(answer) for question, answer in texts) / len(texts)
    assert right == pytest.approx(0.25, abs=0.03)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    def trained(name: str, seed: int) -> bytes:
        folder = Path(make_tiny_model(tmp_path / name))
        pretraining.pretrain(folder, steps=2, seed=seed)
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
