"""Folders of a user's own machine as people have them: parts of a run, other layouts, links."""

import shutil
from pathlib import Path

import pytest
from shard_files import config_files, read_safetensors
from small_step import as_sft, tree, write_step

from cloudrl.checkpoints.handle import CheckpointHandle, Checkpoints
from cloudrl.checkpoints.merge import Merged
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import CheckpointError

NO_STEP = "nothing tells whether all ranks are from one step: no record, scheduler or optimizer state"


def latest(folder: Path, **options: str) -> CheckpointHandle:
    return Checkpoints(LocalSource(folder)).latest(**options)


def merged(folder: Path, target: Path) -> Merged:
    """The newest of a folder, and that it is the model that it should be."""
    done = latest(folder).merge(target, dtype="keep")
    write_step(target.parent / "good", 1)
    good = latest(target.parent / "good").merge(target.parent / "good-model", dtype="keep")
    assert read_safetensors(done.path) == read_safetensors(good.path)
    assert (done.path / "tokenizer.json").read_text() == "{}"
    return done


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_the_folder_of_a_role_as_verl_takes_it(tmp_path: Path, role: str) -> None:
    """`python -m verl.model_merger --local_dir DIR`."""
    step = write_step(tmp_path / "run", 10)
    write_step(tmp_path / "run", 20)
    if role != "actor":
        (step / "actor").rename(step / role)
    found = Checkpoints(LocalSource(step / role))
    assert [(each.run, each.step, each.role, each.complete) for each in found] == [(".", 10, role, True)]
    assert merged(step / role, tmp_path / "model").warnings == (NO_STEP,)


def test_the_folder_of_a_role_that_was_copied_out_of_its_step(tmp_path: Path) -> None:
    shutil.copytree(write_step(tmp_path / "run", 10) / "actor", tmp_path / "copied")
    assert [each.step for each in Checkpoints(LocalSource(tmp_path / "copied"))] == [0]
    unknown, unfinished = merged(tmp_path / "copied", tmp_path / "model").warnings
    assert (unknown, "the end of its saving is missing" in unfinished) == (NO_STEP, True)


def test_shards_in_the_folder_of_the_step_as_verls_sft_trainer_writes_them(tmp_path: Path) -> None:
    step = as_sft(write_step(tmp_path / "run", 10))
    (step / "data_1.pt").write_bytes(b"data")
    for folder in (step, tmp_path / "run", tmp_path):
        (found,) = Checkpoints(LocalSource(folder))
        assert (found.step, found.role, found.complete) == (10, "actor", True)
        assert set(found.info.step_files) == {"data_0.pt", "data_1.pt"}
        assert not set(found.info.files) & set(found.info.step_files)
    merged(step, tmp_path / "model")
    latest(tmp_path / "run").pull(tmp_path / "pulled")
    assert tree(tmp_path / "pulled") == tree(tmp_path / "run"), "as a job resumes from it"


def test_a_step_that_was_copied_without_its_tracker(tmp_path: Path) -> None:
    """It is merged where it is named, by its folder or its number, and a warning says what is not known."""
    step = write_step(tmp_path / "run", 10)
    (step / "data.pt").unlink()
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").unlink()
    _, warning = merged(step, tmp_path / "model").warnings
    assert warning.startswith("step 10, actor: the end of its saving is missing")
    by_number = Checkpoints(LocalSource(tmp_path / "run")).select(10)
    assert by_number.merge(tmp_path / "second").warnings == (NO_STEP, warning)
    assert [each.message for each in by_number.verify().findings] == [NO_STEP, warning]
    with pytest.raises(CheckpointError, match="no checkpoint is complete"):
        latest(tmp_path / "run")


def as_in_a_cache(file: Path, blobs: Path) -> None:
    """A link to a blob, as in the Hub's cache."""
    blobs.mkdir(exist_ok=True)
    blob = blobs / f"{len(list(blobs.iterdir()))}"
    file.rename(blob)
    file.symlink_to(blob)


