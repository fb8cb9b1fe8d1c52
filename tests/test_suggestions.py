"""What a misspelt word is taken for."""

import pytest

from cloudrl.errors import did_you_mean, similar_file


@pytest.mark.parametrize(
    ("word", "choices", "meant"),
    [
        ("gsm9k", ["math", "gsm8k"], "gsm8k"),
        ("GRPO", ["grpo", "ppo"], "grpo"),
        ("tiny-grpo", ["grpo", "grpo-tiny"], "grpo-tiny"),
        ("plus_reinforce_plus", ["reinforce_plus_plus", "reinforce_plus_plus_baseline"], "reinforce_plus_plus"),
        ("8kgsm", ["math", "gsm8k"], "gsm8k"),
        ("wandbb", ["wandb", "mlflow"], "wandb"),
        ("xyz", ["grpo"], None),
        ("", ["grpo"], None),
    ],
)
def test_a_word(word: str, choices: list[str], meant: str | None) -> None:
    assert did_you_mean(word, choices) == (f"; did you mean {meant!r}?" if meant else "")


@pytest.mark.parametrize(
    ("name", "beside", "meant"),
    [
        ("reward.py", ["rewards.py", "report.py"], "rewards.py"),
        ("mine.parqet", ["mine.py", "mine.parquet"], "mine.parquet"),
        ("missing.jsonl", ["bin.jsonl", "a.jsonl"], None),
        ("missing.py", [], None),
    ],
)
def test_a_file(name: str, beside: list[str], meant: str | None) -> None:
    assert similar_file(name, beside) == (f"; did you mean {meant!r}?" if meant else "")
