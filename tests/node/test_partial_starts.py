"""Starts on which other nodes never came are counted by rank 0, and end."""

from __future__ import annotations

from pathlib import Path

from cloudrl.node.partial_starts import ENOUGH, PartialStarts


def starts(folder: Path) -> PartialStarts:
    """What the agent of the next attempt knows: the folder alone."""
    return PartialStarts(folder, "run")


def record(folder: Path) -> Path:
    return folder / ".cloudrl" / "starts" / "run.json"


def test_so_many_in_a_row_are_enough_and_stay_so(tmp_path: Path) -> None:
    assert [starts(tmp_path).begin([1, 2]) for _ in range(ENOUGH)] == list(range(ENOUGH))
    for _ in range(2):
        last = starts(tmp_path)
        assert (last.begin([1, 2]), last.missing) == (ENOUGH, (1, 2))
        last.forget()  # its own end is no reason to try again


def test_the_ranks_that_never_came_are_remembered(tmp_path: Path) -> None:
    for _ in range(ENOUGH):
        each = starts(tmp_path)
        each.begin([1, 2])
        each.note([2])
    last = starts(tmp_path)
    assert (last.begin([1, 2]), last.missing) == (ENOUGH, (2,))


def test_once_all_ranks_come_the_count_begins_anew(tmp_path: Path) -> None:
    for _ in range(ENOUGH - 1):
        starts(tmp_path).begin([1])
    whole = starts(tmp_path)
    whole.begin([1])
    whole.note([])
    assert not record(tmp_path).exists()
    assert starts(tmp_path).begin([1]) == 0


def test_ranks_that_are_there_at_once_count_for_nothing(tmp_path: Path) -> None:
    for _ in range(ENOUGH):
        starts(tmp_path).begin([1])
    assert starts(tmp_path).begin([]) == 0
    assert not record(tmp_path).exists()


def test_a_record_that_broke_off_is_none(tmp_path: Path) -> None:
    starts(tmp_path).begin([1])
    record(tmp_path).write_text('{"times": 4, "mis')
    assert starts(tmp_path).begin([1]) == 0
