"""Text of a shell in recipes and overrides: each kind is found, and what is suggested for it passes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from planning import cluster, job, typed

from cloudrl import recipes
from cloudrl.jobs import Submission, SubmitOptions, plan_job
from cloudrl.jobs.draft import Snapshot
from cloudrl.jobs.findings import JobRefused
from cloudrl.jobs.local_files import inspect_files
from cloudrl.jobs.shell_text import leftover
from cloudrl.spec import Job

NAME, PATH, BATCH = "trainer.experiment_name", "actor_rollout_ref.model.path", "data.train_batch_size"
SHELL = {"EXP": "mine", "MODEL": "/models/mine", "BS": "256", "TWO": "2", "API_TOKEN": "abc"}


def planned(*words: str, job_: Job | None = None, here: Path = Path("/nowhere"), unchecked: bool = False) -> Submission:
    made, options = job_ or job(), SubmitOptions(overrides=typed(*words), unchecked=unchecked)
    return plan_job(made, options, Snapshot(cluster(), inspect_files(made, options, here=here), shell=SHELL))


def refused(*words: str, job_: Job | None = None) -> JobRefused:
    with pytest.raises(JobRefused) as caught:
        planned(*words, job_=job_)
    return caught.value


@pytest.mark.parametrize(
    ("word", "why", "fix"),
    [
        (f"{PATH}=$MODEL", "$MODEL is a variable of a shell", f"{PATH}=/models/mine"),
        (f"{PATH}=${{MODEL}}", "${MODEL} is a variable of a shell", f"{PATH}=/models/mine"),
        (f"{NAME}=a-${{OTHER:-b}}-$EXP", "$EXP is a variable of a shell", f"{NAME}=a-b-mine"),
        (f"{BATCH}=$BS", "$BS is a variable of a shell", f"{BATCH}=256"),
        (f"{BATCH}=$((64 * 4))", "$((64 * 4)) is arithmetic of a shell", f"{BATCH}=256"),
        (f"{BATCH}=$(( (BS + $BS) / ${{TWO}} ))", "is arithmetic of a shell", f"{BATCH}=256"),
        (f"{NAME}=b$((7 % 4))-$((-7 / 2))", "$((7 % 4)) is arithmetic of a shell", f"{NAME}=b3--3"),
        (f"{NAME}=mine \\", "continues a line only in a shell", f"{NAME}=mine"),
        (f"{NAME}=mine \\ # the name", "continues a line only in a shell", f"{NAME}=mine"),
        (f"{NAME}=\\", "continues a line only in a shell", f"~{NAME}"),
        (f"{NAME}=mine # the name", "'# the name' is for a shell", f"{NAME}=mine"),
        (f"{BATCH}=256 2>&1 | tee train.log", "'2>&1 | tee train.log' is for a shell", f"{BATCH}=256"),
        (f"{NAME}='\"mine\"'", "its inner quotes are a part of the value", f"{NAME}=mine"),
        ('trainer.logger=[\\"console\\"]', "a backslash before a quote", 'trainer.logger=["console"]'),
        ("trainer.rollout_data_dir=~/x", "verl does not expand ~", "trainer.rollout_data_dir=/checkpoints/x"),
    ],
)  # fmt: skip
def test_what_is_meant_is_suggested_and_passes(word: str, why: str, fix: str) -> None:
    error = refused(word)
    [finding] = error.findings
    assert why in finding.text
    assert (shlex.join(finding.fix), finding.owner) == (shlex.join([fix]), "")
    planned(*(() if fix.startswith("~") else (fix,)))


@pytest.mark.parametrize(
    ("word", "why", "hint"),
    [
        (f"{NAME}=a-$DAY", "$DAY is a variable", f"--env DAY=VALUE '{NAME}=a-${{oc.env:DAY}}'"),
        (f"{NAME}=$API_TOKEN", "$API_TOKEN is a variable", "--env API_TOKEN=VALUE"),
        (f"{NAME}=$(date +%s)", "$(date +%s) is a command of a shell", "cloudrl import SCRIPT"),
        (f"{NAME}=`date`", "`date` is a command of a shell", "cloudrl import SCRIPT"),
        (f"{BATCH}=$((4096 * N))", "$((4096 * N)) is arithmetic of a shell", "cloudrl import SCRIPT"),
        (f"{BATCH}=$((2 ** 9))", "$((2 ** 9)) is arithmetic of a shell", "cloudrl import SCRIPT"),
        (f"{BATCH}=$((1 / 0))", "$((1 / 0)) is arithmetic of a shell", "cloudrl import SCRIPT"),
        (f"{BATCH}=$((API_TOKEN))", "$((API_TOKEN)) is arithmetic of a shell", "cloudrl import SCRIPT"),
        (f"{BATCH}=${{batch}}", "${batch} is a variable", "Write the value itself. A script"),
        (f"{NAME}=a \\\n  trainer.nnodes=1", "continues a line only in a shell", "Write the value itself"),
    ],
)
def test_what_only_the_user_knows_is_asked_for(word: str, why: str, hint: str) -> None:
    [finding] = refused(word).findings
    assert why in finding.text
    assert hint in finding.hint
    assert finding.fix == ()
    assert "abc" not in finding.hint


def test_the_reference_that_is_suggested_passes() -> None:
    assert planned(f"{NAME}=a-${{oc.env:DAY}}").not_checked


def test_a_home_folder_is_that_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x.py").write_text("def compute_score(a, b, c, d): return 0\n")
    key = "reward.custom_reward_function.path"
    [finding] = refused(f"{key}=$HOME/x.py").findings[:1]
    assert finding.fix == (f"{key}=~/x.py",)
    assert planned(*finding.fix).uploads[0].text == "~/x.py"


def test_a_recipe_that_was_copied_from_a_script() -> None:
    copied = job(overrides={**job().overrides, PATH: "$MODEL_PATH", "trainer.default_local_dir": "/checkpoints/$EXP"})
    error = refused(job_=copied)
    assert [finding.owner for finding in error.findings] == ["recipe 'grpo'"] * 2
    assert error.fix == ("trainer.default_local_dir=/checkpoints/mine",)
    planned(f"{PATH}=/models/x", *error.fix, job_=copied)


def test_all_the_same_with_a_warning() -> None:
    assert any("$OTHER is a variable" in text for text in planned(f"{NAME}=a-$OTHER", unchecked=True).warnings)


@pytest.mark.parametrize(
    "text",
    ["${trainer.project_name}", "${oc.env:HOME}", "${oc.env:HOME,/x}", "${now:%Y-%m-%d}", r"\${EXP}", "'.*visual.*$'",
     "a>b", "'it''s'", "[console,wandb]", "5", "${data}", "C#", "a|b", "#1"],
)  # fmt: skip
def test_what_is_not_a_shells(text: str) -> None:
    assert leftover("trainer.experiment_name", text, lambda name: name == "data", SHELL) is None


def test_prompts_and_templates_may_hold_anything() -> None:
    key = "+actor_rollout_ref.model.custom_chat_template"
    assert not any("shell" in text for text in planned(f"{key}='`a` $b \\'", unchecked=True).warnings)
    assert not any("shell" in text for text in planned("+note='`a` $b \\'", unchecked=True).warnings)


@pytest.mark.parametrize("name", recipes.names())
def test_our_recipes_hold_no_text_of_a_shell(name: str) -> None:
    for key, text in recipes.load(name).overrides.items():
        assert leftover(key, str(text), lambda section: section.islower(), {}) is None, key


@pytest.mark.parametrize("value", ["${m4rk7Zq}", "m4rk7Zq $(cat key)", "m4rk7Zq \\"])
def test_a_secret_is_not_shown(value: str) -> None:
    caught = refused(f"+trainer.api_key={value}")
    assert "trainer.api_key: its value has what only a shell would expand" in str(caught)
    assert "m4rk7Zq" not in f"{caught} {caught.hint} {caught.fix}"
