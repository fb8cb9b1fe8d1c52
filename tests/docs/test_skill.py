"""The skill for coding agents: its commands, options and exit codes are those that there are."""

import re
import shlex
from pathlib import Path

import pytest
from command_tree import commands, options

from cloudrl import errors

SKILL = Path(__file__).parents[2] / "skills" / "cloudrl" / "SKILL.md"
TEXT = SKILL.read_text()
TREE = dict(commands())
GROUPS = {path[0] for path in TREE if len(path) > 1}
TYPED = sorted(set(re.findall(r"`cloudrl ([^`\n]+)`", TEXT)))
WITHOUT_JSON = {
    ("slurm", "script"): "its output is the script",
    ("retriever", "serve"): "runs until Ctrl-C; GET /health is what it says to a program",
}


def path_of(words: list[str]) -> tuple[str, ...]:
    return tuple(words[:2]) if words[0] in GROUPS else tuple(words[:1])


@pytest.mark.parametrize("text", [text for text in TYPED if not text.startswith(("COMMAND", "-"))])
def test_a_command_exists_with_its_options(text: str) -> None:
    words = shlex.split(text)
    command = TREE[path_of(words)]
    known = options(command).keys() | {name for each in command.params for name in each.opts} | {"--help"}
    assert [word for word in words if word.startswith("-") and word not in known] == []


def test_bare_names_of_commands_exist() -> None:
    """`up`, `fleet create`: as the rules and the lists name them."""
    rules = TEXT.partition("## Rules")[2].partition("## From")[0]
    names = [words.split() for words in re.findall(r"`([a-z]+(?: [a-z]+)?)(?: --dry-run)?`", rules)]
    assert names
    assert [each for each in names if path_of(each) not in TREE] == []


def test_the_exit_codes_are_those_of_the_errors() -> None:
    codes = {
        each.exit_code
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.CloudrlError)
    }
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)} == codes | {0}


def test_every_command_that_shows_something_has_json() -> None:
    assert {path for path, command in TREE.items() if "--json" not in options(command)} == WITHOUT_JSON.keys()


def test_its_head_is_what_agents_read() -> None:
    head = TEXT.split("---\n")[1]
    assert re.search(r"^name: cloudrl$", head, re.MULTILINE)
    description = re.search(r"^description: (.+)$", head, re.MULTILINE)
    assert description is not None
    assert len(description[1]) <= 1024
