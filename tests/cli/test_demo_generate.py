"""A model is loaded by transformers in a process of its own, and answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cloudrl.cli._demo_generate import ask
from cloudrl.errors import CheckpointError
from cloudrl.verl_cpu.tiny_model import make_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.verl


def test_three_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny_model(tmp_path / "model")
    # torch sets it in a process that has imported it, such as this one
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    answers = ask(tmp_path / "model", ["2 + 3 =", "7 + 8 =", "12 + 5 ="])
    assert len(answers) == 3
    assert all(isinstance(answer, str) for answer in answers)
    assert answers == ask(tmp_path / "model", ["2 + 3 =", "7 + 8 =", "12 + 5 ="])
    assert list((tmp_path / "tmp").iterdir()) == []


def test_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="transformers cannot load"):
        ask(tmp_path, ["2 + 3 ="])
