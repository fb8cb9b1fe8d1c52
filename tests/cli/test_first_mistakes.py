"""What a newcomer types wrong, and that the message ends with what to type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typed_command import Run

from cloudrl.cli.main import app

pytestmark = pytest.mark.io

CHECK = ("check", "grpo", "--gpu", "H100:8")
ROWS = '{"question": "1+1", "answer": "2"}\n'


@pytest.fixture(autouse=True)
def _files(home: Path) -> None:
    """In the current folder."""
    here = home.parent / "here"
    for name, content in {
        "q.jsonl": ROWS * 3, "empty.jsonl": "", "latin.jsonl": ROWS.replace("1+1", "\xfc"),
        "tab.yml": "name: mine\n\tdata: x\n",
        "reward.py": "def compute_score(**row)\n    return 1.0\n", "none.py": "", "notes.txt": "hello",
        "train.py": "@hydra.main(config_name='a')\ndef main(config): ...\n",
    }.items():  # fmt: skip
        (here / name).write_bytes(content.encode("latin-1"))


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("grpo-tiny", "submit"), "'grpo-tiny' is a recipe", "cloudrl submit grpo-tiny\n"),
        (("grpo-tiny", "--steps", "3"), "'grpo-tiny' is a recipe", "cloudrl submit grpo-tiny --steps 3\n"),
        (("chekpoints", "list"), "cloudrl has no command 'chekpoints'", "Corrected: cloudrl checkpoints list\n"),
        (("checkpoints", "lst"), "checkpoints has no command 'lst'", "Corrected: cloudrl checkpoints list\n"),
        (("submt",), "cloudrl has no command 'submt'", "Corrected: cloudrl submit RECIPE\n"),
        (("frobnicate",), "cloudrl has no command 'frobnicate'\n", "→ cloudrl --help"),
        (("--bogus",), "cloudrl has no option --bogus\n", "→ cloudrl --help"),
        ((*CHECK, "--stepps=3"), "did you mean '--steps'?", "Corrected: cloudrl check grpo --gpu H100:8 --steps=3\n"),
        ((*CHECK, "--since", "5"), "check has no option --since\n", "→ cloudrl check --help"),
        ((*CHECK, "--steps", "abc"), "--steps: 'abc' is not a whole number", "→ cloudrl check --help"),
        (("report", "--port=70000"), "--port: '70000' should be less than or equal to 65535", "cloudrl report --help"),
        (("check", "grpo", "--gpu"), "--gpu needs a value", "Corrected: cloudrl check grpo --gpu SPEC\n"),
        (("why", "--stacks=3"), "--stacks takes no value", "Corrected: cloudrl why --stacks\n"),
        (("submit",), "cloudrl submit needs RECIPE: recipe name, ", "→ cloudrl recipes list"),
        (("checkpoints", "merge"), "needs --to DIR: ", "Corrected: cloudrl checkpoints merge --to DIR\n"),
        (("up", "mine", "other"), "takes only CLUSTER, not also 'other'", "Corrected: cloudrl up mine\n"),
        ((*CHECK, "data.train_batch_size", "=", "64"), "no blanks around =", "→ data.train_batch_size=64"),
        (("check", "."), "is a folder, not a recipe", "→ ls ."),
        (("check", "./q.jsonl"), "neither a script nor a recipe", "cloudrl check grpo --data ./q.jsonl"),
        (("import", "./reward.py", "-y"), "neither a script nor a recipe", "cloudrl check grpo --reward reward.py"),
        (("check", "./train.py"), "neither a script nor a recipe", "`entrypoint: [python3, train.py]`"),
        (("check", "./tab.yml"), "./tab.yml:2: a tab, where YAML takes only spaces", ""),
        ((*CHECK, "--data", "./absent.jsonl"), "absent.jsonl does not exist", "ls "),
        ((*CHECK, "--data", "./empty.jsonl"), "there are no rows in train", 'for example: {"question"'),
        ((*CHECK, "--data", "./latin.jsonl"), "is not UTF-8: byte 14", "iconv -f LATIN1"),
        ((*CHECK, "--data", "./notes.txt"), "does not end in .jsonl", "mv ./notes.txt ./notes.txt.jsonl"),
        ((*CHECK, "--reward", "./reward.py"), "is not Python: line 1", "→ python3 -m py_compile "),
        ((*CHECK, "--reward", "./none.py"), "defines no 'compute_score'", "def compute_score(data_source, "),
        (("data", "prepare", "./q.jsonl", "--to", "./reward.py"), "reward.py is a file", "--to DIR"),
        (("checkpoints", "list", "--dir", "./nowhere"), "nowhere cannot be read", "→ ls "),
        (("verl", "add", "./missing.whl"), "missing.whl does not exist", "→ ls "),
        (("recipes", "show", "tiny-grpo"), "did you mean 'grpo-tiny'?", "Recipes: "),
        (("up", "Lab\xf6r"), "did you mean 'labor'?", "A name is "),
    ],
)
def test_the_message_ends_with_what_to_type(run: Run, words: tuple[str, ...], said: str, hint: str) -> None:
    done = run(*words).ended(2, said)
    assert hint in done.err[done.err.index(said) :]


def test_a_secret_is_not_shown_again(run: Run) -> None:
    done = run(*CHECK, "--stepps", "3", "--env", "WANDB_API_KEY=abcdefgh").ended(2, "did you mean '--steps'?")
    assert "abcdefgh" not in done.err


def test_a_shell_may_complete_behind_a_misspelt_command() -> None:
    group: Any = typer.main.get_command(app)
    context = group.make_context("cloudrl", ["chekpoints", "l"], resilient_parsing=True)
    assert group.resolve_command(context, ["chekpoints", "l"])[1] is None


def test_a_file_that_is_missing_is_named_once(run: Run) -> None:
    assert run(*CHECK, "--data", "./absent.jsonl").err.count("does not exist") == 1
