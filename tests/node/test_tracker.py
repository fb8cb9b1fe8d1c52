"""What verl goes on from where its tracker names a damaged step, and the command cannot be changed any more."""

from pathlib import Path
from typing import Any

import pytest
from small_step import write_step

from cloudrl.node import tracker
from cloudrl.node.tracker import point_at_whole_step
from cloudrl.saves.inventory import Inventory
from cloudrl.saves.names import TRACKER


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    for step in (10, 20):
        write_step(folder, step)
    (folder / TRACKER).write_text("20")
    return folder


def job(run: Path, mode: str = "auto") -> dict[str, Any]:
    words = f"python3 -m verl.trainer.main_ppo trainer.resume_mode={mode}"
    return {"entrypoint": words, "metadata": {"cloudrl_checkpoints": str(run)}, "submission_id": "a"}


def cut(run: Path, step: int) -> None:
    file = run / f"global_step_{step}/actor/model_world_size_2_rank_1.pt"
    file.write_bytes(file.read_bytes()[:-100])


def said(job: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    point_at_whole_step(job, lines.append)
    return lines


def goes_on_from(job: dict[str, Any]) -> int | None:
    return point_at_whole_step(job, lambda _: None)


def test_a_step_that_the_tracker_does_not_tell_is_not_taken_for_the_beginning(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert goes_on_from(job(run)) == 20
    assert goes_on_from(job(tmp_path / "new")) == 0
    assert goes_on_from(job(run, "resume_path")) is None
    cut(run, 20)
    assert goes_on_from(job(run)) == 10
    cut(run, 10)
    (run / TRACKER).write_text("20")
    assert goes_on_from(job(run)) is None, "no step is whole"

    def fails(_: Path) -> Inventory:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(tracker, "local_inventory", fails)
    assert goes_on_from(job(run)) is None, "the volume fails"


def test_a_damaged_step(run: Path) -> None:
    cut(run, 20)
    [line] = said(job(run))
    assert line.startswith(f"warning: {run}: step 20: model_world_size_2_rank_1.pt is cut")
    assert line.endswith(f"; {TRACKER} now names step 10")
    assert (run / TRACKER).read_text() == "10"
    assert (run / "global_step_20").is_dir()
    assert said(job(run)) == [], "the next start finds nothing to do"


def test_a_whole_step_is_left_alone(run: Path) -> None:
    cut(run, 10)
    assert said(job(run)) == []
    assert (run / TRACKER).read_text() == "20"


def test_no_step_is_whole(run: Path) -> None:
    for step in (10, 20):
        cut(run, step)
    [line] = said(job(run))
    assert line.endswith("; no step is whole")
    assert (run / TRACKER).read_text() == "20"


@pytest.mark.parametrize("mode", ["disable", "resume_path"])
def test_a_job_that_chooses_its_step(run: Path, mode: str) -> None:
    cut(run, 20)
    assert said(job(run, mode)) == []
    assert (run / TRACKER).read_text() == "20"


def test_a_first_start(tmp_path: Path) -> None:
    assert said(job(tmp_path / "new")) == []
    assert said({"entrypoint": "true", "submission_id": "a"}) == []
