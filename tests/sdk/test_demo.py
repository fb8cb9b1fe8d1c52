"""When the demo has shown that the training works, and how its errors are told."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudrl.checkpoints.merge import Merged
from cloudrl.checkpoints.remote import PermanentError
from cloudrl.cli.demo import _lines
from cloudrl.errors import JobFailed
from cloudrl.protocol.failures import ErrorCode
from cloudrl.sdk import demo as module
from cloudrl.sdk.demo import Demo, demo
from cloudrl.sdk.demo_generate import Answered


def answered(right: int) -> Answered:
    truths = tuple("7" for _ in range(100))
    return Answered(tuple("3+4=" for _ in truths), truths, tuple("7" if i < right else "8" for i in range(100)))


def done(before: int, after: int) -> Demo:
    merged: Any = object.__new__(Merged)
    return Demo((0.0,) * 10, (), merged, answered(before), answered(after))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (6, 59, "59% of the answers to the test split are right; it should be 60% at least"),
        (95, 60, "95% of the answers to the test split were right before the training, and 60% are after it"),
        (95, 95, "it should be 15 percentage points more at least"),
        (60, 74, "it should be 15 percentage points more at least"),
    ],
)
def test_a_model_that_has_not_learned(before: int, after: int, said: str) -> None:
    with pytest.raises(JobFailed) as raised:
        done(before, after).raise_for_accuracy()
    assert said in raised.value.message


@pytest.mark.parametrize(("before", "after"), [(6, 60), (45, 60), (85, 100)])
def test_a_model_that_has_learned(before: int, after: int) -> None:
    done(before, after).raise_for_accuracy()


def test_questions_not_sums_are_said_to_be_new(tmp_path: Path) -> None:
    merged = Merged.__new__(Merged)
    for name, value in {"path": tmp_path, "parameters": 1, "size_bytes": 1}.items():
        object.__setattr__(merged, name, value)
    lines = _lines(replace(done(6, 95), merged=merged))
    assert "accuracy   0.06 -> 0.95   (100 questions never trained on)" in lines


def test_an_error_for_good_keeps_its_kind_and_gets_the_place_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Up:
        def up(self, **_options: Any) -> Any:
            return self

        def status(self) -> Any:
            return type("Status", (), {"state_dir": str(tmp_path)})

        def down(self) -> bool:
            return True

    def refuse(*_: Any) -> Demo:
        raise PermanentError("the agent does not cast", code=ErrorCode.UNSUPPORTED)

    monkeypatch.setattr(module, "Cluster", lambda **_: Up())
    monkeypatch.setattr(module, "_train_and_compare", refuse)
    with pytest.raises(PermanentError, match="does not cast") as raised:
        demo()
    assert raised.value.hint == "Its log: cloudrl logs --cluster demo --log 'job-driver-*'"
