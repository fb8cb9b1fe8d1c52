"""An index elsewhere takes the place of what was built, and of nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudrl.errors import InputError
from cloudrl.retriever.build import BuildOptions, build
from cloudrl.retriever.linking import link
from cloudrl.retriever.lock import contents

pytestmark = pytest.mark.io


@pytest.fixture
def index(corpus_path: Path, tmp_path: Path) -> Path:
    build(BuildOptions((corpus_path,), engine="bm25"), tmp_path / "index")
    return tmp_path / "index"


def links(folder: Path) -> dict[str, str]:
    return {each.name: os.readlink(each) for each in contents(folder)}


def test_an_index_in_place_of_what_was_built_and_of_other_links(index: Path, corpus_path: Path, tmp_path: Path) -> None:
    to, other = tmp_path / "to", tmp_path / "other"
    build(BuildOptions((corpus_path,), engine="bm25"), to)
    index.rename(other)
    for place in (other, other, index):
        if place == index:
            build(BuildOptions((corpus_path,), engine="bm25"), index)
        link(place, to, print)
        assert links(to) == {each.name: str(each) for each in contents(place)}
    assert (other / "bm25").is_dir(), "what links lead to stays"


def test_an_index_is_not_linked_to_itself(index: Path) -> None:
    link(index, index, print)
    assert not any(each.is_symlink() for each in index.iterdir())


@pytest.mark.parametrize("names", [{"retriever.json", "notes"}, {"retriever.json", "e5_Flat.index"}, {"corpus.jsonl"}])
def test_what_others_have_made_stays(index: Path, tmp_path: Path, names: set[str]) -> None:
    to = tmp_path / "to"
    to.mkdir()
    for each in names:
        (to / each).touch()
    with pytest.raises(InputError, match="has other files in it"):
        link(index, to, print)
    assert {each.name for each in contents(to)} == names


def test_links_of_others_stay(index: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    to.mkdir()
    (to / "mine").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="has other files in it"):
        link(index, to, print)
    assert links(to) == {"mine": str(tmp_path / "elsewhere")}
