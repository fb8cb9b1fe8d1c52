"""The archive as it is read: pieces in their order, gaps, cut members, what is not a piece, and Ray's state."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kept_logs import SESSION, keep

from cloudrl.errors import InputError
from cloudrl.logs.archive import Archive, FolderArchive, decompressed
from cloudrl.protocol.ray_state import RayState
from cloudrl.protocol.wire import to_json
from cloudrl.saves.archive import Piece, parse_piece, state_file
from cloudrl.saves.names import file_name


def archive(checkpoints: Path) -> Archive:
    return Archive(FolderArchive(checkpoints))


def lines(checkpoints: Path) -> list[str]:
    """Of the only file."""
    found = archive(checkpoints)
    [file] = found.files
    return list(found.lines(file))


def test_a_file_is_its_pieces_in_order_and_a_gap_is_told(tmp_path: Path) -> None:
    keep(tmp_path, "logs/raylet.out", b"ten\n", number=10)
    keep(tmp_path, "logs/raylet.out", b"one\ntw", b"o\r\n", number=0)
    keep(tmp_path, "logs/raylet.out", b"nine\n", number=9)
    gap = "[cloudrl: about 16 MiB of this file were not kept]"
    assert [line for line in lines(tmp_path) if line] == ["one", "two", gap, "nine", "ten"]


@given(st.binary(max_size=300), st.integers(0, 400))
def test_a_member_that_was_cut_off_is_read_as_far_as_it_goes(content: bytes, cut: int) -> None:
    first, second = gzip.compress(b"whole\n"), gzip.compress(content)
    found = b"".join(chunk for chunk, _ in decompressed(first + second[: min(cut, len(second))]))
    assert found.startswith(b"whole\n")
    assert content.startswith(found[len(b"whole\n") :])
    assert cut < len(second) or found == b"whole\n" + content


def test_lines_have_the_time_at_which_they_were_kept(tmp_path: Path) -> None:
    keep(tmp_path, "logs/raylet.out", b"one\ntwo\n", b"three\n", at=1000)
    keep(tmp_path, "logs/raylet.out", b"four\n", number=1, at=2000)
    found = archive(tmp_path)
    [file] = found.files
    assert list(found.dated_lines(file)) == [("one", 1000), ("two", 1000), ("three", 1010), ("four", 2000)]
    assert list(found.dated_lines(file, since=1011)) == [("four", 2000)]


@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=300))
@example("é1", "-x")
@example("x" * 300, "y" * 300)
def test_whatever_a_run_and_a_job_are_called_what_is_written_is_found(run: str, job: str) -> None:
    assert parse_piece(Piece(file_name(run), 0, SESSION, state_file(job), 0).where) is not None


@given(st.binary(max_size=200))
def test_what_is_no_gzip_is_no_text_and_no_failure(content: bytes) -> None:
    assert all(isinstance(chunk, bytes) for chunk, _ in decompressed(content))


def test_a_bar_of_progress_is_lines_and_a_line_without_end_comes_in_parts(tmp_path: Path) -> None:
    keep(tmp_path, "logs/worker-1.err", b"10%\r20%\r\n" + b"x" * (3 << 20))
    bar, more, *long = lines(tmp_path)
    assert (bar, more, "".join(long)) == ("10%", "20%", "x" * (3 << 20))


def test_only_pieces_are_read_and_no_link_is_followed(tmp_path: Path) -> None:
    real = keep(tmp_path, "logs/raylet.out", b"ours\n")
    (tmp_path / "outside.gz").write_bytes(gzip.compress(b"theirs\n"))
    for name in ("gcs.out.0.gz", "raylet.out.1.gz"):
        (real.parent / name).symlink_to(tmp_path / "outside.gz")
    for name in ("raylet.out.gz", "raylet.out.00.gz", "evil\x1b[2J.out.0.gz", "core.0.gz.part", ".hidden.out.0.gz"):
        (real.parent / name).write_bytes(gzip.compress(b"theirs\n"))
    assert lines(tmp_path) == ["ours"]


@pytest.mark.parametrize(
    "where",
    [
        "run/rank-0/session_1/logs/../../x.out.0.gz", "run/rank-0/session_1/logs/a/b/c/d.out.0.gz",
        "run/rank-01/session_1/logs/x.out.0.gz", "../rank-0/session_1/logs/x.out.0.gz",
        "run/rank-0/session_latest/../logs/x.out.0.gz", "run/rank-0/other/logs/x.out.0.gz",
        "run/rank-0/session_1/secrets/x.out.0.gz", "run/rank-0/session_1/logs/x\n.out.0.gz",
    ],
)  # fmt: skip
def test_no_other_path_is_a_piece(where: str) -> None:
    assert parse_piece(where) is None


def test_a_path_of_a_piece_is_read_back() -> None:
    piece = Piece("run-1", 12, SESSION, "logs/events/event_GCS.log~2", 3, 5, 7.0)
    assert parse_piece(piece.where, 5, 7.0) == piece


def test_the_newest_run_is_meant_unless_another_is_named(tmp_path: Path) -> None:
    for at, run in ((1000, "new"), (999, "old")):
        for rank in (0, 1):
            keep(tmp_path, "logs/raylet.out", b"x", run=run, rank=rank, at=at)
    found = archive(tmp_path)
    assert found.runs == ("new", "old")
    assert [(each.run, each.rank) for each in found.of()] == [("new", 0), ("new", 1)]
    assert [(each.run, each.rank) for each in found.of("old", rank=1)] == [("old", 1)]
    assert found.of(session="session_other") == ()
    with pytest.raises(InputError, match="no logs of run 'gone' are kept; there are: new, old"):
        found.of("gone")


def test_a_folder_without_an_archive_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no logs are kept in"):
        archive(tmp_path).of()


def test_the_state_of_a_job_and_its_log_are_found_by_its_id(tmp_path: Path) -> None:
    state = RayState(5.0, {"submission_id": "grpo.1"}, tasks=({"error_type": "WORKER_DIED"},))
    keep(tmp_path, state_file("grpo.1"), json.dumps(to_json(state)).encode())
    keep(tmp_path, "logs/job-driver-grpo.1.log", b"step:1 - a:1\n")
    found = archive(tmp_path)
    assert found.state("grpo.1") == state
    log = found.driver_log("grpo.1")
    assert log is not None
    assert list(found.lines(log)) == ["step:1 - a:1"]
    assert found.state("other") is None is found.driver_log("other")


def test_a_job_that_was_submitted_again(tmp_path: Path) -> None:
    """Of the same name, so that its log is another file."""
    keep(tmp_path, "logs/job-driver-a.log", b"first\n", at=1000)
    keep(tmp_path, "logs/job-driver-b.log", b"other\n", at=1010)
    keep(tmp_path, "logs/job-driver-a.log~2", b"second\n", at=1020)
    found = archive(tmp_path)
    assert found.jobs == ("b", "a")
    log = found.driver_log("a")
    assert log is not None
    assert list(found.lines(log)) == ["second"]


def test_the_runs_of_a_cluster(tmp_path: Path) -> None:
    for run, name in (("r1", "lab"), ("r2", "other"), ("r3", "lab")):
        keep(tmp_path, "agent/node.json", json.dumps({"cluster": name}).encode(), run=run)
        keep(tmp_path, f"logs/job-driver-{run}.log", b"x", run=run)
    keep(tmp_path, "agent/node.json", b"[", run="r4")
    found = archive(tmp_path)
    assert found.runs_of("lab") == {"r1", "r3"}
    assert set(found.jobs_of(found.runs_of("lab"))) == {"r1", "r3"}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"saved_at": "x", "job": {}}', b"[" * 5000])
def test_a_state_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    keep(tmp_path, state_file("job"), content)
    assert archive(tmp_path).state("job") is None
