"""What a newcomer types wrong, and that the message ends with what to type."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed_command import Run

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
    }.items():  # fmt: skip
        (here / name).write_bytes(content.encode("latin-1"))


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("grpo-tiny", "submit"), "'grpo-tiny' is a recipe", "cloudrl submit grpo-tiny"),
        ((*CHECK, "data.train_batch_size", "=", "64"), "no blanks around =", "→ data.train_batch_size=64"),
        (("check", "."), "is a folder, not a recipe", "→ ls ."),
        (("check", "./q.jsonl"), "neither a script nor a recipe", "cloudrl check grpo --data ./q.jsonl"),
        (("import", "./reward.py", "-y"), "neither a script nor a recipe", "cloudrl check grpo --reward reward.py"),
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


def test_a_file_that_is_missing_is_named_once(run: Run) -> None:
    assert run(*CHECK, "--data", "./absent.jsonl").err.count("does not exist") == 1
