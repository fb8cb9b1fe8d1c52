"""A folder appears whole or not at all."""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudrl.checkpoints.staging import staged
from cloudrl.errors import CheckpointError, InputError


def test_it_appears_at_the_end(tmp_path: Path) -> None:
    with staged(tmp_path / "below" / "model", 10) as folder:
        (folder / "x").write_text("1")
        assert not (tmp_path / "below" / "model").exists()
    assert [path.name for path in (tmp_path / "below" / "model").iterdir()] == ["x"]
    assert [path.name for path in (tmp_path / "below").iterdir()] == ["model"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    failing = pytest.raises(RuntimeError)
    with failing, staged(tmp_path / "model", 10) as folder:
        (folder / "x").write_text("1")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_one_left_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / ".model.merging" / "old").mkdir(parents=True)
    (tmp_path / ".model.merging" / "model.safetensors").write_text("half")
    (tmp_path / ".model.merging" / ".cloudrl.lock").write_text("")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_text("")
    (tmp_path / ".model.merging" / "old" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / ".model.merging" / "link").symlink_to(tmp_path / "elsewhere")
    with staged(tmp_path / "model", 10) as folder:
        (folder / "x").write_text("1")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["x"]
    assert (tmp_path / "elsewhere" / "kept").exists(), "links are removed, not followed"


def test_one_that_was_killed_before_it_had_its_lock(tmp_path: Path) -> None:
    (tmp_path / ".model.merging").mkdir()
    with staged(tmp_path / "model", 10) as folder:
        (folder / "x").write_text("1")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("kind", ["folder", "link", "dangling link", "file", "link to ours"])
def test_what_the_user_has_under_that_name_is_not_touched(tmp_path: Path, kind: str) -> None:
    users, staging = tmp_path / "users", tmp_path / ".model.merging"
    users.mkdir()
    (users / "thesis").write_text("years of work")
    if kind == "folder":
        users.rename(staging)
        users = staging
    elif kind == "file":
        staging.write_text("years of work")
    else:
        staging.symlink_to(users if "dangling" not in kind else tmp_path / "nowhere")
    if kind == "link to ours":
        (users / ".cloudrl.lock").write_text("")
    with pytest.raises(InputError, match=r"\.model\.merging is in the way") as caught:
        staged(tmp_path / "model", 10).__enter__()
    assert str(caught.value.hint) == "Move it away, or name another folder than model"
    assert (users / "thesis").read_text() == "years of work"
    assert os.path.lexists(staging)
    assert not (tmp_path / "model").exists()


def test_a_lock_whose_folder_another_process_has_just_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder may by now be that of a third process."""

    def ends_meanwhile(*_: object) -> None:
        shutil.rmtree(tmp_path / ".model.merging")
        (tmp_path / ".model.merging").mkdir()
        (tmp_path / ".model.merging" / ".cloudrl.lock").write_text("")
        (tmp_path / ".model.merging" / "third").write_text("1")

    monkeypatch.setattr(fcntl, "flock", ends_meanwhile)
    with pytest.raises(CheckpointError, match="another process is merging"):
        staged(tmp_path / "model", 10).__enter__()
    assert (tmp_path / ".model.merging" / "third").exists()


def test_while_one_writes_another_is_refused(tmp_path: Path) -> None:
    with staged(tmp_path / "model", 10) as folder:
        (folder / "x").write_text("1")
        with pytest.raises(CheckpointError, match="another process is merging"):
            staged(tmp_path / "model", 10).__enter__()
        assert (folder / "x").read_text() == "1"
    assert (tmp_path / "model" / "x").read_text() == "1"


def test_a_target_that_appears_meanwhile_is_not_touched(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="exists already"), staged(tmp_path / "model", 10):
        (tmp_path / "model").mkdir()
    assert list((tmp_path / "model").iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_dangling_link_is_something_too(tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="exists already"):
        staged(tmp_path / "model", 10).__enter__()


def refused(tmp_path: Path, words: str, size_bytes: int = 10, in_it: Callable[[Path], object] = lambda _: None) -> str:
    """Nothing is left behind; returns the hint."""
    failing = pytest.raises((CheckpointError, InputError), match=words)
    with failing as caught, staged(tmp_path / "model", size_bytes) as folder:
        in_it(folder)
    assert list(tmp_path.iterdir()) == []
    return str(caught.value.hint)


def test_no_room(tmp_path: Path) -> None:
    assert "another disk" in refused(tmp_path, "1152922 TB are to be written, and 67.1 MB must stay free", 1 << 60)


def test_small_sizes_are_told_in_their_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3_400_000))
    assert refused(tmp_path, "has 3.4 MB free; 11.5 kB are to be written, and 67.1 MB must stay free", 11_500)


def test_what_the_file_system_refuses_is_named(tmp_path: Path) -> None:
    words = r"x{300} cannot be written: File name too long"
    assert "Nothing is left behind" in refused(tmp_path, words, in_it=lambda at: (at / ("x" * 300)).write_text("1"))


def test_a_folder_that_is_removed_meanwhile(tmp_path: Path) -> None:
    refused(tmp_path, r"\.lock cannot be written: No such file", in_it=shutil.rmtree)


def fails(number: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_disk_that_cannot_say_how_much_room_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", fails(errno.EIO))
    refused(tmp_path, "model cannot be written: Input/output error")


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", fails(errno.ENOLCK))
    assert "on a local disk" in refused(tmp_path, "its file system has no locks")


@pytest.mark.parametrize("sync", [True, False])
def test_the_disk_has_all_of_it_before_it_appears_and_its_name_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    target, before, after = tmp_path / "model", [], []
    monkeypatch.setattr(os, "fsync", lambda file: (after if target.exists() else before).append(os.stat(file)))
    with staged(target, 10, sync=sync) as folder:
        (folder / "below").mkdir()
        (folder / "below" / "x").write_text("1")
    written = [target, target / "below", target / "below" / "x"]
    assert {info.st_ino for info in before} == ({path.stat().st_ino for path in written} if sync else set())
    assert [info.st_ino for info in after] == ([tmp_path.stat().st_ino] if sync else [])


def test_no_such_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        staged(tmp_path / "file" / "model", 1).__enter__()


def test_the_lock_is_given_back(tmp_path: Path) -> None:
    with staged(tmp_path / "model", 10) as folder:
        lock = os.open(folder / ".cloudrl.lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(lock)
