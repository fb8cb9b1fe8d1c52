"""Locked memory where InfiniBand needs it, on made-up machines. The limits are those of a child of the tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cloudrl.node.memlock import too_little_locked_memory

MIB = 1 << 20
_ASK = """
import json, resource, sys
from pathlib import Path
from cloudrl.node.memlock import locked_memory_limit
soft, hard, root, env = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
print(json.dumps([locked_memory_limit(env, Path(root)), resource.getrlimit(resource.RLIMIT_MEMLOCK)]))
"""


def machine(root: Path, *, state: str = "4: ACTIVE", cap_eff: str = "0", users: str = "0 0 4294967295") -> Path:
    port, own = root / "sys/class/infiniband/mlx5_0/ports/1", root / "proc/self"
    port.mkdir(parents=True)
    own.mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    (own / "status").write_text(f"Name:\tpython3\nCapEff:\t{cap_eff}\n")
    (own / "uid_map").write_text(f"         {users}\n")
    return root


def ask(root: Path, soft: int, hard: int, env: dict[str, str]) -> list[object]:
    asked = json.dumps([soft, hard, str(root), env])
    return list(json.loads(subprocess.run([sys.executable, "-c", _ASK, asked], capture_output=True, check=True).stdout))


def test_the_limit_that_slurm_hands_on_is_raised_where_the_site_lets_it_be(tmp_path: Path) -> None:
    assert ask(machine(tmp_path), MIB, 8 * MIB, {}) == [8 * MIB, [8 * MIB, 8 * MIB]]


@pytest.mark.parametrize(
    ("here", "env"),
    [
        ({"state": "1: DOWN"}, {}),
        ({}, {"NCCL_IB_DISABLE": "1"}),
        ({"cap_eff": "0000000000004000"}, {}),
    ],
    ids=["port down", "not wanted", "may lock all"],
)
def test_nothing_is_said_where_it_is_not_needed(here: dict[str, str], env: dict[str, str], tmp_path: Path) -> None:
    assert ask(machine(tmp_path, **here), MIB, MIB, env) == [None, [MIB, MIB]]


def test_root_of_a_user_namespace_has_the_limit(tmp_path: Path) -> None:
    root = machine(tmp_path, cap_eff="000001ffffffffff", users="0 1000 1")
    assert ask(root, MIB, MIB, {})[0] == MIB


def test_a_warning_names_the_limit_and_the_ways_out() -> None:
    [warning] = too_little_locked_memory(64 * 1024)
    assert "`ulimit -l` is 64 KiB" in warning.text
    assert "--env NCCL_IB_DISABLE=1" in warning.remedy
    assert too_little_locked_memory(None) == too_little_locked_memory(1 << 40) == []
