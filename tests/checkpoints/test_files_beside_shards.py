"""Files that no tensor is in: a check and a merge say of them what the list says."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from small_step import smallest_zip, write_step

from cloudrl.checkpoints.handle import CheckpointHandle, Checkpoints
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.node.save_recorder import SaveRecorder
from cloudrl.saves.damage import damage_notes
from cloudrl.saves.prune import plan_prune
from cloudrl.saves.wholeness import UNREADABLE

TOKENIZER = "actor/huggingface/tokenizer.json"
BESIDE = {
    "actor/huggingface/config.json": "null",
    TOKENIZER: '{"a',
    "actor/fsdp_config.json": "",
    "data.pt": "",
}


def in_folder(run: Path) -> CheckpointHandle:
    return Checkpoints(LocalSource(run)).select(20)


@pytest.mark.parametrize("name", BESIDE)
def test_a_check_finds_what_the_list_names(tmp_path: Path, name: str) -> None:
    step = write_step(tmp_path, 20)
    assert in_folder(tmp_path).verify().ok
    (step / name).write_text(BESIDE[name])

    report = in_folder(tmp_path).verify()

    assert not report.ok
    assert [finding.file for finding in report.findings if finding.fatal] == [f"this machine: {step / name}"]


def test_a_check_finds_that_the_config_is_gone(tmp_path: Path) -> None:
    (write_step(tmp_path, 20) / "actor/huggingface/config.json").unlink()
    [finding] = [each for each in in_folder(tmp_path).verify().findings if each.fatal]
    assert finding.message == "huggingface/config.json is not there; a merge needs it, a resume does not"


def test_a_merge_says_that_the_tokenizer_is_damaged(tmp_path: Path) -> None:
    (write_step(tmp_path, 20) / TOKENIZER).write_text('{"a')
    merged = in_folder(tmp_path).merge(tmp_path / "model")
    assert [each.partition(",")[0] for each in merged.warnings if "tokenizer" in each] == [
        "huggingface/tokenizer.json is not a JSON object"
    ]


@pytest.mark.parametrize("kind", ["optim", "extra_state"])
def test_a_file_of_the_record_that_no_rank_has_is_missing(tmp_path: Path, kind: str) -> None:
    """Without a record, a run may have been told to leave it out."""
    for step in (10, 20):
        folder = write_step(tmp_path, step)
        for rank in range(2):
            (folder / "actor" / f"{kind}_world_size_2_rank_{rank}.pt").write_bytes(smallest_zip())
    recorder = SaveRecorder(tmp_path)
    recorder.scan_once()
    assert len(recorder.scan_once()) == 4
    for path in (tmp_path / "global_step_20/actor").glob(f"{kind}_*"):
        path.unlink()

    found = Checkpoints(LocalSource(tmp_path))

    label = {"optim": "optimizer", "extra_state": "extra state"}[kind]
    assert [each.info.missing for each in found] == [(), (f"{label} of ranks 0-1",)]
    assert plan_prune(found.inventory, 1).removals == ()


def test_a_file_that_a_job_may_be_writing_is_not_to_be_replaced(tmp_path: Path) -> None:
    step = write_step(tmp_path, 20)
    os.utime(step / "data.pt", (1e9, 1e9))
    (step / "actor/model_world_size_2_rank_1.pt").write_bytes(b"PK\3\4")

    [note] = damage_notes(LocalSource(tmp_path).inventory().checkpoints)

    assert "If a job is saving this step now, wait for it. If not: put a whole copy in its place" in note


def test_a_shard_whose_end_is_overwritten_is_not_called_cut(tmp_path: Path) -> None:
    """What ext4 may leave after a power failure: the full size, and zeros."""
    path = write_step(tmp_path, 20) / "actor/model_world_size_2_rank_1.pt"
    path.write_bytes(bytes(path.with_name("model_world_size_2_rank_0.pt").stat().st_size))
    info = in_folder(tmp_path).info
    assert info.damage_phrases == (f"{path.name} is damaged: it does not end as such a file does",)


def test_a_file_that_this_user_cannot_read_is_not_to_be_replaced(tmp_path: Path) -> None:
    found = LocalSource(write_step(tmp_path, 20)).inventory().checkpoints
    config = found[0].files["huggingface/config.json"][0]
    closed = dict(found[0].files) | {"huggingface/config.json": (replace(config, damage=UNREADABLE),)}

    [note] = damage_notes([replace(found[0], files=closed)])

    assert "config.json cannot be read. Look at its permissions, and at its disk" in note


def recorded_step(run: Path) -> Path:
    """A step with records of its ranks, of an hour ago."""
    step = write_step(run, 20)
    recorder = SaveRecorder(run)
    recorder.scan_once()
    assert len(recorder.scan_once()) == 2
    age(step, 3600)
    return step


def age(step: Path, seconds: float, names: str = "*") -> None:
    for path in (path for path in step.rglob(names) if path.is_file()):
        at = path.stat().st_mtime - seconds
        os.utime(path, (at, at))


def test_a_record_of_an_earlier_save_of_the_step_is_no_reason_to_doubt(tmp_path: Path) -> None:
    """verl trained on from an earlier step, in a folder that no agent looked after."""
    step = recorded_step(tmp_path)
    for rank in range(2):
        (step / f"actor/model_world_size_2_rank_{rank}.pt").write_bytes(smallest_zip())
    (step / "data.pt").write_bytes(b"data")

    found = in_folder(tmp_path)

    assert (found.complete, dict(found.info.records)) == (True, {})


def test_a_withdrawn_record_of_an_earlier_save_is_no_doubt(tmp_path: Path) -> None:
    step = write_step(tmp_path, 20)
    mark = step / "actor/cloudrl_withdrawn_world_size_2_rank_1"
    mark.touch()
    for path in (path for path in step.rglob("*") if path.is_file()):
        os.utime(path, (2e9, 2e9))
    assert not in_folder(tmp_path).complete
    os.utime(mark, (1e9, 1e9))
    assert in_folder(tmp_path).complete
    os.utime(step / "data.pt", (1e9, 1e9))
    assert not in_folder(tmp_path).complete


def test_a_copy_of_a_folder_keeps_its_records(tmp_path: Path) -> None:
    """Whatever dates the copy has."""
    step = recorded_step(tmp_path)
    age(step, -3600)
    assert sorted(in_folder(tmp_path).info.records) == [0, 1]
    age(step, 3600, "cloudrl_save_*")
    os.utime(step / "data.pt", (1e9, 1e9))  # no save ended after these shards
    assert sorted(in_folder(tmp_path).info.records) == [0, 1]
