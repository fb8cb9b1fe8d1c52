"""Do two nodes see the same folder?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl.node import canary

if TYPE_CHECKING:
    from pathlib import Path


def test_the_same_folder_by_whatever_way(tmp_path: Path) -> None:
    word = canary.leave(tmp_path / "shared", "run")
    (tmp_path / "mount").symlink_to(tmp_path / "shared")
    assert canary.seen(tmp_path / "shared", "run", word)
    assert canary.seen(tmp_path / "mount", "run", word)


def test_another_folder_and_another_run(tmp_path: Path) -> None:
    word = canary.leave(tmp_path / "one", "run")
    canary.leave(tmp_path / "two", "run")
    assert not canary.seen(tmp_path / "two", "run", word)
    assert not canary.seen(tmp_path / "one", "other run", word)
    assert not canary.seen(tmp_path / "missing", "run", word)


def test_an_old_word_counts_no_more(tmp_path: Path) -> None:
    word = canary.leave(tmp_path, "run")
    assert canary.leave(tmp_path, "run") != word
    assert not canary.seen(tmp_path, "run", word)


def test_one_that_cannot_be_taken_away_ends_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    canary.take_away(tmp_path / "file" / "folder", "run")


def test_it_leaves_nothing(tmp_path: Path) -> None:
    canary.leave(tmp_path, "run")
    canary.take_away(tmp_path, "run")
    canary.take_away(tmp_path, "run")
    assert list(tmp_path.iterdir()) == []
