"""The pages that users read: README, docs/, the skill for coding agents, and their code blocks and links."""

import re
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
GUIDES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
"""Pages below docs/, by their path there."""
PAGES = [f"docs/{name}" for name in GUIDES] + ["README.md", "AGENTS.md", "CHANGELOG.md"]
PAGES += sorted(
    path.relative_to(REPOSITORY).as_posix()
    for folder in ("skills", "cloudrl", "tests")
    for path in (REPOSITORY / folder).rglob("*.md")
)
"""All pages with links, by their path in the repository."""

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)#?([^)\s]*)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block of code: its language, "" where none is named, and its text."""

    language: str
    text: str


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """The fenced blocks of a page, of one language or of all, in order."""
    found = [Block(kind, text) for _, kind, text in _BLOCK.findall(page.read_text(encoding="utf-8"))]
    return [block for block in found if language in (None, block.language)]


def links(page: Path) -> list[tuple[str, str]]:
    """The relative links of a page, as target and anchor."""
    return [(target, anchor) for target, anchor in _LINK.findall(_without_code(page))]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page; of equal headings the second has -1 at its end."""
    made: list[str] = []
    for heading in _HEADING.findall(_without_code(page)):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w -]", "", shown.lower()).replace(" ", "-")
        made.append(f"{slug}-{made.count(slug)}" if slug in made else slug)
    return set(made)


def _without_code(page: Path) -> str:
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))
