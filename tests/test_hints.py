"""Every hint in the source names commands and options that exist; the fixture `run` looks at those that are shown."""

from pathlib import Path

import pytest
from hint_sources import UNKNOWN, hints
from hints import OVERRIDE, faults, typed
from typed_command import Run
from verl_settings import WORKS

import cloudrl
from cloudrl.verl import rules
from cloudrl.verl.composition import compose
from cloudrl.verl.release_files import source_of
from cloudrl.verl.releases import RELEASE
from cloudrl.verl.setting import Setting

FILES = {"data.train_files": "/data/train.parquet", "data.val_files": "/data/test.parquet"}
SITUATIONS = {
    "reward.reward_model.enable_resource_pool": {"trainer.nnodes": 1, "reward.reward_model.nnodes": 1},
    "trainer.resume_mode": {"trainer.resume_from_path": "/checkpoints/mine/global_step_4"},
}
"""What a hint sets besides, in words that are made where it runs."""
SFT = "sft_trainer_engine"
"""The configuration of verl's supervised fine-tuning."""


@pytest.fixture(scope="module")
def written() -> list[tuple[str, str]]:
    return [*hints(Path(cloudrl.__file__).parent)]


def test_every_hint_can_be_typed(written: list[tuple[str, str]]) -> None:
    wrong = [f"{where}: {fault}" for where, hint in written for fault in faults(hint)]
    assert wrong == []


def test_all_of_them_are_found(written: list[tuple[str, str]]) -> None:
    assert len(written) > 700
    assert sum(len(typed(hint)) for _, hint in written) > 200


OF_OTHERS = ("dstack", "slurm", "kernel", "retriever")
"""Where keys begin that are not verl's: sections of clusters, a setting of Linux, Search-R1's fork."""


def overrides(written: list[tuple[str, str]]) -> set[str]:
    """Those that set a key of verl in all hints, but for names that are made where they run."""
    lines = [line.rpartition(": ")[2] for _, hint in written for line in hint.splitlines()]
    words = {word for line in lines if "'" not in line for word in line.split() if OVERRIDE.fullmatch(word)}
    keys = {word: word.partition("=")[0].lstrip("+").split(".") for word in words - {f"model_engine={UNKNOWN}"}}
    return {
        word for word, parts in keys.items() if parts[0] not in OF_OTHERS and word[0] != "~" and UNKNOWN not in parts
    }


def test_every_override_is_one_that_the_release_takes(written: list[tuple[str, str]]) -> None:
    words = overrides(written)
    assert len(words) > 60
    refused = {word: text for word in sorted(words) if (text := refusal(word))}
    assert refused == {}


def refusal(word: str) -> str:
    """What `check` says of an override beside a configuration that works; "" if nothing."""
    key = word.partition("=")[0].lstrip("+")
    situation = {**WORKS, **FILES, **SITUATIONS.get(key, {})}
    others = (f"{each}={value}" for each, value in situation.items() if each != key)
    composed = compose(RELEASE.verl, (*others, word))
    if composed.values is None:
        return composed.problems[0].text if compose(RELEASE.verl, (word,), SFT).problems else ""
    if UNKNOWN in word.partition("=")[2]:
        return ""
    found = rules.problems(Setting(composed.values, 16, base=composed.base, source=source_of(RELEASE.verl)))
    return found[0].text if found else ""


@pytest.mark.parametrize(
    ("hint", "fault"),
    [
        ("Look: cloudrl statsu", "there is no command statsu"),
        ("cloudrl down lab, then cloudrl up", "unexpected extra argument"),
        ("Its logs: cloudrl logs --address http://x", "No such option: --address"),
        ("Name any Ray: --adress http://x", "--adress is an option of no command"),
        ("Stop it: cloudrl jobs stop", "Missing argument 'ID'"),
        ("See `cloudrl checkpoints merge latest`", "Missing option '--to'"),
        ("cloudrl up ... --data gsm8k", "leaves words out"),
        ("--working-dir DIR sends the folder; then name the file in it", "'sends' is no part of what is typed"),
        ("Start one: cloudrl retriever serve DIR; or name another: --url", "--url lacks its value"),
        ("Submit it again with --name X: it continues", "stands in a sentence"),
        ("Give it 5 calls with max_calls, or rollout.calls=5", "rollout.calls=5 stands in a sentence"),
        ("trainer.nnodes=2, or a larger cluster", "'or' is no part of what is typed"),
    ],
)
def test_a_hint_that_cannot_be_typed_is_noticed(hint: str, fault: str) -> None:
    assert [fault in each for each in faults(hint)] == [True], faults(hint)


@pytest.mark.parametrize(
    "hint",
    [
        "When you start the cluster: --data gsm8k\nOr give files: data.train_files=/path",
        "trainer.nnodes=2 ~trainer.mine\nSend its folder: --working-dir ./here",
        "Say which one it is: prompt_field=COLUMN (--prompt-field COLUMN)",
        "Leave out --lora adapter, for the whole model",
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
