"""Each form of the public scripts: what comes of it is what bash would start."""

import pytest
from taken_over import TakeOver

from cloudrl.errors import InputError
from cloudrl.scripts.imported import Imported
from cloudrl.scripts.lines import Fate
from cloudrl.spec.hydra import split_key

pytestmark = pytest.mark.io

MAIN = "python3 -m verl.trainer.main_ppo"
FORMS: dict[str, tuple[str, dict[str, object]]] = {
    # form -> script, the overrides of its recipe
    "defaults": ("LR=${LR:-1e-6}; N=${N:=5}\n{} a.lr=$LR a.n=${N}", {"a.lr": 1e-6, "a.n": 5}),
    "arithmetic": ("len=$((1024 * 2))\n{} a.len=$len a.more=$((len + 1024))", {"a.len": 2048, "a.more": 3072}),
    "command substitution": ("day=$(printf x-%s 1)\n{} a.name=$day a.up=`echo up`", {"a.name": "x-1", "a.up": "up"}),
    "its own folder": ('cd "$(dirname "${BASH_SOURCE[0]}")"\n{} a.x=$(basename "$0" .sh)', {"a.x": "run"}),
    "arrays": (
        'args=(\n  a.x=1\n  # why\n  "a.files=[\'/d/a.parquet\',\'/d/b.parquet\']"\n)\nargs+=(+a.y=2)\n{} "${args[@]}"',
        {"a.x": 1, "a.files": ["/d/a.parquet", "/d/b.parquet"], "+a.y": 2},
    ),
    "case and if": (
        'case "${MODE:-a}" in a) x=1 ;; *) x=2 ;; esac\nif [ "$x" -eq 1 ]; then y=3; else y=4; fi\n{} a.x=$x a.y=$y',
        {"a.x": 1, "a.y": 3},
    ),
    "functions": ('go() { local n=$1; shift; {} a.n=$n "$@"; }\ngo 4 a.m=5', {"a.n": 4, "a.m": 5}),
    "strict": ("set -xeuo pipefail\numask 022; ulimit -n 65535\n{} a.x=1", {"a.x": 1}),
    "set -a": ("set -a; X=1; set +a\n{} a.x=$X", {"a.x": 1}),
    "heredoc": ("cat > c.yaml <<EOF\nx: 7\nEOF\n{} a.x=$(sed 's/x: //' c.yaml)", {"a.x": 7}),
    "here string": ('read -r a b <<< "1 2"\n{} a.x=$a a.y=$b', {"a.x": 1, "a.y": 2}),
    "eval": ('command="{} a.x=1"\neval "$command a.y=2"', {"a.x": 1, "a.y": 2}),
    "command in a string": ('C="{} a.x=1"\n$C a.y=2', {"a.x": 1, "a.y": 2}),
    "bash -c": ("bash -c '{} a.x=1'", {"a.x": 1}),
    "timeout, nohup, env": ("nohup timeout 3h env A=1 {} a.x=1 > log 2>&1 &\nwait", {"a.x": 1}),
    "exec": ("exec {} a.x=1", {"a.x": 1}),
    "exec > tee": ("exec > >(tee -a all.log) 2>&1\n{} a.x=1", {"a.x": 1}),
    "tee": ("{} a.x=1 2>&1 | tee log-$(date +%s).txt", {"a.x": 1}),
    "quotes": ("{} a.x='a b' a.y=\"['c','d']\" a.z=null a.w=", {"a.x": "a b", "a.y": ["c", "d"], "a.z": None, "a.w": ""}),
    "a key twice": ("{} a.x=1 a.y=2 a.x=3", {"a.y": 2, "a.x": 3}),
    "prefixes": ("{} +a.x=1 ++a.y=2 ~a.z", {"+a.x": 1, "++a.y": 2, "~a.z": ""}),
    "other python": ("/opt/conda/envs/verl/bin/python -u -m verl.trainer.main_ppo a.x=1", {"a.x": 1}),
    "virtual environment": ("set -e\nsource .venv/bin/activate\nsource ~/.bashrc\n{} a.x=1", {"a.x": 1}),
    "conda": ('eval "$(conda shell.bash hook)"\nconda activate verl\nmodule load cuda\n{} a.x=1', {"a.x": 1}),
    "a folder that is not here": ("set -e\ncd /root/verl\n{} a.x=1", {"a.x": 1}),
    "a clone": ("set -e\ngit clone -b v1 https://github.com/x/verl.git\ncd verl\npip install -e .\n{} a.x=1", {"a.x": 1}),
    "waiting": ("until nc -z h 1; do sleep 5; done\nwhile ! grep -q ready f; do sleep 5; done\n{} a.x=1", {"a.x": 1}),
    "waiting for GPUs": (
        "while true; do\n  n=$(ray status | grep -oP '(?<=/)\\d+(?=\\.\\d+ GPU)')\n  [ \"$n\" -ge 99 ] && break\n"
        "  sleep 10\ndone\n{} a.x=1",
        {"a.x": 1},
    ),
    "GPUs are counted": ("N=$(nvidia-smi -L | wc -l)\n{} a.n=$N", {"a.n": 8}),
    "head or worker": (
        'if [ "$(hostname)" == "${MASTER_ADDR}" ]; then ray start --head; {} a.x=1\nelse ray start --address $MASTER_ADDR:6379; fi',
        {"a.x": 1},
    ),
    "head by address": (
        'if [[ "$(hostname -I | awk \'{print $1}\')" == "$MASTER_ADDR" ]]; then {} a.x=1; else sleep 9; fi', {"a.x": 1},
    ),
    "head by rank": ('if [ "$NODE_RANK" -eq 0 ]; then {} a.x=1; fi', {"a.x": 1}),
    "ray job submit": ("ray job submit --address=http://h:8265 --no-wait -- {} a.x=1", {"a.x": 1}),
    "ray job submit, a string": ("ray job submit -- \"bash -c '{} a.x=1'\"", {"a.x": 1}),
    "srun and docker": ('srun --overlap -w "node-0" docker exec -e B=1 verl bash -c "cd /x && {} a.x=1"', {"a.x": 1}),
    "singularity": ("apptainer exec --nv --bind /d:/d x.sif {} a.x=1", {"a.x": 1}),
    "ssh": ("ssh head 'cd /work && {} a.x=1'", {"a.x": 1}),
    "heredoc of bash": ("bash <<'EOF'\nX=1\n{} a.x=$X\nEOF", {"a.x": 1}),
    "carriage returns": ("X=1\r\n{} a.x=$X\r\n", {"a.x": 1}),
}  # fmt: skip


