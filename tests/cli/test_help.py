"""The first words: the help in groups, and what a bare `cloudrl` says."""

import re
import shlex

import pytest
import typer
from command_tree import commands
from typed_command import Run

from cloudrl.cli._commands import COMMANDS, GROUPS, load

pytestmark = pytest.mark.io


def test_each_line_of_the_help_is_whole_at_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("--help").out.splitlines()
    for title, group in GROUPS.items():
        assert f"{title}:" in lines
        for name, entry in group.items():
            [line] = [line for line in lines if re.match(rf"  {name} +", line)]
            assert line.endswith(f"  {entry.line}")
            assert len(line) <= 80


def test_every_command_is_there_once() -> None:
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)
    assert {path[0] for path, _ in commands()} == set(COMMANDS)
    assert all(isinstance(load(name), typer.Typer) or callable(load(name)) for name in COMMANDS)


def test_without_a_command_three_are_named_that_can_be_typed(run: Run) -> None:
    lines = run().ended(2).err.splitlines()
    typed = [re.split(" {2,}", line.strip())[0] for line in lines if line.startswith("  cloudrl ")]
    assert all(len(line) <= 80 for line in lines if line.startswith(" "))
    demo, check, train = (shlex.split(command)[1:] for command in typed)
    assert run(*demo, "--help").code == run(*check).code == 0
    assert run(*train, "--on", "dstack", "--dry-run").code == 0


def test_one_command_imports_no_other(run_python: object) -> None:
    program = (
        "import sys; sys.argv = ['cloudrl', 'recipes', '--help']\n"
        "from cloudrl.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted(name for name in sys.modules if name.startswith('cloudrl.cli.') and '._' not in name))"
    )
    out = run_python(program)  # type: ignore[operator]
    assert out.splitlines()[-1] == "['cloudrl.cli.main', 'cloudrl.cli.recipes']"


def test_hints_of_slurm_lead_to_a_script_when_they_are_pasted(run: Run) -> None:
    """In at most as many rounds as fields are missing."""
    words = ["slurm", "script", "grpo", "--gpu", "H100:8"]
    for _ in range(3):
        done = run(*words)
        if done.code == 0:
            break
        [line] = re.findall(r"→ (--set .*)", done.err)
        words += shlex.split(line)
    assert done.code == 0
    assert sorted(word for word in words if word.startswith("slurm.")) == [
        "slurm.container=docker", "slurm.volumes=['/shared/you/checkpoints:/checkpoints']"
    ]  # fmt: skip
