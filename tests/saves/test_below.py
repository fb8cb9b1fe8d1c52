"""Nothing outside the folder is ever opened."""

import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudrl.saves.below import Refused, open_below

SECRET = b"the secret outside"


GOOD = {
    "a file": b"spaces",
    "step/actor/shard.pt": b"shard",
    "back\\slash": b"backslash",
    "%2e%2e": b"percent",
    "...": b"three dots",
    "grüße": b"utf-8",
    os.fsdecode(b"latin-\xfc"): b"not utf-8",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with files, and everything that could lead out of it."""
    root = tmp_path / "root"
    (root / "step" / "actor").mkdir(parents=True)
    for path, content in GOOD.items():
        (root / path).write_bytes(content)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(SECRET)
    (tmp_path / "secret").write_bytes(SECRET)
    (root / "link-to-file-outside").symlink_to(tmp_path / "secret")
    (root / "link-to-folder-outside").symlink_to(tmp_path / "outside")
    (root / "link-relative").symlink_to("../secret")
    (root / "link-to-file-inside").symlink_to("a file")
    (root / "link-to-folder-inside").symlink_to("step")
    (root / "link-to-root").symlink_to(".")
    (root / "link-to-nothing").symlink_to("nowhere")
    (root / "link-to-itself").symlink_to("link-to-itself")
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(root / "socket"))
    return root


@pytest.mark.parametrize("path", GOOD)
def test_what_is_below_is_read(root: Path, path: str) -> None:
    with open_below(root, path) as file:
        assert file.read() == GOOD[path]


def test_the_folder_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "mount").symlink_to(root)
    with open_below(tmp_path / "mount", "a file") as file:
        assert file.read() == b"spaces"


# `..` and its like: test_server_files.py has every spelling of them
ODD = ["", "/", "a file/", "step/actor", "a file/inside", "a file\0", "\0", "../secret\0.pt", "x" * 300, "\ud800"]
LEAVING = ["link-to-file-outside", "link-to-folder-outside/secret", "link-to-folder-outside", "link-relative"]
STAYING = ["link-to-file-inside", "link-to-folder-inside/actor/shard.pt", "link-to-root/a file"]


@pytest.mark.parametrize("path", [*ODD, *LEAVING, *STAYING, "link-to-nothing", "link-to-itself", "fifo", "socket"])
def test_everything_else_is_refused(root: Path, path: str) -> None:
    with pytest.raises(Refused):
        open_below(root, path)


@pytest.mark.parametrize(
    "path", ["missing", "step/missing", "missing/file", "..\\secret", "%2e%2e/secret", "....", " "]
)
def test_what_is_not_there(root: Path, path: str) -> None:
    with pytest.raises((FileNotFoundError, Refused)):
        open_below(root, path)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_below(tmp_path / "no root", "file")


PARTS = st.sampled_from(
    ["..", ".", "", "step", "actor", "shard.pt", "a file", "secret", "outside", "link-to-folder-outside",
     "link-to-root", "link-to-folder-inside", "link-to-file-outside", "fifo", "back\\slash", "..\\..", "%2e%2e",
     "\0", "~", "etc", "passwd"]
) | st.text(max_size=5)  # fmt: skip


def _open_below(folder: Path) -> list[str]:
    """What this process holds open there; threads of other tests open and close files elsewhere."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(descriptor))
    return [path for path in found if path.startswith(str(folder.resolve()))]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(PARTS, max_size=7), front=st.sampled_from(["", "/", "//", "../", "./"]))
def test_no_path_leads_out(root: Path, parts: list[str], front: str) -> None:
    path = front + "/".join(parts)
    try:
        with open_below(root, path) as file:
            opened = os.readlink(f"/proc/self/fd/{file.fileno()}")
            assert file.read() != SECRET
        assert opened == str(root.resolve() / path)
    except (Refused, FileNotFoundError):
        pass
    assert not _open_below(root.parent), "a descriptor was left open"


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_refused(root: Path) -> None:
    (root / "a file").chmod(0)
    with pytest.raises(Refused):
        open_below(root, "a file")
