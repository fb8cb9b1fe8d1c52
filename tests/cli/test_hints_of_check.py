"""What `check` and `import` suggest can be typed: each hint is taken from its situation, and done."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from command_tree import commands, options
from typed_command import Run, Typed

from cloudrl.cli import _output
from cloudrl.spec import Cluster, yaml_core

pytestmark = pytest.mark.io

CHECK = ("check", "grpo", "--gpu", "H100:8")
MAIN = "python3 -m verl.trainer.main_ppo"
BASE = (
    "algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct "
    "data.train_files=/d/a.parquet data.val_files=/d/b.parquet data.train_batch_size=256 "
    "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.use_dynamic_bsz=True "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8"
)
FILES = {
    "reward.py": "def score(data_source, solution_str, ground_truth, extra_info=None):\n    return 0.0\n",
    "wants.sh": f"set -u\nA=$A_ROOT\n{MAIN} {BASE} trainer.experiment_name=$B_NAME\n",
    "argument.sh": f"{MAIN} {BASE} trainer.experiment_name=${{1:?the name}}\n",
    "usage.sh": f'[ $# -lt 1 ] && {{ echo "Usage: $0 NAME"; exit 1; }}\n{MAIN} {BASE}\n',
    "unset.sh": f"{MAIN} {BASE} trainer.experiment_name=$EXP\n",
    "idle.sh": "ray start --head\n",
    "task.yml": f"envs: {{MODEL: null}}\nrun: {MAIN} {BASE} trainer.experiment_name=$MODEL\n",
    "slurm.sh": f"#SBATCH -N 2\n#SBATCH --gres=gpu:h100:8\n{MAIN} {BASE}\n",
    "shell.yml": "name: mine\nmodel: Qwen/Qwen2.5-0.5B-Instruct\ndata: [gsm8k]\noverrides:\n"
    "  data.train_batch_size: $((8 * 32))\n"
    "  algorithm.adv_estimator: grpo\n  actor_rollout_ref.rollout.name: vllm\n"
    "  actor_rollout_ref.actor.use_dynamic_bsz: true\n"
    "  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu: 8\n",
}


class Situation(NamedTuple):
    """A command that fails, and the words of its hint that are done.

    Attributes:
        typed: The command.
        pattern: Its first group is what the hint says to type.
    """

    typed: tuple[str, ...]
    pattern: str


OVERRIDES = re.compile(r"('?[~+]*[a-z_]+(\.\w+)+(=\S+|'|$)( |$))+")
COMMAND = r"^ *→ (?:[^:]*: )?(cloudrl .*)$"
FAULTS = (
    "trainer.nnodes=3", "trainer.nnode=1",
    "actor_rollout_ref.actor.fsdp_config.grad_offload=True", "trainer.default_local_dir=mine",
    "+trainer.val_before_train=False", "actor_rollout_ref.rollout.tensor_model_parallel_size=3",
    "data.train_batch_size=$((16 * 32))", "actor_rollout_ref.rollout.gpu_memory_utilization=80",
    "algorithm.adv_estimator=grpoo", "actor_rollout_ref.rollout.val_temperature=0.6", "data.enable_thinking=False",
)  # fmt: skip
SITUATIONS = {
    "variables": Situation(("import", "wants.sh", "-y"), COMMAND),
    "argument": Situation(("import", "argument.sh", "-y"), COMMAND),
    "usage": Situation(("import", "usage.sh", "-y"), COMMAND),
    "task": Situation(("import", "task.yml", "-y"), COMMAND),
    "variables of check": Situation(("check", "wants.sh", "--gpu", "H100:8"), r"→ (--env .*)$"),
    "argument of check": Situation(("check", "argument.sh", "--gpu", "H100:8"), COMMAND),
    "no training": Situation(("check", "idle.sh", "--gpu", "H100:8"), COMMAND),
    "recipe of shell text": Situation(("check", "./shell.yml", "--gpu", "H100:8"), r"(data\.train_batch_size=256)$"),
}  # fmt: skip
PLACEHOLDERS = {"VALUE": "1", "ARGS": "mine", "ARG1": "mine", "NAME": "mine"}


@pytest.fixture(autouse=True)
def _files(home: Path) -> None:
    """The files of the situations, in the current folder."""
    for name, text in FILES.items():
        Path(name).write_text(text)


def done_as_said(run: Run, typed: tuple[str, ...], said: str) -> Typed:
    """Type a hint: a whole command, or words behind the one that failed."""
    filled = re.sub(r"\b(" + "|".join(PLACEHOLDERS) + r")\b", lambda match: PLACEHOLDERS[match[1]], said)
    words = shlex.split(filled)
    if words[0] != "cloudrl":
        return run(*typed, *words)
    return run("import", "-y", *words[2:]) if words[1] == "import" else run(*words[1:])


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_an_error_says_can_be_done(run: Run, name: str) -> None:
    typed, pattern = SITUATIONS[name]
    failed = run(*typed).ended(2)
    [said, *_] = re.findall(pattern, failed.err, re.MULTILINE) or [f"no hint like {pattern} in:\n{failed.err}"]
    done = done_as_said(run, typed, said)
    assert done.code == 0, done.err


@pytest.mark.parametrize("fault", FAULTS)
def test_the_overrides_that_check_suggests_pass(run: Run, fault: str) -> None:
    failed = run(*CHECK, fault).ended(2)
    lines = [line.removeprefix("  → ").strip() for line in failed.err.splitlines()[1:]]
    said = next((line for line in lines if OVERRIDES.fullmatch(line)), f"no overrides in {failed.err}")
    typed = (*CHECK, fault) if said.startswith("'~") else CHECK  # another key or value takes the place of the fault
    done = done_as_said(run, typed, said)
    assert done.code == 0, f"{said}\n{done.err}"


def test_the_corrected_command_passes(run: Run) -> None:
    failed = run(*CHECK, *FAULTS[:4]).ended(2)
    [command] = re.findall(r"Corrected: (cloudrl .*)$", failed.err, re.MULTILINE)
    assert run(*shlex.split(command)[1:]).code == 0


def test_what_a_line_of_an_import_says_can_be_done(run: Run) -> None:
    """A variable without a value, and a folder for checkpoints."""
    unset = run("import", "unset.sh", "-y").ended(0, "wrong: $EXP in trainer.experiment_name").err
    [option] = re.findall(r"give it one: (--env EXP=VALUE)", unset)
    assert "wrong" not in run("import", "unset.sh", "-y", *option.replace("VALUE", "mine").split()).err
    said = run("import", "slurm.sh", "-y").ended(0).err
    [volumes] = re.findall(r"mount a folder that all nodes share: (--set .*)$", said, re.MULTILINE)
    written = run("slurm", "script", "./slurm.yml", "-f", "slurm.cluster.yml", *shlex.split(volumes))
    assert written.code == 0, written.err


def test_the_next_commands_of_an_import_work(run: Run) -> None:
    said = run("import", "unset.sh", "-y", "--env", "EXP=mine").ended(0).err
    next_commands = re.findall(r"(?:→| {2,})(?: )?(cloudrl check .*)$", said, re.MULTILINE)
    assert len(next_commands) == 1
    done = run(*shlex.split(next_commands[0])[1:])
    assert done.code == 0, done.err


VERBS = {"has", "knows", "starts", "sets", "takes", "waits", "ends", "leaves", "mounts", "forwards", "writes", "runs"}
"""What follows the name where it is the subject of a sentence."""
SENTENCES = sorted(
    {
        text
        for path in sorted((Path(_output.__file__).parents[1] / "scripts").glob("*"))
        if path.suffix in (".py", ".yml")
        for text in path.read_text().splitlines()
        if "--" in text and not text.lstrip().startswith(("#", '"--', 'r"-'))
    }
)


def test_the_options_and_fields_that_lines_name_exist() -> None:
    """Of all lines that `import` can print: `--set slurm.python=...`, `--image IMAGE`, `cloudrl volume create`."""
    text = "\n".join(SENTENCES)
    tree = dict(commands())
    paths = re.findall(r"\bcloudrl ((?:data|volume|jobs|checkpoints|fleet|task|slurm) [a-z]+|[a-z]+)(?= |`|;|$)", text)
    assert [name for name in paths if tuple(name.split()) not in tree and name not in VERBS] == []
    fields = set(re.findall(r"--set '?([a-z_]+)", text))
    assert fields
    assert fields - set(Cluster.model_fields) - {"dstack", "slurm", "local"} == set()


def test_every_counterpart_names_options_that_exist() -> None:
    table = Path(_output.__file__).parents[1] / "scripts" / "counterparts.yml"
    known = {name for _, command in commands() for name in options(command)}
    for row in yaml_core.load_value(table.read_text(), table.name):
        assert [name for name in re.findall(r"--[a-z][a-z-]+", row["why"]) if name not in known] == [], row["why"]
