"""Folders and files that no other user can enter, read or put in our place."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import other_user
import pytest

from cloudrl.private_files import make_folder, make_new_folder, open_file, refuse_foreign, write_file


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o377], ids="{:04o}".format, autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_a_new_folder(tmp_path: Path) -> None:
    make_new_folder(tmp_path / "new")
    assert _mode(tmp_path / "new") == 0o700
    with pytest.raises(FileExistsError):
        make_new_folder(tmp_path / "new")


@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_what_has_the_name_is_no_new_folder(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "new"
    path.touch() if kind == "file" else path.symlink_to(tmp_path if kind == "link" else "nowhere")
    with pytest.raises(FileExistsError):
        make_new_folder(path)
    if kind != "link":
        with pytest.raises(FileExistsError):
            make_folder(path)


def test_missing_parents_are_private_too(tmp_path: Path) -> None:
    before = _mode(tmp_path)
    make_folder(tmp_path / "a" / "b" / "c")
    assert {_mode(tmp_path / each) for each in ("a", "a/b", "a/b/c")} == {0o700}
    assert _mode(tmp_path) == before


def test_a_folder_that_others_could_enter_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    make_folder(folder)
    assert _mode(folder) == 0o700


def test_a_file_is_written_whole(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "file"
    path.write_text("an old and longer one")
    path.chmod(0o644)
    for text in ("one", "two"):
        write_file(path, text)
        assert (path.read_text(), _mode(path)) == (text, 0o600 & ~umask)
    write_file(path, b"\0", mode=0o666)
    assert (path.read_bytes(), _mode(path)) == (b"\0", 0o666 & ~umask)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_on_the_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[Path, str]] = []
    path = tmp_path / "file"
    path.write_text("old")
    really = os.fsync

    def fsync(descriptor: int) -> None:
        really(descriptor)
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")), path.read_text()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_file(path, "unsynced")
    assert synced == []
    write_file(path, "new", sync=True)
    [(part, before), (folder, after)] = synced
    assert (part.parent, before, folder, after) == (tmp_path, "unsynced", tmp_path, "new")


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_file(tmp_path / "folder", "text")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_file(tmp_path / "link", "new")
    assert [(tmp_path / name).read_text() for name in ("target", "link")] == ["old", "new"]
    (tmp_path / "again").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic link"):
        open_file(tmp_path / "again", os.O_RDWR | os.O_CREAT)


def test_an_opener(tmp_path: Path, umask: int) -> None:
    with open(tmp_path / "log", "a", opener=open_file) as file:
        file.write("line\n")
    assert _mode(tmp_path / "log") == 0o600 & ~umask


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder such as /tmp, below no private one."""
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="cloudrl-test-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


FOREIGN = {
    "folder": 'mkdir "$1"',
    "link to a folder of theirs": 'mkdir "$1-theirs" && ln -s "$1-theirs" "$1"',
    "link to a folder of ours": 'ln -s "$2" "$1"',
}


@pytest.mark.root
@pytest.mark.parametrize("script", FOREIGN.values(), ids=FOREIGN)
def test_what_another_user_has_put_there_is_refused(shared: Path, tmp_path: Path, script: str) -> None:
    before = _mode(tmp_path)
    assert other_user.run(script, shared / "name", tmp_path).returncode == 0
    for make in (make_folder, refuse_foreign):
        with pytest.raises(PermissionError, match=f"it belongs to another user .uid {other_user.UID}"):
            make(shared / "name")
    with pytest.raises(FileExistsError):
        make_new_folder(shared / "name")
    assert _mode(tmp_path) == before


@pytest.mark.root
@pytest.mark.parametrize("script", ['mkdir "$1"', 'ln -s "$2" "$1"'], ids=["folder", "link"])
def test_nothing_of_ours_is_made_below_it(shared: Path, tmp_path: Path, script: str) -> None:
    """Its owner could put another folder in the place of ours: `CLOUDRL_HOME=/tmp/somewhere`."""
    tmp_path.chmod(0o755)
    assert other_user.run(script, shared / "name", tmp_path).returncode == 0
    for below in ("home", "home/clusters/lab"):
        with pytest.raises(PermissionError, match=f"it belongs to another user .uid {other_user.UID}"):
            make_folder(shared / "name" / below)
    assert [*(shared / "name").iterdir()] == []


@pytest.mark.root
def test_a_file_of_another_user_is_not_opened(shared: Path) -> None:
    assert other_user.run('touch "$1"', shared / "lock").returncode == 0
    with pytest.raises(PermissionError):
        open_file(shared / "lock", os.O_RDWR | os.O_CREAT)


@pytest.mark.root
def test_another_user_gets_nothing(shared: Path) -> None:
    make_folder(shared / "ours")
    inside = shared / "ours" / "session"
    inside.mkdir()
    inside.chmod(0o777)  # as Ray does
    (inside / "log").write_text("secret")
    for script in ('cat "$1/log"', 'touch "$1/new"', 'ls "$1"', 'mv "$1/log" "$1/old"', 'rm -r "$1/.."'):
        assert other_user.run(script, inside).returncode != 0, script
    assert (inside / "log").read_text() == "secret"


@pytest.mark.root
def test_elsewhere_the_owner_says_nothing(tmp_path: Path) -> None:
    """A folder of the host's user, mounted into a container that runs as root."""
    (tmp_path / "mounted").mkdir()
    os.chown(tmp_path / "mounted", other_user.UID, other_user.UID)
    tmp_path.chmod(0o755)
    make_folder(tmp_path / "mounted")
    refuse_foreign(tmp_path / "mounted")
