"""Hostile reward functions end within their bounds of time, memory and output, and harm nothing."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from patience import SLOWER
from tried_reward import HANGS_SECONDS, HEAD, LOOPS_SECONDS, ROWS, SECONDS, candidate, faults, tried

from cloudrl.rewards.examine import examine

pytestmark = pytest.mark.io

LOOP = f"{HEAD}    while True:\n        pass\n    return 1.0\n"
HOSTILE = [
    ("loop while it is loaded", f"while True:\n    pass\n{HEAD}    return 1.0\n", "time"),
    ("a regular expression", f"import re\n{HEAD}    return bool(re.match('(a+)+$', 'a' * 60 + 'b'))\n", "time"),
    ("exit", f"import os\n{HEAD}    os._exit(0)\n    return 1.0\n", "exit"),
    ("exit while it is loaded", f"import os\nos._exit(0)\n{HEAD}    return 1.0\n", "exit"),
    ("kill", f"import os\n{HEAD}    os.kill(os.getpid(), 9)\n    return 1.0\n", "exit"),
    ("a crash", f"import ctypes\n{HEAD}    ctypes.string_at(0)\n    return 1.0\n", "exit"),
    ("10 GB", f"{HEAD}    held = [b'x' * (1 << 20) for _ in range(10_000)]\n    return 1.0\n", "memory"),
    ("10 GB at once", f"held = bytearray(10 << 30)\n{HEAD}    return 1.0\n", "memory"),
    ("output", f"{HEAD}    while True:\n        print('x' * 1_000_000)\n    return 1.0\n", "output"),
]


@pytest.mark.parametrize(("text", "kind"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_it_ends_and_is_named(tmp_path: Path, text: str, kind: str) -> None:
    started = time.monotonic()
    done = tried(text, tmp_path, seconds=LOOPS_SECONDS if kind == "time" else SECONDS)
    assert time.monotonic() - started < SECONDS + 10 * SLOWER
    assert kind in [fault.kind for fault in done.errors]
    assert all(fault.text.startswith("./reward.py") for fault in done.faults)


def test_where_it_hangs(tmp_path: Path) -> None:
    started = time.monotonic()
    [fault] = tried(LOOP, tmp_path, seconds=HANGS_SECONDS).errors
    assert time.monotonic() - started < SECONDS + 10 * SLOWER
    assert fault.kind == "time"
    assert fault.line in (2, 3)
    assert fault.text.startswith(f"./reward.py:{fault.line}: compute_score did not return within ")


def test_with_the_rights_of_the_user_it_is_bounded_in_time(tmp_path: Path) -> None:
    done = examine(candidate(LOOP, tmp_path), ROWS, shown="./reward.py", isolated=False, seconds=LOOPS_SECONDS)
    assert [fault.kind for fault in done.errors] == ["time"]


def test_its_children_end_with_it(tmp_path: Path) -> None:
    """Each sleeps for an odd time, by which it is found."""
    name = f"31{os.getpid()}"
    sleeper = f"[sys.executable, '-c', 'import time; time.sleep({name})']"
    body = f"    for _ in range(20):\n        subprocess.Popen({sleeper}, start_new_session=True)\n    return 1.0\n"
    done = tried(f"import subprocess, sys\n{HEAD}{body}", tmp_path, ROWS[:1])
    assert done.trial is not None
    assert done.trial.scored
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"time.sleep({name})" not in listed


def test_a_fork_bomb(tmp_path: Path) -> None:
    started = time.monotonic()
    tried(f"import os\n{HEAD}    while True:\n        os.fork()\n    return 1.0\n", tmp_path, seconds=HANGS_SECONDS)
    assert time.monotonic() - started < SECONDS + 10 * SLOWER


def test_nothing_of_this_machine_is_seen_or_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = tmp_path / "canary"
    canary.write_text("as it was")
    canary.chmod(0o666)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "s" * 30)
    text = f"""import os
def attempt(what):
    try:
        return what()
    except Exception as error:
        return type(error).__name__
{HEAD}    print("gh" + "p_" + "0123456789abcdefghij", os.environ.get("HF_TOKEN"))
    print(attempt(lambda: open({str(canary)!r}).read()))
    print(attempt(lambda: open({str(canary)!r}, "w")))
    print(attempt(lambda: os.kill(-1, 9)))
    return float(ground_truth in solution_str)
"""
    done = tried(text.replace("    print(attempt(lambda: os.kill(-1, 9)))\n", ""), tmp_path)
    assert done.faults == ()
    assert done.trial is not None
    assert done.trial.output.splitlines()[:3] == ["*** None", "FileNotFoundError", "FileNotFoundError"]
    tried(text, tmp_path)  # ends itself, and nothing else
    assert canary.read_text() == "as it was"


def test_it_may_write_records_of_its_own(tmp_path: Path) -> None:
    forged = "    open('/.cloudrl/records/000000.0', 'w').write('[1, {\"event\": ')\n"
    assert faults(f"{HEAD}{forged}    return float(ground_truth in solution_str)\n", tmp_path) == []


def test_one_that_waits_for_the_network_may_only_wait_here(tmp_path: Path) -> None:
    text = f"""import socket, time
{HEAD}    try:
        socket.create_connection(("192.0.2.1", 80))
    except OSError:
        time.sleep(1000)
    return 1.0
"""
    assert faults(text, tmp_path, seconds=HANGS_SECONDS) == [("time", "warning", 6)]


def test_one_that_waits_for_a_program_may_only_be_slow_here(tmp_path: Path) -> None:
    sleeps = "subprocess.run([sys.executable, '-c', 'import time; time.sleep(1000)'])"
    text = f"import subprocess, sys\n{HEAD}    {sleeps}\n    return 1.0\n"
    assert faults(text, tmp_path, seconds=HANGS_SECONDS) == [("time", "warning", 3)]


def test_what_forked_processes_share_counts_once(tmp_path: Path) -> None:
    """260 MB in nine processes, which would be more than the limit of 2 GB if each counted."""
    body = """    pids = []
    for _ in range(8):
        pids.append(os.fork())
        if not pids[-1]:
            time.sleep(0.3)
            os._exit(0)
    for pid in pids:
        os.waitpid(pid, 0)
    return float(ground_truth in solution_str)
"""
    assert faults(f"import os, time\nHELD = b'x' * (260 << 20)\n{HEAD}{body}", tmp_path, ROWS[:1]) == []