def overrides(imported: Imported) -> dict[str, object]:
    [training] = imported.trainings
    return dict(training.fields["overrides"])


@pytest.mark.parametrize("form", FORMS)
def test_a_form(take_over: TakeOver, form: str) -> None:
    text, wanted = FORMS[form]
    imported = take_over(text.replace("{}", MAIN))
    assert overrides(imported) == wanted
    assert {split_key(key)[1] for key in wanted} <= {split_key(key)[1] for key in imported.trainings[0].job.overrides}


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
        ("set -eu\nx=$2", ["wants argument 2", "-- ARG1 ARG2"]),
        (': "${KEY:?}"\n{}', ["wants the variable KEY", "--env KEY=VALUE"]),
        ('[ $# -lt 2 ] && { echo "Usage: $0 MODEL DATA"; exit 1; }\n{}', ["Usage: ", "-- ARGS"]),
        ('if [ -z "$MODEL" ]; then echo "MODEL is not set" >&2; exit 1; fi\n{}', ["MODEL is not set", "--env MODEL=VALUE"]),
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


def test_several_trainings_are_a_recipe_each(take_over: TakeOver) -> None:
    imported = take_over(f"for lr in 1e-6 2e-6; do {MAIN} a.lr=$lr trainer.nnodes=2; done\n{MAIN} a.lr=1e-6 trainer.nnodes=2")
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
    assert [line.fate for line in imported.lines] == [Fate.DROPPED, Fate.DROPPED]
