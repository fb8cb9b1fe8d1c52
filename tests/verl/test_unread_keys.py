"""What verl's own source says of the keys that are said to have no effect; their sentences: tests/jobs/."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from cloudrl.verl import unread_keys

DECLARED = ("workers/config/", "trainer/config/")
OLDER = ("trainer/main_ppo_v0.py", "trainer/ppo/ray_trainer.py", "experimental/separation/", "experimental/fully_async")


def _sources(*left_out: str) -> dict[str, str]:
    """File -> its text; verl is not imported."""
    spec = importlib.util.find_spec("verl")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*.py")}
    return {name: path.read_text() for name, path in files.items() if not name.startswith(left_out)}


def test_verl_reads_none_of_them() -> None:
    gone = {key.rpartition(".")[2] for key in unread_keys._GONE if "." in key} - {"nccl_timeout"}
    newer = {key.rpartition(".")[2] for key in unread_keys._NOT_IN_V1} - {"pf_ppo"}
    for names, left_out in (({*gone, "actor.grad_clip", "nccl_timeout"}, DECLARED), (newer, (*DECLARED, *OLDER))):
        text = "\n".join(_sources(*left_out).values())
        assert [name for name in names if re.search(rf"\b{re.escape(name)}\b", text)] == []


def test_how_prompts_are_cut_is_only_kept() -> None:
    sources = _sources("utils/dataset/multiturn_sft_dataset.py", "utils/torch_functional.py")
    used = [(name, text.count(".truncation")) for name, text in sources.items() if ".truncation" in text]
    assert used == [("utils/dataset/rl_dataset.py", 1)]
    assert 'self.truncation = config.get("truncation", "error")' in sources["utils/dataset/rl_dataset.py"]


def test_the_program_does_not_move_the_older_keys() -> None:
    callers = [name for name, text in _sources().items() if re.search(r"= migrate_legacy_reward_impl\(", text)]
    assert callers == ["experimental/fully_async_policy/fully_async_main.py"]
