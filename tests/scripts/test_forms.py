"""Each form of the public scripts: what comes of it is what bash would start."""

from pathlib import Path

import pytest
from taken_over import TakeOver

from cloudrl.errors import InputError
from cloudrl.scripts.imported import Imported
from cloudrl.scripts.lines import Fate
from cloudrl.spec import yaml_core
from cloudrl.spec.hydra import split_key

pytestmark = pytest.mark.io

MAIN = "python3 -m verl.trainer.main_ppo"
FORMS = yaml_core.load_value((Path(__file__).parent / "forms.yml").read_text(), "forms.yml")


def overrides(imported: Imported) -> dict[str, object]:
    [training] = imported.trainings
    return dict(training.fields["overrides"])


@pytest.mark.parametrize("form", FORMS)
def test_a_form(take_over: TakeOver, form: str) -> None:
    wanted = FORMS[form]["overrides"]
    imported = take_over(FORMS[form]["script"].replace("$TRAIN", MAIN))
    assert overrides(imported) == wanted
    assert {split_key(key)[1] for key in wanted} <= {split_key(key)[1] for key in imported.trainings[0].job.overrides}


def test_lines_that_end_as_on_windows(take_over: TakeOver) -> None:
    assert overrides(take_over(f"X=1\r\n{MAIN} a.x=$X\r\n")) == {"a.x": 1}


def test_arguments_are_handed_on(take_over: TakeOver) -> None:
    text = f'model=$1; shift\n{MAIN} a.model=$model "$@"'
    assert overrides(take_over(text, "m", "a.x=1", "+a.y=b c")) == {"a.model": "m", "a.x": 1, "+a.y": "b c"}


def test_variables_are_handed_on(take_over: TakeOver) -> None:
    assert overrides(take_over(f"{MAIN} a.x=$X", env={"X": "1"})) == {"a.x": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{} a.x=${1:?the model}", ["wants argument 1: the model", "cloudrl import run.sh -- ARG1"]),
        ("set -u\n{} a.x=$DATA_HOME", ["run.sh:2 wants the variable DATA_HOME", "--env DATA_HOME=VALUE"]),
        ("set -u\nx=$WANDB_API_KEY$DATA\n{}", ["the variable WANDB_API_KEY", "--env WANDB_API_KEY --env DATA=VALUE"]),
        ("set -eu\nx=$2", ["wants argument 2", "-- ARG1 ARG2"]),
        (': "${KEY:?}"\n{}', ["wants the variable KEY", "--env KEY"]),
        (
            "set -u\nx=$A\nD=$1\nif [ -z $B ]; then exit 1; fi\n{} a.y=${C:?the root}/$x a.z=$2",
            [
                "run.sh:2 wants the variable A",
                "run.sh:3 wants argument 1",
                "run.sh:4 wants the variable B",
                "run.sh:5 wants the variable C: the root",
                "run.sh:5 wants argument 2",
                "cloudrl import run.sh --env A=VALUE --env B=VALUE --env C=VALUE -- ARG1 ARG2",
            ],
        ),
        (
            "{} a.x=${A:?} a.y=$B a.z=$((C * 2))",
            ["the variable A", "the variable B: a.y has it", "the variable C: a.z has it", "--env C=VALUE"],
        ),
        ('[ $# -lt 1 ] && { echo "Usage: $0 MODEL"; exit 1; }\n{} a.x=$DATA', ["Usage: ", "--env DATA=VALUE -- ARGS"]),
        ('[ $# -lt 2 ] && { echo "Usage: $0 MODEL DATA"; exit 1; }\n{}', ["Usage: ", "-- ARGS"]),
        (
            'if [ -z "$MODEL" ]; then echo "MODEL is not set" >&2; exit 1; fi\n{}',
            ["MODEL is not set", "--env MODEL=VALUE"],
        ),
    ],
)
def test_what_a_script_wants_is_named(take_over: TakeOver, text: str, said: list[str]) -> None:
    with pytest.raises(InputError) as wanted:
        take_over(text.replace("{}", MAIN))
    assert [each for each in said if each not in str(wanted.value)] == []


def test_variables_without_a_value_are_named(take_over: TakeOver) -> None:
    imported = take_over(f"{MAIN} data.train_files=$DATA_HOME/a.parquet a.x=${{EXTRA}} $MORE")
    said = {line.text: line.why for line in imported.lines if line.fate is Fate.WRONG}
    assert set(said) == {"$DATA_HOME in data.train_files", "$EXTRA in a.x"}
    assert "--env DATA_HOME=VALUE" in said["$DATA_HOME in data.train_files"]


def test_a_variable_of_arithmetic_without_a_value_is_named(take_over: TakeOver) -> None:
    imported = take_over(f"{MAIN} a.x=$((TP * 8)) a.y=$((N))", env={"N": "3"})
    assert [line.text for line in imported.lines if line.fate is Fate.WRONG] == ["$TP in a.x"]
    assert overrides(take_over(f"{MAIN} a.x=$((TP * 8))", env={"TP": "2"})) == {"a.x": 16}


def test_several_trainings_are_a_recipe_each(take_over: TakeOver) -> None:
    imported = take_over(
        f"for lr in 1e-6 2e-6; do {MAIN} a.lr=$lr trainer.nnodes=2; done\n{MAIN} a.lr=1e-6 trainer.nnodes=2"
    )
    assert {each.job.name: dict(each.job.overrides) for each in imported.trainings} == {
        "run-1": {"a.lr": "1e-06"}, "run-2": {"a.lr": "2e-06"},
    }  # fmt: skip
    assert list(imported.recipes) == ["run-1.yml", "run-2.yml"]


def test_another_script_that_it_runs(take_over: TakeOver) -> None:
    files = {"common.sh": "export WANDB_MODE=offline\nX=5\n", "inner/train.sh": f'{MAIN} a.x="$1"\n'}
    imported = take_over('set -e\nsource "$(dirname "$0")/common.sh"\nbash inner/train.sh $X', files=files)
    assert overrides(imported) == {"a.x": 5}
    assert imported.trainings[0].fields["env"] == {"WANDB_MODE": "offline"}
    assert [(line.file, line.number) for line in imported.lines if line.text.startswith("python3")] == [("train.sh", 1)]


def test_a_script_without_a_training(take_over: TakeOver) -> None:
    imported = take_over("pip install verl\nray start --head\n")
    assert imported.trainings == ()
    assert imported.files == {}
    assert [line.fate for line in imported.lines] == [Fate.DROPPED, Fate.DROPPED]


def test_a_script_that_bash_cannot_read(take_over: TakeOver) -> None:
    with pytest.raises(InputError, match="syntax error near unexpected token") as refused:
        take_over("if then fi (\n")
    assert "bash -n run.sh" in str(refused.value)
