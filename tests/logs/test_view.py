"""Lines of many logs by their times: what a line says, what the one above says, and when it was kept."""

import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kept_logs import keep

from cloudrl.errors import InputError
from cloudrl.logs.archive import Archive, FolderArchive
from cloudrl.logs.view import log_lines, moment

NOON = datetime.fromisoformat("2026-11-23T12:00:00+00:00").timestamp()
WORKER = f"logs/worker-{'ab12' * 14}-01000000-4242"


def seen(checkpoints: Path, **options: Any) -> list[tuple[float, int, str, str]]:
    """Seconds after noon, rank, log and text."""
    found = Archive(FolderArchive(checkpoints))
    return [(each.at - NOON, each.rank, each.log, each.text) for each in log_lines(found, found.files, **options)]


def said(second: int, text: str) -> bytes:
    return f"[2026-11-23 12:00:{second:02},500 I 7 7] {text}\n".encode()


def test_lines_of_all_nodes_stand_in_the_order_of_their_times(tmp_path: Path) -> None:
    keep(tmp_path, "logs/raylet.out", said(1, "a") + said(5, "e"), said(12, "g"), at=NOON + 10)
    keep(tmp_path, "logs/raylet.out", b"no time\n" + said(3, "c"), b"later\n", rank=1, at=NOON + 10)
    keep(tmp_path, f"{WORKER}.err", said(2, "b") + b"  Traceback\n" + said(4, "d"), rank=1, at=NOON + 8)
    assert [(at, rank, text.rpartition("] ")[2]) for at, rank, _, text in seen(tmp_path)] == [
        (1.5, 0, "a"), (2.5, 1, "b"), (2.5, 1, "  Traceback"), (3.5, 1, "no time"), (3.5, 1, "c"), (4.5, 1, "d"),
        (5.5, 0, "e"), (10, 1, "later"), (12.5, 0, "g"),
    ]  # fmt: skip


def test_a_log_without_times_has_those_at_which_it_was_kept(tmp_path: Path) -> None:
    keep(tmp_path, f"{WORKER}.out", b"first\n", b"second\n", b"third\n", at=NOON)
    assert seen(tmp_path) == [
        (0, 0, "worker-ab12ab12-01000000-4242.out", "first"),
        (0, 0, "worker-ab12ab12-01000000-4242.out", "second"),
        (10, 0, "worker-ab12ab12-01000000-4242.out", "third"),
    ]


def test_a_time_that_was_yet_to_come_is_not_believed_and_none_goes_back(tmp_path: Path) -> None:
    text = said(5, "a") + b"from 2031-01-01 00:00:00,000 on\n" + said(2, "late") + b"9999-99-99 99:99:99,999\n"
    keep(tmp_path, "logs/raylet.out", text, at=NOON + 10)
    assert [at for at, *_ in seen(tmp_path)] == [5.5] * 4


def test_a_node_tells_its_time_zone(tmp_path: Path) -> None:
    keep(tmp_path, "logs/raylet.out", said(5, "a"), at=NOON - 7200 + 10)
    keep(tmp_path, "agent/node.json", json.dumps({"utc_offset_s": 7200}).encode(), at=NOON)
    assert [at for at, *_ in seen(tmp_path)] == [5.5 - 7200]


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b'{"utc_offset_s": "x"}'])
def test_what_a_node_says_of_itself_may_be_lost(tmp_path: Path, content: bytes) -> None:
    keep(tmp_path, "logs/raylet.out", said(5, "a"), at=NOON + 10)
    keep(tmp_path, "agent/node.json", content, at=NOON)
    assert [at for at, *_ in seen(tmp_path)] == [5.5]


def test_only_the_surroundings_of_a_moment(tmp_path: Path) -> None:
    keep(tmp_path, "logs/raylet.out", b"".join(said(second, str(second)) for second in range(60)), at=NOON + 60)
    keep(tmp_path, "logs/old.out", said(0, "old"), at=NOON - 600)
    texts = [text.rpartition(" ")[2] for *_, text in seen(tmp_path, around=NOON + 60)]
    assert texts == [str(second) for second in range(30, 60)]


def test_only_what_contains_a_pattern_and_logs_of_a_name(tmp_path: Path) -> None:
    keep(tmp_path, "logs/raylet.out", b"\x1b[36mone\x1b[0m two\nthree\n", at=NOON)
    keep(tmp_path, f"{WORKER}.err", b"one two three\n", at=NOON)
    keep(tmp_path, "state/job.json", b'{"one two": 1}', at=NOON)
    assert seen(tmp_path, pattern=re.compile("^one two$"))[0][2:] == ("raylet.out", "one two")
    assert [log for *_, log, _ in seen(tmp_path, name="worker-*-4242.err")] == ["worker-ab12ab12-01000000-4242.err"]


def test_a_log_is_called_by_its_name_however_often_it_was_rotated(tmp_path: Path) -> None:
    for path in ("logs/raylet.out", "logs/raylet.out~2", "logs/raylet.out.1", "agent/agent.log", "logs/events/a.log~3"):
        keep(tmp_path, path, b"one\n")
    names = {name: {log for *_, log, _ in seen(tmp_path, name=name)} for name in ("raylet.out", "agent.log", "a.log")}
    assert names == {
        "raylet.out": {"raylet.out", "raylet.out~2"}, "agent.log": {"agent/agent.log"}, "a.log": {"events/a.log~3"},
    }  # fmt: skip


def test_long_ids_are_cut(tmp_path: Path) -> None:
    keep(tmp_path, f"logs/python-core-driver-01000000{'f' * 48}_4242.log", b"one\n")
    assert seen(tmp_path)[0][2] == "python-core-driver-01000000_4242.log"


def test_files_that_were_sent_have_their_own_names(tmp_path: Path) -> None:
    """Ray unpacks a package below the session of its node (Ray 2.60, _private/runtime_env/packaging.py)."""
    unpacked = f"/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_{'0a' * 16}"
    keep(tmp_path, "logs/job-driver-one.log", f'File "{unpacked}/cloudrl_files/604ecff1/reward.py", line 2\n'.encode())
    keep(tmp_path, "logs/raylet.out", f"deleting {unpacked}\n".encode())
    assert [text for *_, text in seen(tmp_path, pattern=re.compile("reward"))] == ['File "./reward.py", line 2']
    assert f"deleting {unpacked}" in {text for *_, text in seen(tmp_path)}


def test_a_moment_as_it_is_typed() -> None:
    newest = datetime.fromisoformat("2026-11-23 12:00:00").astimezone()
    for text, expected in {
        "11:30": newest - timedelta(minutes=30),
        "11:59:59": newest - timedelta(seconds=1),
        "12:00:20": newest + timedelta(seconds=20),
        "12:30": newest - timedelta(hours=23, minutes=30),
        "2026-11-20 01:02:03": newest - timedelta(days=3, hours=10, minutes=57, seconds=57),
        "2026-11-20T01:02": newest - timedelta(days=3, hours=10, minutes=58),
    }.items():
        assert moment(text, newest.timestamp()) == expected.timestamp(), text
    assert moment("2026-11-23T12:00:00+00:00", 0) == NOON
    for text in ("12:00Z", "2026-11-23T12:00:00Z", "07:00:00-05:00", "07-05:00", "20:00+08:00"):
        assert moment(text, NOON + 7200) == NOON, text
    assert moment("12:00Z", NOON - 7200) == NOON - 86400
    for wrong in ("", "noon", "25:00", "2026-13-01"):
        with pytest.raises(InputError, match="is not a time"):
            moment(wrong, newest.timestamp())
