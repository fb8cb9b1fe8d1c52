"""The commands in hints name the cluster or the folder, and the step: they can be pasted."""

import re
import shlex
from pathlib import Path

import pytest
from small_step import write_step
from typed_command import Run

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.hints import complete
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import CheckpointError


@pytest.mark.parametrize(
    ("hint", "completed"),
    [
        ("Other steps: cloudrl checkpoints list", "Other steps: cloudrl checkpoints list --dir 'a b'"),
        ("See `cloudrl checkpoints verify`.", "See `cloudrl checkpoints verify 20 --dir 'a b' --name r`."),
        ("cloudrl checkpoints verify 10", "cloudrl checkpoints verify 10 --dir 'a b' --name r"),
        (
            "cloudrl checkpoints pull 10 --to ./raw && python x",
            "cloudrl checkpoints pull 10 --dir 'a b' --name r --to ./raw && python x",
        ),
        (
            "cloudrl checkpoints merge --lora adapter --to DIR",
            "cloudrl checkpoints merge 20 --dir 'a b' --name r --lora adapter --to DIR",
        ),
        ("cloudrl checkpoints list --cluster c", "cloudrl checkpoints list --cluster c"),
        ("Name a folder on another disk.", "Name a folder on another disk."),
    ],
)
def test_a_command_is_completed(hint: str, completed: str) -> None:
    assert complete(hint, "--dir 'a b'", step=20, run="r") == completed


@pytest.mark.parametrize("named", ["r/global_step_20", "r/global_step_20/actor"])
def test_other_steps_are_beside_the_one_that_is_named(named: str) -> None:
    assert complete("cloudrl checkpoints list", f"--dir {named}") == "cloudrl checkpoints list --dir r"
    assert complete("cloudrl checkpoints verify", f"--dir {named}") == f"cloudrl checkpoints verify --dir {named}"


def test_the_role_of_a_critic_is_named() -> None:
    hint = "cloudrl checkpoints verify; cloudrl checkpoints merge --role actor"
    assert complete("cloudrl checkpoints verify", "--cluster c", step=1, role="critic").endswith("c --role critic")
    assert complete(hint, "--cluster c", step=1, role="critic").endswith("--role actor")


def test_pasted_hints_work(tmp_path: Path, run: Run) -> None:
    """A fault in a step that is not the latest, in a folder with a blank in its name."""
    folder = tmp_path / "my runs"
    for name in ("one", "two"):
        for step in (10, 20):
            write_step(folder / name, step)
    shard = folder / "one/global_step_10/actor/model_world_size_2_rank_1.pt"
    shard.write_bytes(b"PK")

    words = ("checkpoints", "merge", "10", "--name", "one", "--dir", str(folder), "--to", str(tmp_path / "model"))
    commands = re.findall(r"`cloudrl (.*?)`", run(*words).ended(6, str(shard)).err)

    assert len(commands) == 2
    verify, list_ = (run(*shlex.split(command)) for command in commands)
    assert (verify.code, str(shard) in verify.out) == (6, True)
    [again] = re.findall(r"Other steps: cloudrl (.*)", verify.err)
    assert list_.code == run(*shlex.split(again)).code == 0


def test_without_a_complete_step_the_run_is_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (write_step(tmp_path / name, 10) / "actor/model_world_size_2_rank_1.pt").unlink()
    with pytest.raises(CheckpointError) as raised:
        Checkpoints(LocalSource(tmp_path)).latest()
    assert re.search(rf"verify 10 --dir {tmp_path} --name (one|two)$", raised.value.hint or "")
