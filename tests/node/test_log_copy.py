"""Logs as they grow, are rotated and moved, on a volume that may be full."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.logs.archive import decompressed
from cloudrl.node import log_copy
from cloudrl.node.log_copy import Bounds, LogCopy
from cloudrl.node.masking import Masker
from cloudrl.saves.archive import PIECE_BYTES
from cloudrl.saves.below import open_below

MASKER = Masker(["the-secret-value"])


class Logs:
    """A session's logs, and what is kept of them."""

    def __init__(self, folder: Path, **bounds: int) -> None:
        self.folder, self.target = folder / "logs", folder / "archive" / "kept"
        self.folder.mkdir(parents=True)
        self.copy = LogCopy(self.target, {"logs": self.folder}, Bounds(**bounds))

    def add(self, name: str, text: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.write(text)

    def keep(self, *, is_last: bool = False) -> None:
        self.copy.copy(lambda: MASKER, is_last=is_last)

    def pieces(self) -> dict[str, bytes]:
        """Path below the session -> its text."""
        found = sorted(self.target.rglob("*.gz"), key=lambda path: (path.parent, int(path.name.split(".")[-2])))
        return {str(each.relative_to(self.target)): text_of(each) for each in found}

    def text(self, name: str) -> bytes:
        stems = {path: path.rpartition(".gz")[0].rpartition(".")[0] for path in self.pieces()}
        return b"".join(text for path, text in self.pieces().items() if stems[path] == f"logs/{name}")


def text_of(piece: Path) -> bytes:
    return b"".join(chunk for chunk, _ in decompressed(piece.read_bytes()))


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


@given(st.lists(st.lists(st.sampled_from([b"a\n", b"the-secret", b"-value", b"\r", b"x", b"\n", b""]), max_size=6)))
def test_however_a_log_grows_all_of_it_is_kept_and_no_secret(
    tmp_path_factory: pytest.TempPathFactory, passes: list[list[bytes]]
) -> None:
    logs = Logs(tmp_path_factory.mktemp("run"))
    for written in passes:
        logs.add("raylet.out", b"".join(written))
        logs.keep()
        assert logs.text("raylet.out").endswith((b"\n", b"\r")) or not logs.text("raylet.out")
    logs.keep(is_last=True)
    whole = b"".join(map(b"".join, passes))
    assert logs.text("raylet.out") == whole.replace(b"the-secret-value", b"***")


def test_a_secret_that_comes_in_two_reads_is_not_kept(logs: Logs) -> None:
    logs.add("w.err", b"before\nthe-secret")
    logs.keep()
    assert logs.text("w.err") == b"before\n"
    logs.add("w.err", b"-value after")
    logs.keep(is_last=True)
    assert logs.text("w.err") == b"before\n*** after"


def test_a_secret_at_the_end_of_a_chunk_is_not_kept(logs: Logs) -> None:
    """A MiB is read at a time."""
    line = b"x" * 1000 + b" the-secret-value\n"
    logs.add("w.err", line * 3000)
    logs.keep()
    assert logs.text("w.err") == line.replace(b"the-secret-value", b"***") * 3000


def test_a_line_that_is_too_long_is_left_out(logs: Logs) -> None:
    logs.add("w.out", b"first\n" + b"y" * (5 << 19) + b"the-secret-value")
    logs.keep()
    logs.add("w.out", b"still the same line\nlast\n")
    logs.keep()
    assert logs.text("w.out") == b"first\n[cloudrl: a line of more than 1 MiB was not kept]\nlast\n"


def test_a_log_that_is_rotated_or_moved_goes_on_where_it_was(logs: Logs) -> None:
    logs.add("raylet.out", b"one\n")
    logs.add("worker-1.out", b"alive\n")
    logs.keep()
    logs.add("raylet.out", b"two\n")
    (logs.folder / "raylet.out").rename(logs.folder / "raylet.out.1")
    logs.add("raylet.out", b"three\n")
    logs.add("worker-1.out", b"dead\n")
    (logs.folder / "old").mkdir()
    (logs.folder / "worker-1.out").rename(logs.folder / "old" / "worker-1.out")
    logs.keep()
    assert logs.text("raylet.out") == b"one\ntwo\n"
    assert logs.text("raylet.out~2") == b"three\n"
    assert logs.text("worker-1.out") == b"alive\ndead\n"


def test_a_log_that_was_emptied_is_another_file(logs: Logs) -> None:
    for text in (b"a first text\n", b"b\n", b"b, but of another beginning\n"):
        (logs.folder / "x.log").write_bytes(text)
        logs.keep()
    assert [logs.text(f"x.log{number}") for number in ("", "~2", "~3")] == [
        b"a first text\n", b"b\n", b"b, but of another beginning\n",
    ]  # fmt: skip


def test_what_is_no_log_or_has_variables_in_clear_is_left_out(logs: Logs, tmp_path: Path) -> None:
    (tmp_path / "secret.log").write_bytes(b"secret\n")
    (logs.folder / "link.log").symlink_to(tmp_path / "secret.log")
    (logs.folder / "more").symlink_to(tmp_path)
    os.mkfifo(logs.folder / "pipe.log")
    for name in (
        "runtime_env_agent.log",
        "runtime_env_agent.log.1",
        "key",
        "evil\x1b[2J.log",
        ".hidden.log",
        "a b.log",
    ):
        logs.add(name, b"secret\n")
    logs.add("events/event_GCS.log", b"{}\n")
    logs.keep()
    assert list(logs.pieces()) == ["logs/events/event_GCS.log.0.gz"]


def test_how_busy_nodes_were_is_kept_beside_the_agents_logs(tmp_path: Path) -> None:
    folders = {"agent": tmp_path / "run", "logs": tmp_path / "session"}
    for folder in folders.values():
        folder.mkdir()
        (folder / "usage.jsonl").write_text('{"at":1}\n')
        (folder / "other.jsonl").write_text("{}\n")
    LogCopy(tmp_path / "kept", folders).copy(lambda: MASKER)
    assert [str(each.relative_to(tmp_path / "kept")) for each in (tmp_path / "kept").rglob("*.gz")] == [
        "agent/usage.jsonl.0.gz"
    ]


def test_only_the_owner_reads_what_is_kept(logs: Logs) -> None:
    logs.add("raylet.out", b"one\n")
    logs.keep()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (logs.target / "logs").rglob("*")}
    assert modes == {"raylet.out.0.gz": 0o600}
    made = [logs.target / "logs", logs.target, logs.target.parent]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in made] == [0o700] * 3


