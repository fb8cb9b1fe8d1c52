"""Reward functions, really called: what each fault is called, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tried_reward import HEAD, ROWS, SECONDS, candidate, faults, tried

from cloudrl.rewards import child
from cloudrl.rewards.examine import examine
from cloudrl.rewards.rows import made_up_rows
from cloudrl.rewards.verdict import Level

pytestmark = pytest.mark.io

RIGHT = "float(ground_truth in solution_str)"


def test_scores_of_right_wrong_and_empty(tmp_path: Path) -> None:
    done = tried(f"{HEAD}    return 1.0 if f'#### {{ground_truth}}' in solution_str else 0.0\n", tmp_path)
    assert done.faults == ()
    assert done.summary.startswith(
        "reward: compute_score of ./reward.py scores right 1, wrong 0, empty 0 (mean of 3 rows, "
    )
    assert done.passed_with(ROWS[1]) == {
        "data_source": "mine", "solution_str": "...", "ground_truth": "7",
        "extra_info": {"index": 2, "num_turns": 2, "rollout_reward_scores": {}},
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        f"async {HEAD}    import asyncio\n    await asyncio.sleep(0)\n    return {{'score': {RIGHT}, 'n': 1}}",
        f"import numpy\n{HEAD}    return numpy.float32({RIGHT})",
        f"{HEAD}    return ground_truth in solution_str",
        f"{HEAD}    extra_info['seen'] = extra_info['num_turns']\n    return {RIGHT}",
    ],
)
def test_what_verl_takes_for_a_score(tmp_path: Path, text: str) -> None:
    done = tried(text, tmp_path)
    assert done.faults == ()
    assert "right 1, wrong 0" in done.summary


def test_reward_kwargs_win(tmp_path: Path) -> None:
    text = (
        "def score(solution_str, extra_info, scale, **rest):\n    return scale * (rest['ground_truth'] in solution_str)"
    )
    done = tried(text, tmp_path, call={"function": "score", "keywords": {"scale": 3, "data_source": "theirs"}})
    assert done.faults == ()
    assert "right 3, wrong 0" in done.summary
    assert done.passed_with(ROWS[0])["data_source"] == "theirs"


def test_lists_for_the_manager_batch(tmp_path: Path) -> None:
    text = "def compute_score(data_sources, solution_strs, ground_truths, extra_infos):\n    return [{}]\n"
    each = "float(g in s) for s, g in zip(solution_strs, ground_truths)"
    assert faults(text.format(each), tmp_path, call={"manager": "batch"}) == []
    assert faults(text.format(""), tmp_path, call={"manager": "batch"}) == [("number", "error", 2)]


NUMBERED = [
    ("    if '42' in solution_str:\n        return 1.0\n", "return", 2),
    ("    return 'good' if solution_str else 0.0\n", "number", 2),
    ("    return (1.0, {})\n", "number", 2),
    ("    return {'reward': 1.0}\n", "number", 2),
    ("    return {'score': None}\n", "return", 2),
    ("    x = float('nan')\n    return x\n", "nan", 3),
    ("    return -float('inf') if not solution_str else 1.0\n", "nan", 2),
    ("    return float(solution_str.split('####')[1])\n", "raises", 2),
    ("    async def later():\n        return 1.0\n    return later()\n", "number", 4),
    ("    import signal\n    signal.signal(signal.SIGALRM, lambda *_: None)\n    return 1.0\n", "raises", 3),
    ("    raise SystemExit(1)\n    return 1.0\n", "raises", 2),
]


@pytest.mark.parametrize(("body", "kind", "line"), NUMBERED)
def test_faults_with_their_lines(tmp_path: Path, body: str, kind: str, line: int) -> None:
    done = tried(HEAD + body, tmp_path)
    [fault] = done.errors
    assert (fault.kind, fault.line) == (kind, line)
    assert fault.text.startswith(f"./reward.py:{line}: ")
    assert " on row 1 with " in fault.text


def test_a_branch_without_a_return_as_a_new_user_has_written_it(tmp_path: Path) -> None:
    text = f"""import re
{HEAD}    m = re.search(r'#### (\\d+)', solution_str)
    if m:
        return float(m[1] == ground_truth)
