"""Models are loaded by transformers in a process of its own, and answer a test split."""

from pathlib import Path

import pytest

from cloudrl.data import addition
from cloudrl.errors import CheckpointError
from cloudrl.sdk.demo_generate import Answered, ask
from cloudrl.verl_cpu.tiny_model import make_tiny_model

pytestmark = pytest.mark.verl


def test_every_model_answers_every_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [Path(make_tiny_model(tmp_path / f"model-{seed}", seed=seed)) for seed in (0, 1)]
    test = Path(addition.prepare(tmp_path / "data")["test"])
    # torch sets it in a process that has imported it, such as this one
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()

    first, second, again = ask([*models, models[0]], test)

    pairs = addition.pairs()["test"]
    assert first.questions == second.questions == tuple(addition.question(*pair) for pair in pairs)
    assert first.truths == second.truths == tuple(str(sum(pair)) for pair in pairs)
    assert first == again != second
    assert list((tmp_path / "tmp").iterdir()) == []


def test_accuracy() -> None:
    assert Answered(("1+1=", "2+2=", "0+0=", "1+2="), ("2", "4", "0", "3"), ("2", "5", "", "33")).accuracy == 0.25


def test_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    test = Path(addition.prepare(tmp_path / "data")["test"])
    with pytest.raises(CheckpointError, match="transformers cannot load"):
        ask([tmp_path], test)