def test_of_a_long_log_the_beginning_and_the_end_stay(tmp_path: Path) -> None:
    logs = Logs(tmp_path, pieces=3, driver_pieces=5)
    lines = [b"%07d\n" % number * (1 << 17) for number in range(16)]
    for name in ("raylet.out", "job-driver-a.log"):
        for each in lines:
            logs.add(name, each)
            logs.keep()
    numbers = {path.rpartition(".gz")[0].rpartition(".")[2] for path in logs.pieces() if "raylet" in path}
    assert numbers == {"0", "6", "7"}
    assert logs.text("raylet.out") == b"".join(lines[:2] + lines[12:])
    assert len([path for path in logs.pieces() if "driver" in path]) == 5
    assert max(map(len, logs.pieces().values())) <= PIECE_BYTES


def test_all_together_have_a_limit_and_the_silent_ones_go_first(tmp_path: Path) -> None:
    logs = Logs(tmp_path, total_bytes=6000)
    for name in ("a.log", "b.log", "job-driver-a.log", "d.log", "e.log"):
        logs.add(name, os.urandom(2000).hex().encode() + b"\n")  # about 2300 bytes when it is compressed
        logs.keep()
    kept = {path.split("/")[1] for path in logs.pieces()}
    assert kept == {"job-driver-a.log.0.gz", "e.log.0.gz"}
    logs.add("a.log", b"again\n")
    logs.keep()
    assert logs.text("a.log") == b"again\n"
    assert "logs/a.log.1.gz" in logs.pieces(), "the gap is told"


def test_a_flood_is_read_in_parts(tmp_path: Path) -> None:
    logs = Logs(tmp_path, pass_bytes=2 << 20)
    logs.add("a.log", b"z" * 999 + b"\n")
    logs.add("flood.log", b"flooding\n" * (1 << 19))
    logs.keep()
    assert 0 < len(logs.text("flood.log")) <= 3 << 20
    for _ in range(3):
        logs.keep()
    assert logs.text("flood.log") == b"flooding\n" * (1 << 19)


def test_a_flood_holds_up_no_other_log_and_the_limit_of_all_holds(tmp_path: Path) -> None:
    logs = Logs(tmp_path, pass_bytes=1 << 20, total_bytes=4 << 10)
    logs.add("w.log", os.urandom(2000).hex().encode() + b"\n")
    logs.add("x.log", os.urandom(2000).hex().encode() + b"\n")
    logs.keep()
    for _ in range(2):
        logs.add("flood.log", b"flooding\n" * (1 << 18))
        logs.add("raylet.out", b"seen\n")
        logs.keep()
    assert logs.text("raylet.out") == b"seen\n" * 2
    assert not logs.text("w.log"), "the oldest goes while the flood goes on"


def test_a_log_that_cannot_be_opened_or_read_holds_up_no_other(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.log", "b.log", "c.log"):
        logs.add(name, name.encode() + b"\n")
    inode, read = (logs.folder / "b.log").stat().st_ino, os.pread

    def opened(root: Path, path: str) -> BinaryIO:
        if path == "a.log":
            raise OSError(errno.EMFILE, "Too many open files")
        return open_below(root, path)

    def pread(descriptor: int, count: int, offset: int) -> bytes:
        if os.fstat(descriptor).st_ino == inode:
            raise OSError(errno.EIO, "Input/output error")
        return read(descriptor, count, offset)

    monkeypatch.setattr(log_copy, "open_below", opened)
    monkeypatch.setattr(os, "pread", pread)
    logs.keep()
    assert list(logs.pieces()) == ["logs/c.log.0.gz"]


def test_a_volume_that_is_full_for_a_while_costs_nothing(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.add("raylet.out", b"one\n")
    logs.keep()
    logs.add("raylet.out", b"two\n")
    write = os.write

    def half(descriptor: int, content: bytes) -> int:
        monkeypatch.setattr(os, "write", full)
        return write(descriptor, content[: len(content) // 2])

    def full(_descriptor: int, _content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            logs.keep()
    monkeypatch.setattr(os, "write", write)
    logs.add("raylet.out", b"three\n")
    logs.keep()
    assert logs.text("raylet.out") == b"one\ntwo\nthree\n"


def test_what_was_kept_until_the_node_died_can_be_read(logs: Logs) -> None:
    for text in (b"one\n", b"two\n"):
        logs.add("raylet.out", text)
        logs.keep()
    piece = logs.target / "logs" / "raylet.out.0.gz"
    piece.write_bytes(piece.read_bytes()[:-5])
    assert text_of(piece).startswith(b"one\n")