"""
    [fault] = tried(text, tmp_path, made_up_rows()).errors
    assert (fault.kind, fault.line) == ("return", 4)
    assert fault.text == "./reward.py:4: compute_score returns None on a made-up row with the right answer '42'"
    assert fault.hint == "Each branch needs a `return` with a number"


def test_the_same_score_for_right_and_wrong(tmp_path: Path) -> None:
    [fault] = tried(f"\n{HEAD}    return 0.5\n", tmp_path).faults
    assert (fault.kind, fault.level, fault.line) == ("same", Level.WARNING, 2)
    assert fault.text.startswith(
        "./reward.py:2: compute_score gives 0.5 to the right answer and to a wrong one, on all 3 rows tried"
    )
    [fault] = tried(f"{HEAD}    return 0.0 if ground_truth in solution_str else 1.0\n", tmp_path).faults
    assert fault.kind == "inverted"


def test_what_made_up_rows_cannot_tell_is_a_warning(tmp_path: Path) -> None:
    by_source = f"{HEAD}    return {{'theirs': 1.0}}.get(data_source)\n"
    assert faults(by_source, tmp_path, made_up_rows()) == [("return", "warning", 2)]
    assert faults(by_source, tmp_path) == [("return", "error", 2)]
    by_info = f"{HEAD}    return extra_info['tests']\n"
    assert faults(by_info, tmp_path, made_up_rows()) == [("raises", "warning", 2)]


def test_what_is_on_the_nodes_alone(tmp_path: Path) -> None:
    assert faults(f"{HEAD}    return len(open('/data/words.txt').read())\n", tmp_path) == [("file", "warning", 2)]
    reads = f"import os\nKEY = os.environ['JUDGE']\n{HEAD}    return 1.0\n"
    assert faults(reads, tmp_path) == [("variable", "warning", 2)]
    judged = f"import os\nKEY = os.environ['JUDGE_TOKEN']\n{HEAD}    return {RIGHT} * (KEY == '***')"
    assert faults(judged, tmp_path, variables={"JUDGE_TOKEN": "hf_" + "x" * 30}) == []
    network = f"import urllib.request\n{HEAD}    urllib.request.urlopen('http://judge.example')\n    return 1.0\n"
    assert faults(network, tmp_path) == [("network", "note", 3)]


def test_modules_of_the_working_directory(tmp_path: Path) -> None:
    text = f"from lib.parse import right\n{HEAD}    return right(solution_str, ground_truth)\n"
    beside = {"lib/parse.py": b"def right(a, b):\n    return float(b in a)\n", "reward.py": text.encode()}
    assert faults(text, tmp_path, beside=beside, inside="reward.py", working_dir=tmp_path) == []
    assert faults(text, tmp_path) == [("import", "warning", 1)]


def test_what_can_only_be_called_on_a_cluster(tmp_path: Path) -> None:
    text = "def compute_score(**kwargs):\n    return 1.0"
    assert "reward model" in tried(text, tmp_path, call={"has_router": True}).skipped
    assert "reward manager" in tried(text, tmp_path, call={"manager": "mine"}).skipped


def test_without_isolation_it_is_called_on_request_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudrl.scripts.isolation._ways", lambda: ())
    monkeypatch.setattr(child, "_isolated", child._isolated.__wrapped__)
    called = tmp_path / "was_called"
    function = candidate(f"{HEAD}    open({str(called)!r}, 'w')\n    return {RIGHT}\n", tmp_path)
    assert "offers no isolation" in examine(function, ROWS, shown="./reward.py").skipped
    assert not called.exists()
    done = examine(function, ROWS, shown="./reward.py", isolated=False, seconds=SECONDS)
    assert called.exists()
    assert "right 1, wrong 0, empty 0" in done.summary


def test_what_this_machine_alone_does_not_have_is_no_error(tmp_path: Path) -> None:
    program = f"import subprocess\n{HEAD}    subprocess.run(['a_checker'])\n    return 1.0\n"
    assert faults(program, tmp_path) == [("program", "warning", 3)]
    gpu = f"{HEAD}    raise RuntimeError('Found no NVIDIA driver on your system.')\n    return 1.0\n"
    assert faults(gpu, tmp_path) == [("gpu", "warning", 2)]
    large = f"WORDS = open('words.bin').read()\n{HEAD}    return 1.0\n"
    assert faults(large, tmp_path, left_out=frozenset({"words.bin"})) == [("file", "note", 1)]
    assert faults(large, tmp_path) == [("raises", "error", 1)]
    checked = f"import os\nif not os.environ.get('JUDGE'):\n    raise ValueError('set JUDGE')\n{HEAD}    return 1.0\n"
    assert faults(checked, tmp_path) == [("variable", "warning", 3)]
    caught = f"import socket\n{HEAD}    try:\n        socket.gethostbyname('judge.example')\n"
    assert faults(f"{caught}    except OSError:\n        return None\n    return 1.0\n", tmp_path) == [
        ("return", "warning", 6)
    ]


def test_a_ground_truth_of_another_form_than_made_up_ones(tmp_path: Path) -> None:
    text = (
        f"import json\n{HEAD}    try:\n        truth = json.loads(ground_truth)['value']\n"
        "    except TypeError:\n        return None\n    return float(truth in solution_str)\n"
    )
    assert faults(text, tmp_path, made_up_rows()) == [("return", "warning", 6)]
    assert faults(text, tmp_path) == [("return", "error", 6)]


def test_what_tools_add_to_a_row(tmp_path: Path) -> None:
    text = f"{HEAD}    return extra_info['of_a_tool']\n"
    assert faults(text, tmp_path, call={"adds_fields": True}) == [("raises", "warning", 2)]
    assert faults(text, tmp_path) == [("raises", "error", 2)]


def test_a_forgotten_import_fails_with_any_rows(tmp_path: Path) -> None:
    text = f"{HEAD}    return float(bool(re.search(ground_truth, solution_str)))\n"
    for how in ({"rows": made_up_rows()}, {"call": {"adds_fields": True}}):
        assert faults(text, tmp_path, **how) == [("raises", "error", 2)]
