"""Every `cloudrl ...` that a page names, in a block or within a sentence, is a command with these options."""

import re
import shlex

import pytest
from command_tree import commands, options
from guide_pages import PAGES, REPOSITORY, blocks

TREE = dict(commands())
NOUNS = {path[0] for path in TREE if len(path) > 1}
INLINE = re.compile(r"`(cloudrl [^`]+)`")
SHELL = {"console", "sh", "bash", "text", ""}
GLOBAL = {"--help", "--version", "--install-completion"}


def named(page: str) -> list[str]:
    """The commands of a page without their comments; a block's lines may begin with `$ `."""
    path = REPOSITORY / page
    lines = [line for block in blocks(path) if block.language in SHELL for line in block.text.splitlines()]
    typed = [line.removeprefix("$ ") for line in lines if line.startswith(("$ cloudrl ", "cloudrl "))]
    return typed + [" ".join(text.split()) for text in INLINE.findall(path.read_text())]


def faults(text: str) -> list[str]:
    """What of a command does not exist."""
    words = shlex.split(re.split(r"\s#\s|\s\|\s", text)[0], posix=True)[1:]
    names = [word for word in words if not word.startswith("-")]
    if not names or not re.fullmatch(r"[a-z]+", names[0]):  # `cloudrl --help`, `cloudrl COMMAND --json`
        return [word for word in words if word.startswith("--") and word not in GLOBAL | {"--json"}]
    path = tuple(names[:2]) if names[0] in NOUNS else tuple(names[:1])
    if path == (names[0],) and names[0] in NOUNS:
        return []
    if path not in TREE:
        return [" ".join(path)]
    known = options(TREE[path]).keys() | {name for each in TREE[path].params for name in each.opts} | {"--help"}
    return [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md" and named(page)])
def test_named_commands_exist(page: str) -> None:
    assert {text: wrong for text in named(page) if (wrong := faults(text))} == {}


def test_what_does_not_exist_is_found() -> None:
    assert faults("cloudrl jobs erase") == ["jobs erase"]
    assert faults("cloudrl up two --on local --gpus 8") == ["--gpus"]
    assert faults("cloudrl watch --curve actor/kl_loss  # a comment") == []
