"""Each way in which a checkpoint can be bad, and that it never becomes a model."""

import hashlib
import json
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from shard_files import (
    config_files,
    edit,
    members,
    merge,
    merge_role,
    opened,
    read_safetensors,
    rename_tensor,
    shard_path,
    write_members,
)

from cloudrl.errors import CheckpointError
from cloudrl.saves.names import record_file
from cloudrl.saves.records import FileRecord, SaveRecord
from cloudrl.saves.zip_directory import directory_digest
from cloudrl.shards.report import Finding
from cloudrl.shards.source import MergeInputs, Sidecars
from cloudrl.shards.validate import validate, verify

MODEL = ["config.json", "model.safetensors", "tokenizer.json"]


def refused(folder: Path, *words: str) -> None:
    """Both merge and verify say so, and nothing is written."""
    before = sorted(path.name for path in folder.parent.iterdir())
    with pytest.raises(CheckpointError) as caught:
        merge_role(folder, folder.parent / "model")
    assert sorted(path.name for path in folder.parent.iterdir()) == before
    report = verify(opened(folder))
    assert not report.ok
    messages = [finding.message for finding in report.findings if finding.fatal]
    for word in words:
        assert word in caught.value.message
        assert any(word in message for message in messages)


@pytest.mark.parametrize("kept", [0, 1, 21, 22, 3000, -1])
def test_truncated_or_empty(actor: Path, kept: int) -> None:
    path = shard_path(actor, 1)
    path.write_bytes(path.read_bytes()[:kept])
    refused(actor, "not a complete torch file", path.name)


def test_a_replica_stands_in_for_a_missing_or_broken_rank(replicated: Path, tmp_path: Path) -> None:
    # Ranks 2 and 3 are not there: 0 and 1 stand in for them. Put rank 2's place in for rank 0.
    expected = merge_role(replicated, tmp_path / "first")
    assert expected.warnings[:2] == (
        "no shard of rank 2; rank 0 has the same part",
        "no shard of rank 3; rank 1 has the same part",
    )
    become_rank(shard_path(replicated, 0, 4), 2)
    broken = shard_path(replicated, 0, 4)
    broken.write_bytes(b"")
    merge_role(replicated, tmp_path / "second")
    broken.unlink()
    merge_role(replicated, tmp_path / "third")
    models = [read_safetensors(tmp_path / name) for name in ("first", "second", "third")]
    assert models[0] == models[1] == models[2]


def move_in_mesh(content: dict[str, bytes], *numbers: int | tuple[int, ...]) -> None:
    """Another place of the rank in the device mesh, which all tensors share: the old numbers, and the new ones."""
    *old, new = numbers
    assert isinstance(new, tuple)
    start = content["data.pkl"].index(b"_coordinate_on_dim")
    at = content["data.pkl"].index(b"".join(b"K%c" % number for number in old), start)
    changed = b"".join(b"K%c" % number for number in new)
    content["data.pkl"] = content["data.pkl"][:at] + changed + content["data.pkl"][at + len(changed) :]


def test_a_mesh_in_another_order_than_the_ranks(actor: Path) -> None:
    """Each rank's file is its own, and holds the other part: two parts of one shape would be swapped."""
    for rank in (0, 1):
        edit(shard_path(actor, rank), lambda content, rank=rank: move_in_mesh(content, rank, (1 - rank,)))
    refused(actor, "has its ranks in another order, and rank 0 at (1,), not at (0,)")


def without_crcs(path: Path) -> None:
    """As torch saves it after `torch.serialization.set_crc32_options(False)`."""
    data = bytearray(path.read_bytes())
    at = data.find(b"PK\1\2")
    while at >= 0:
        data[at + 16 : at + 20] = bytes(4)
        at = data.find(b"PK\1\2", at + 46)
    path.write_bytes(data)


