"""Copies that are not needed any more go, and nothing else."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cloudrl.node.copied_files import clear_copies, note_copies
from cloudrl.protocol.step_copies import ClearOrder, WantedFile
from cloudrl.saves.below import Refused

STEP, DATE = "run/global_step_3", 1.7e9 + 0.123456789


def _write(root: Path, name: str, date: float = DATE) -> WantedFile:
    path = root / STEP / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"abc")
    os.utime(path, (date, date))
    return WantedFile(f"{STEP}/{name}", 3, path.stat().st_mtime)


def _left(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))


def test_a_node_clears_what_it_has_copied_and_keeps_what_its_ranks_have_saved(tmp_path: Path) -> None:
    own, copy = _write(tmp_path, "actor/own.pt"), _write(tmp_path, "actor/copy.pt")
    note_copies(tmp_path, STEP, [copy])

    assert clear_copies(tmp_path, ClearOrder(0, STEP, (own, copy))) == 3
    assert _left(tmp_path) == ["own.pt"]
    assert clear_copies(tmp_path, ClearOrder(0, STEP, (own, copy))) == 0


def test_a_copy_that_a_rank_has_saved_again_stays(tmp_path: Path) -> None:
    copy = _write(tmp_path, "actor/copy.pt")
    note_copies(tmp_path, STEP, [copy])
    again = _write(tmp_path, "actor/copy.pt", DATE + 300)

    assert clear_copies(tmp_path, ClearOrder(0, STEP, (copy,))) == 0
    assert clear_copies(tmp_path, ClearOrder(0, STEP, (again,))) == 0
    assert _left(tmp_path) == ["copy.pt"]


def test_a_step_of_copies_alone_leaves_no_folder(tmp_path: Path) -> None:
    first, second = _write(tmp_path, "data.pt"), _write(tmp_path, "actor/huggingface/config.json")
    note_copies(tmp_path, STEP, [first])
    note_copies(tmp_path, STEP, [second])

    assert clear_copies(tmp_path, ClearOrder(0, STEP, (first, second))) == 6
    assert not (tmp_path / STEP).exists()


def test_without_a_list_or_with_a_broken_one_everything_stays(tmp_path: Path) -> None:
    copy = _write(tmp_path, "data.pt")
    assert clear_copies(tmp_path, ClearOrder(0, STEP, (copy,))) == 0
    for text in ("[", "[]", '{"run/global_step_3/data.pt": "x"}'):
        (tmp_path / STEP / ".cloudrl_copies.json").write_text(text)
        assert clear_copies(tmp_path, ClearOrder(0, STEP, (copy,))) == 0
    assert _left(tmp_path) == ["data.pt"]


def test_no_link_is_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    outside = _write(tmp_path / "outside", "data.pt")
    copy = _write(root, "actor/data.pt")
    note_copies(root, STEP, [replace(outside, path=copy.path)])
    (root / STEP / "actor").rename(root / "actor")
    (root / STEP / "actor").symlink_to(tmp_path / "outside" / STEP)

    with pytest.raises(Refused):
        clear_copies(root, ClearOrder(0, STEP, (copy,)))
    assert _left(tmp_path / "outside") == ["data.pt"]
