"""Do two nodes see the same folder?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl.node import shared_fs

if TYPE_CHECKING:
    from pathlib import Path


def test_the_same_folder_by_whatever_way(tmp_path: Path) -> None:
    word = shared_fs.write_marker(tmp_path / "shared", "run")
    (tmp_path / "mount").symlink_to(tmp_path / "shared")
    assert shared_fs.has_marker(tmp_path / "shared", "run", word)
    assert shared_fs.has_marker(tmp_path / "mount", "run", word)


def test_another_folder_and_another_run(tmp_path: Path) -> None:
    word = shared_fs.write_marker(tmp_path / "one", "run")
    shared_fs.write_marker(tmp_path / "two", "run")
    assert not shared_fs.has_marker(tmp_path / "two", "run", word)
    assert not shared_fs.has_marker(tmp_path / "one", "other run", word)
    assert not shared_fs.has_marker(tmp_path / "missing", "run", word)


def test_an_old_word_counts_no_more(tmp_path: Path) -> None:
    word = shared_fs.write_marker(tmp_path, "run")
    assert shared_fs.write_marker(tmp_path, "run") != word
    assert not shared_fs.has_marker(tmp_path, "run", word)


def test_one_that_cannot_be_taken_away_ends_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shared_fs.remove_marker(tmp_path / "file" / "folder", "run")


def test_it_leaves_nothing(tmp_path: Path) -> None:
    shared_fs.write_marker(tmp_path, "run")
    shared_fs.remove_marker(tmp_path, "run")
    shared_fs.remove_marker(tmp_path, "run")
    assert list(tmp_path.iterdir()) == []