def test_shards_without_checksums_are_merged_with_a_warning(actor: Path, tmp_path: Path) -> None:
    good = read_safetensors(merge_role(actor, tmp_path / "good").path)
    for rank in (0, 1):
        without_crcs(shard_path(actor, rank))
    done = merge_role(actor, tmp_path / "model")
    assert read_safetensors(done.path) == good
    assert "saved without CRC-32, so damage cannot be found: ranks 0-1" in done.warnings
    assert verify(opened(actor)).ok


@pytest.mark.parametrize("has_crcs", [True, False])
def test_copies_that_differ_between_ranks(actor: Path, has_crcs: bool) -> None:
    def change(content: dict[str, bytes]) -> None:
        name = next(name for name, data in content.items() if len(data) == 40 and name.startswith("data/"))
        content[name] = b"\7" + content[name][1:]

    edit(shard_path(actor, 1), change)
    for rank in () if has_crcs else (0, 1):
        without_crcs(shard_path(actor, rank))
    refused(actor, "model.layers.0.self_attn.positions differs from that of rank 0")


def become_rank(path: Path, rank: int) -> None:
    """Make rank 0's file what its replica would have saved."""
    content = members(path)
    old, new = (b"X\x05\0\0\0_rankq", b"K\0"), b"K" + bytes([rank])
    start = content["data.pkl"].index(old[0])
    at = content["data.pkl"].index(old[1], start)
    content["data.pkl"] = content["data.pkl"][:at] + new + content["data.pkl"][at + 2 :]
    move_in_mesh(content, 0, 0, (rank // 2, rank % 2))
    write_members(path.with_name(path.name.replace("rank_0", f"rank_{rank}")), content)


def test_replicas_that_differ(replicated: Path) -> None:
    become_rank(shard_path(replicated, 0, 4), 2)

    def change(content: dict[str, bytes]) -> None:
        name = max((name for name in content if name.startswith("data/")), key=lambda name: len(content[name]))
        content[name] = b"\1" + content[name][1:]

    edit(shard_path(replicated, 2, 4), change)
    refused(replicated, "differs from that of rank 0")


def test_missing_ranks(actor: Path, replicated: Path) -> None:
    shard_path(actor, 1).unlink()
    refused(actor, "no shard of rank 1", "have 0 of 2")
    shard_path(replicated, 1, 4).unlink()
    refused(replicated, "no shard of rank 1 or 3")


def test_swapped_files(actor: Path) -> None:
    one, other = shard_path(actor, 0), shard_path(actor, 1)
    one.rename(actor / "x")
    other.rename(one)
    (actor / "x").rename(other)
    refused(actor, "it is not the model file of rank 0")


def test_swapped_files_that_were_saved_to_a_stream(actor: Path) -> None:
    for rank, content in enumerate([members(shard_path(actor, rank)) for rank in (1, 0)]):
        write_members(shard_path(actor, rank), content, "archive")
    refused(actor, "not by rank 0")


def save_scheduler(folder: Path, rank: int, step: int) -> None:
    state = pickle.dumps({"lr_scheduler": {"last_epoch": step}}, protocol=2)
    write_members(shard_path(folder, rank, 2, "extra_state"), {"data.pkl": state})


def test_one_rank_from_another_step_by_the_scheduler(actor: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        save_scheduler(actor, rank, 10)
    assert (verify(opened(actor)).step, verify(opened(actor)).step_source) == (10, "scheduler")
    merge_role(actor, tmp_path / "good")
    save_scheduler(actor, 1, 20)
    refused(actor, "from another step", "(by its scheduler) 20", "rank 0 from 10")


def test_a_scheduler_that_cannot_be_read_is_a_warning(actor: Path, tmp_path: Path) -> None:
    save_scheduler(actor, 0, 10)
    shard_path(actor, 1, 2, "extra_state").write_bytes(b"")
    done = merge_role(actor, tmp_path / "model")
    assert any("not a complete torch file" in warning for warning in done.warnings)


def test_each_problem_is_said_once(actor: Path) -> None:
    for rank in (0, 1):
        shard_path(actor, rank).write_bytes(b"")
    findings = verify(opened(actor)).findings
    assert [finding.rank for finding in findings] == [0, 1]
    assert [finding.message for finding in verify(MergeInputs({})).findings] == ["there are no model shards"]


def write_record(folder: Path, rank: int, step: int, kinds: tuple[str, ...] = ("model",)) -> None:
    files = {}
    for kind in kinds:
        path = shard_path(folder, rank, 2, kind)
        with path.open("rb") as file:
            files[path.name] = FileRecord(path.stat().st_size, directory_digest(file.fileno()))
    record = SaveRecord(step, "actor", rank, 2, 1.0, files)
    (folder / record_file(2, rank)).write_text(json.dumps(record.to_json()))


def test_one_rank_from_another_step_by_the_record(actor: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        edit(shard_path(actor, rank), lambda _: None)  # by this zip, as it will be below: the size stays
        write_record(actor, rank, 10)
    assert (verify(opened(actor)).step, verify(opened(actor)).step_source) == (10, "record")
    merge_role(actor, tmp_path / "good")

    def change(content: dict[str, bytes]) -> None:
        """The same tensors after some more steps: same size, other bytes."""
        content["data/0"] = bytes(reversed(content["data/0"]))

    edit(shard_path(actor, 1), change)
    refused(
        actor, "was saved at step 10: it is another file",
        "it is the record that is wrong: remove cloudrl_save_world_size_2_rank_1.json",
    )  # fmt: skip
    with shard_path(actor, 1).open("ab") as file:
        file.write(b"\0")
    assert not verify(opened(actor)).ok


def test_what_a_resume_needs_is_verified_too(actor: Path, tmp_path: Path) -> None:
    """The optimizer's state is not part of a model: a merge does not read it."""
    optim = shard_path(actor, 1, 2, "optim")
    write_members(optim, {"data.pkl": pickle.dumps({"state": {}}, protocol=2), "data/0": b"moments"})
    write_record(actor, 1, 10, kinds=("model", "optim"))
    assert verify(opened(actor)).ok
    optim.write_bytes(optim.read_bytes().replace(b"moments", b"momentS"))
    (rotten,) = [each for each in verify(opened(actor)).findings if each.fatal]
    assert (rotten.rank, "data/0 has CRC-32" in rotten.message) == (1, True)
    merge_role(actor, tmp_path / "model")
    write_members(optim, {"data.pkl": pickle.dumps({"state": {}}, protocol=2), "data/0": b"another"})
    (other,) = [each for each in verify(opened(actor)).findings if each.fatal]
    assert "was saved at step 10: it is another file" in other.message
    optim.write_bytes(b"PK")
    (short,) = [each for each in verify(opened(actor)).findings if each.file == other.file]
    assert "not a complete torch file" in short.message


def change_record(folder: Path, files: dict[str, FileRecord], **changes: int) -> None:
    """Of rank 0, whose record lists small files too."""
    path = folder / record_file(2, 0)
    record = SaveRecord.from_json(json.loads(path.read_text()))
    path.write_text(json.dumps(replace(record, files=files, **changes).to_json()))


def test_small_files_in_the_record_are_not_taken_for_shards(actor: Path) -> None:
    for rank in (0, 1):
        write_record(actor, rank, 10)
    saved = SaveRecord.from_json(json.loads((actor / record_file(2, 0)).read_text())).files
    small = {"model_card.md": FileRecord(1, "0"), "model_world_size_2_rank_0.pt.txt": FileRecord(1, "0")}
    change_record(actor, {**small, **saved})
    assert verify(opened(actor)).ok


def test_a_file_that_the_record_does_not_name(actor: Path, tmp_path: Path) -> None:
    write_members(shard_path(actor, 0, 2, "optim"), {"data.pkl": pickle.dumps({"state": {}}, protocol=2)})
    for rank in (0, 1):
        write_record(actor, rank, 10)
    (mild,) = verify(opened(actor)).findings
    assert not mild.fatal
    assert "of step 10 beside it does not name optim_world_size_2_rank_0.pt" in mild.message
    merge_role(actor, tmp_path / "model")
    shutil.rmtree(tmp_path / "model")
    change_record(actor, {})
    refused(actor, "beside it does not name model_world_size_2_rank_0.pt")
    change_record(actor, {}, rank=1)
    (actor / record_file(2, 0)).rename(actor / "x")
    record = SaveRecord.from_json(json.loads((actor / "x").read_text()))
    inputs = replace(opened(actor), sidecars={0: Sidecars(record=record)})
    assert "is of rank 1, not of rank 0" in verify(inputs).findings[0].message


def test_a_changed_config_is_a_warning_beside_the_others(replicated: Path) -> None:
    """Neither is about a file, and neither is fatal. A file that the record does not name was not changed."""
    (replicated / "huggingface" / "new.json").write_bytes(b"")
    saved = FileRecord(2, hashlib.sha256(b"{}").hexdigest())
    record = SaveRecord(10, "actor", 0, 4, 1.0, {"huggingface/config.json": saved})
    inputs = replace(opened(replicated), sidecars={0: Sidecars(record=record)})
    before = [each for each in validate(inputs).report.findings if not each.fatal and each.file is None]
    found = verify(inputs).findings
    assert before
    assert set(before) < set(found)
    message = "huggingface/config.json is not as it was saved at step 10"
    assert [each for each in found if "huggingface/" in each.message] == [Finding(message, fatal=False)]


def test_records_of_two_steps(actor: Path) -> None:
    write_record(actor, 0, 10)
    write_record(actor, 1, 20)
    refused(actor, "from another step")


def test_a_flipped_bit_in_a_tensor(actor: Path) -> None:
    path = shard_path(actor, 1)
    stored = members(path)["data/0"]
    data = bytearray(path.read_bytes())
    data[data.index(stored) + 5] ^= 4
    path.write_bytes(data)
    refused(actor, "is damaged", "data/0", path.name)


def test_a_plain_tensor_sorts_first(actor: Path, tmp_path: Path) -> None:
    expected = read_safetensors(merge_role(actor, tmp_path / "first").path)
    rename_tensor(actor, "model.layers.0.self_attn.positions", "model._first")
    rename_tensor(actor, "lm_head.weight", "score.weight")
    found = read_safetensors(merge_role(actor, tmp_path / "second").path)
    assert min(found) == "model._first"
    assert found.pop("model._first") == expected.pop("model.layers.0.self_attn.positions")
    assert found.pop("score.weight") == expected.pop("lm_head.weight")
    assert found == expected


def test_shards_of_runs_of_other_sizes(actor: Path, replicated: Path, tmp_path: Path) -> None:
    shards = dict(opened(actor).shards)
    shards[1] = opened(replicated).shards[1]
    with pytest.raises(CheckpointError, match="from runs of 2 and 4 ranks"):
        merge(MergeInputs(shards, config_files()), tmp_path / "model")


def test_killed_midway_leaves_no_model_and_can_be_repeated(actor: Path, tmp_path: Path) -> None:
    code = f"""
    import os, signal
    from pathlib import Path
    from cloudrl.checkpoints.handle import Checkpoints
    from cloudrl.checkpoints.sources import LocalSource
    Checkpoints(LocalSource(Path({str(actor.parent)!r}))).select(1).merge(
        {str(tmp_path / "model")!r}, on_progress=lambda done, total: os.kill(os.getpid(), signal.SIGKILL))
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "model").exists()
    assert (tmp_path / ".model.merging").is_dir()
    merge_role(actor, tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_1", "model"]
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == MODEL


def test_records_that_all_say_another_step_than_the_folder(actor: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        write_record(actor, rank, 10)
    message = "its records are of step 10, and the folder is that of step 1: was it renamed?"
    inputs = replace(opened(actor), step=1)
    assert [(each.message, each.fatal) for each in verify(inputs).findings] == [(message, False)]
    assert merge(inputs, tmp_path / "model").warnings == (message,)
