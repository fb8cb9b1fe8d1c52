"""How far a download is, counted beside it."""

import json
from pathlib import Path

import pytest
from child_processes import until
from fake_clock import Clock

from cloudrl.node.download import counting, folder_bytes, progress_file
from cloudrl.protocol.progress import Fetching, Rate
from cloudrl.protocol.wire import from_json


def read(file: Path) -> Fetching | None:
    return from_json(Fetching, json.loads(file.read_text())) if file.exists() else None


def test_files_that_are_not_whole_count_too(tmp_path: Path) -> None:
    blobs, progress = tmp_path / "blobs", progress_file(tmp_path / "model.json")
    blobs.mkdir()
    (blobs / "whole").write_bytes(b"x" * 100)
    (blobs / "part.incomplete").write_bytes(b"x" * 20)
    with counting(blobs, progress, lambda: 400):
        until(lambda: read(progress) == Fetching("", 120, 400), "the count")


def test_a_hub_that_does_not_say_the_size_does_not_stop_the_count(tmp_path: Path) -> None:
    def refuse() -> int:
        raise ConnectionError("no route")

    progress = tmp_path / "progress"
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/one").write_bytes(b"x" * 7)
    with counting(tmp_path / "blobs", progress, refuse):
        until(lambda: read(progress) == Fetching("", 7, None), "the count")


def test_other_revisions_in_the_folder_do_not_make_more_than_all(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"x" * 50)
    progress = tmp_path / "progress"
    with counting(tmp_path, progress, lambda: 40):
        until(lambda: read(progress) == Fetching("", 40, 40), "the count")


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert folder_bytes(tmp_path / "none") == 0


def test_a_rate_is_that_of_the_last_ten_seconds(clock: Clock) -> None:
    rate = Rate(clock())
    assert rate.add(clock(), 0) is None
    for second in range(1, 31):
        clock.sleep(1)
        now = rate.add(clock(), second * 10 if second <= 20 else 200 + (second - 20) * 50)
    assert now == pytest.approx(50, rel=0.1)


@pytest.mark.parametrize(
    ("fetching", "text"),
    [
        (Fetching("7473 rows"), "7473 rows"),
        (Fetching("", 3_100_000_000, 12_400_000_000, 250e6), "3.1 GB of 12.4 GB, 250 MB/s, 37 s left"),
        (Fetching("", 3_100_000_000, None, 250e6), "3.1 GB so far, 250 MB/s"),
        (Fetching("", 10, 10), "10 B of 10 B"),
    ],
)
def test_it_reads_as_a_line(fetching: Fetching, text: str) -> None:
    assert str(fetching) == text
