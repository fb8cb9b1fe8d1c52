"""Each place in verl's source that a comment names is there in the release that is installed.

After an upgrade the failures are the list of what has to be read again.
"""

import re
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCES = Path(__file__).parents[2] / "cloudrl"
_CITATION = re.compile(rf"verl {re.escape(version('verl'))},? (?:(?![A-Za-z]+ \d+\.\d)[^)\"]){{0,200}}")
_ALL_OF_VERL = ("verl/rules/", "verl/setting.py")
"""Files, and folders, that name a place of verl's by its path alone."""
_SYMBOL = r"`{0,2}[\w.]+`{0,2}"
_PLACE = re.compile(
    rf"(?:verl/)?(?P<file>[\w/]+\.(?:py|yaml))`{{0,2}}(?:: (?P<symbols>{_SYMBOL}(?:, {_SYMBOL}(?![/\w.]))*))?"
)


class Citation(NamedTuple):
    """What a source says of verl."""

    at: str
    file: str
    symbols: tuple[str, ...]


def citations() -> Iterator[Citation]:
    for path in sorted([*SOURCES.rglob("*.py"), *SOURCES.rglob("*.yml")]):
        text = re.sub(r"(/)?\n\s*(?:# ?)?", lambda match: match[1] or " ", path.read_text())
        cited = (
            [text]
            if any(f"cloudrl/{each}" in path.as_posix() for each in _ALL_OF_VERL)
            else [each[0] for each in _CITATION.finditer(text)]
        )
        for passage in cited:
            for place in _PLACE.finditer(passage):
                symbols = [each.strip("` .") for each in (place["symbols"] or "").split(",") if each.strip("` .")]
                yield Citation(str(path.relative_to(SOURCES)), place["file"], tuple(symbols))


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    [folder] = find_spec("verl").submodule_search_locations
    paths = [path for path in Path(folder).rglob("*") if path.suffix in (".py", ".yaml")]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in paths}


def test_there_are_citations() -> None:
    assert len(list(citations())) > 50


@pytest.mark.parametrize("cited", sorted(set(citations())), ids=lambda cited: f"{cited.at}: {cited.file}")
def test_the_place_is_there(cited: Citation, files: dict[str, str]) -> None:
    texts = [text for path, text in files.items() if f"/{path}".endswith(f"/{cited.file}")]
    assert texts, f"verl has no {cited.file}"
    for symbol in cited.symbols:
        name = symbol.rpartition(".")[2]
        assert any(re.search(rf"\b{re.escape(name)}\b", text) for text in texts), f"no {name} in {cited.file}"
