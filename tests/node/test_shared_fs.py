"""Do two nodes see the same folder?"""

from pathlib import Path

from cloudrl.node.files import has_marker, remove_marker, write_marker


def test_the_same_folder_by_whatever_way(tmp_path: Path) -> None:
    text = write_marker(tmp_path / "shared", "run")
    (tmp_path / "mount").symlink_to(tmp_path / "shared")
    assert has_marker(tmp_path / "shared", "run", text)
    assert has_marker(tmp_path / "mount", "run", text)


def test_another_folder_another_run_and_an_older_marker(tmp_path: Path) -> None:
    text = write_marker(tmp_path / "one", "run")
    write_marker(tmp_path / "two", "run")
    assert not has_marker(tmp_path / "two", "run", text)
    assert not has_marker(tmp_path / "one", "other run", text)
    assert not has_marker(tmp_path / "missing", "run", text)
    assert write_marker(tmp_path / "one", "run") != text
    assert not has_marker(tmp_path / "one", "run", text)


def test_it_leaves_nothing_and_one_that_cannot_be_removed_ends_no_cluster(tmp_path: Path) -> None:
    write_marker(tmp_path, "run")
    remove_marker(tmp_path, "run")
    remove_marker(tmp_path, "run")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    remove_marker(tmp_path / "file" / "folder", "run")
