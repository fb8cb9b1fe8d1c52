"""Every hint in the source names commands and options that exist; the fixture `run` looks at those that are shown."""

from pathlib import Path

import pytest
from hints import faults, typed, written
from typed_command import Run

import cloudrl

HINTS = [*written(Path(cloudrl.__file__).parent)]


def test_every_hint_can_be_typed() -> None:
    wrong = [f"{where}: {fault}" for where, hint in HINTS for fault in faults(hint)]
    assert wrong == []


def test_all_of_them_are_found() -> None:
    assert len(HINTS) > 350
    assert sum(len(typed(hint)) for _, hint in HINTS) > 90


@pytest.mark.parametrize(
    ("hint", "fault"),
    [
        ("Look: cloudrl statsu", "there is no command statsu"),
        ("cloudrl down lab, then cloudrl up", "unexpected extra argument"),
        ("Its logs: cloudrl logs --address http://x", "No such option: --address"),
        ("Name any Ray: --adress http://x", "--adress is an option of no command"),
        ("See `cloudrl checkpoints merge latest`", "Missing option '--to'"),
    ],
)
def test_a_hint_that_cannot_be_typed_is_noticed(hint: str, fault: str) -> None:
    assert [fault in each for each in faults(hint)] == [True], faults(hint)


@pytest.mark.parametrize(
    "hint",
    [
        "cloudrl up ... --data gsm8k\nOr give files: data.train_files=/path",
        "Set it: dstack project add --name NAME --url URL --token TOKEN",
        'eval "$(cloudrl env -c lab)"',
        "Use it: cloudrl submit grpo --cluster lab   End it: cloudrl down lab",
        "A folder of `cloudrl retriever build`",
        "Keep it: --keep",
    ],
)
def test_one_that_can_is_left_alone(hint: str) -> None:
    assert faults(hint) == []


@pytest.mark.io
def test_a_hint_that_is_shown_is_looked_at(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudrl.sdk.choose.START_HINT", "Start one: cloudrl upp")
    with pytest.raises(AssertionError, match="there is no command upp"):
        run("logs")