@pytest.mark.parametrize("kind", ["step", "role", "files", "huggingface", "tracker", "all"])
def test_links_within_a_folder_of_the_user_are_followed(tmp_path: Path, kind: str) -> None:
    run = tmp_path / "run"
    step = write_step(run, 10)
    moved = {
        "files": [path for path in step.rglob("*") if path.is_file()],
        "tracker": [run / "latest_checkpointed_iteration.txt"],
        "huggingface": [step / "actor" / "huggingface"],
        "role": [step / "actor"],
        "step": [step],
    }
    for each in moved if kind == "all" else [kind]:
        for path in moved[each]:
            as_in_a_cache(path, tmp_path / "blobs")
    found = Checkpoints(LocalSource(run))
    assert [(each.step, each.complete, each.info.resumes) for each in found] == [(10, True, True)]
    merged(run, tmp_path / "model")
    assert found[0].verify().ok


def test_the_users_folder_may_itself_be_a_link(tmp_path: Path) -> None:
    step = write_step(tmp_path / "run", 10)
    for number, path in enumerate((tmp_path / "run", step, step / "actor")):
        link = tmp_path / f"link{number}"
        link.symlink_to(path)
        assert latest(link).step == 10


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    actor = write_step(tmp_path / "run", 10) / "actor"
    (actor / "huggingface" / "up").symlink_to(actor)
    (actor / "self").symlink_to(actor)
    (actor / "nowhere").symlink_to(tmp_path / "nowhere")
    (found,) = Checkpoints(LocalSource(tmp_path))
    assert found.complete
    assert len(found.info.files) == 4


def test_a_file_beside_the_model_that_is_too_large_for_one_is_told(tmp_path: Path) -> None:
    huggingface = write_step(tmp_path / "run", 10) / "actor" / "huggingface"
    for name in ("vocabulary.bin.txt", "model.safetensors", "pytorch_model.bin"):
        with (huggingface / name).open("wb") as file:
            file.truncate(100_000_000)
    done = Checkpoints(LocalSource(tmp_path / "run")).select(10).merge(tmp_path / "model")
    assert {path.name for path in done.path.iterdir()} == {*config_files(), "model.safetensors"}
    (warning,) = [each for each in done.warnings if "left out" in each]
    assert warning.startswith("huggingface/vocabulary.bin.txt was left out, since 100 MB are too much")


@pytest.mark.parametrize(("kept", "gone"), [((1,), "rank 0"), ((3,), "ranks 0-2"), ((1, 3), "ranks 0, 2")])
def test_what_a_node_without_rank_0_has(tmp_path: Path, kept: tuple[int, ...], gone: str) -> None:
    step = write_step(tmp_path / "run", 10)
    shutil.rmtree(step / "actor" / "huggingface")
    content = (step / "actor" / "model_world_size_2_rank_1.pt").read_bytes()
    for file in (step / "actor").glob("model_*.pt"):
        file.unlink()
    size = 4 if 3 in kept else 2
    for rank in kept:
        (step / "actor" / f"model_world_size_{size}_rank_{rank}.pt").write_bytes(content)
    named = Checkpoints(LocalSource(tmp_path / "run")).select(10)
    with pytest.raises(CheckpointError, match=f"^{gone} of {size} and huggingface/config.json are not here") as caught:
        named.merge(tmp_path / "model")
    assert "cloudrl checkpoints list" in str(caught.value.hint)


def test_what_is_left_out_beside_a_model_is_said(tmp_path: Path) -> None:
    """Weights are what a merge replaces; a tokenizer may have a name that ends like theirs."""
    beside = write_step(tmp_path / "run", 10) / "actor" / "huggingface"
    weights = ("model.safetensors", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json", "model.pt")
    others = ("tokenizer.bin", "speech/vocab.pt", "spk.pth", "extra.safetensors")
    for name in (*weights, *others):
        (beside / name).parent.mkdir(exist_ok=True)
        (beside / name).write_bytes(b"{}" if name.endswith(".json") else (2).to_bytes(8, "little") + b"{}")
    done = merged(tmp_path / "run", tmp_path / "model")
    said = {
        f"huggingface/{name} was left out, since its name ends like that of weights: copy it if needed"
        for name in others
    }
    assert {each for each in done.warnings if "left out" in each} == said
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
