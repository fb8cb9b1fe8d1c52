"""Checkpoints with a LoRA adapter, from the folder or the nodes of a run to a model or a PEFT folder."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_cluster import FakeCluster
from kept_logs import keep
from lora_step import META, Floats, torch_file, write_lora_step
from shard_files import copied, merge, merge_role, opened, read_safetensors
from shards.crafted import InMemory
from typed_command import Run

from cloudrl.checkpoints.handle import CheckpointHandle, Checkpoints
from cloudrl.checkpoints.push import plan_push
from cloudrl.checkpoints.sources import ClusterSource, LocalSource
from cloudrl.errors import CheckpointError, InputError
from cloudrl.options.merge import MergeOptions
from cloudrl.protocol.ray_state import RayState
from cloudrl.protocol.wire import to_json
from cloudrl.saves.archive import driver_log, state_file
from cloudrl.saves.records import FileRecord, SaveRecord
from cloudrl.shards.source import MergeInputs, Sidecars
from cloudrl.shards.validate import verify
from cloudrl.verl.first_adapter import first_adapter

SHARD = "model_world_size_1_rank_0.pt"


@pytest.fixture
def expected(tmp_path: Path) -> Floats:
    """Of the run in `tmp_path / "mine"`."""
    return write_lora_step(tmp_path / "mine", 7)


def latest(folder: Path) -> CheckpointHandle:
    return Checkpoints(LocalSource(folder)).latest()


def actor(folder: Path) -> Path:
    return folder / "mine" / "global_step_7" / "actor"


def floats(folder: Path) -> Floats:
    found = read_safetensors(folder)
    assert {kind for kind, _, _ in found.values()} == {"F32"}
    return {name: np.frombuffer(data, "<f4").reshape(shape) for name, (_, shape, data) in found.items()}


def same(one: Floats, other: Floats) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_it_is_added_to_the_model(expected: Floats, tmp_path: Path) -> None:
    assert latest(tmp_path).verify().ok
    latest(tmp_path).merge(tmp_path / "model", dtype="fp32")
    assert same(floats(tmp_path / "model"), expected)
    merge_role(actor(tmp_path), tmp_path / "bf16")
    rounded = read_safetensors(tmp_path / "bf16")
    for name, values in expected.items():
        bits = values.view("<u4")
        upper = (bits + 0x7FFF + ((bits >> 16) & 1) >> 16).astype("<u2")
        assert rounded[name] == ("BF16", values.shape, upper.tobytes())


def test_shards_on_other_machines_give_the_same(expected: Floats, tmp_path: Path) -> None:
    near = opened(actor(tmp_path))
    assert isinstance(near, MergeInputs)
    far = replace(near, shards={0: InMemory((actor(tmp_path) / SHARD).read_bytes(), SHARD)})
    merge(far, tmp_path / "model", dtype="fp32")
    assert same(floats(tmp_path / "model"), expected)
    damaged = (actor(tmp_path) / SHARD).read_bytes()
    half = next(data for name, data in stored(tmp_path).items() if name.endswith("q_proj.lora_A.default.weight"))
    at = damaged.index(half.tobytes())
    far = replace(near, shards={0: InMemory(damaged[:at] + b"\7" + damaged[at + 1 :], SHARD)})
    with pytest.raises(CheckpointError, match="is damaged"):
        merge(far, tmp_path / "again")


def stored(folder: Path) -> Floats:
    from cloudrl.shards.shard import open_shard
    from cloudrl.shards.source import LocalShard

    shard = open_shard(LocalShard(actor(folder) / SHARD), 0)
    read = shard.archive.source.read
    return {
        name: np.frombuffer(read(shard.offset(each.view), each.view.size_bytes), "<f4").reshape(each.shape)
        for name, each in shard.tensors.items()
    }


@pytest.mark.usefixtures("expected")
def test_by_itself(tmp_path: Path) -> None:
    done = latest(tmp_path).merge(tmp_path / "adapter", lora="adapter")
    halves = {name.replace(".default", ""): each for name, each in stored(tmp_path).items() if "lora_" in name}
    assert same(floats(tmp_path / "adapter"), halves)
    assert (done.tensors, done.size_bytes) == (14, sum(each.nbytes for each in halves.values()))
    found = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (found["r"], found["lora_alpha"], found["task_type"]) == (2, 6, "CAUSAL_LM")
    assert found["target_modules"] == sorted({name[17:].rpartition(".lora_")[0] for name in halves})
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    latest(tmp_path).merge(tmp_path / "bf16", lora="adapter", dtype="bf16")
    assert {kind for kind, _, _ in read_safetensors(tmp_path / "bf16").values()} == {"BF16"}


@pytest.mark.usefixtures("expected")
def test_an_adapter_that_was_saved_alone(tmp_path: Path) -> None:
    """verl's `checkpoint.save_lora_only`."""
    latest(tmp_path).merge(tmp_path / "before", lora="adapter")
    halves = {name: each for name, each in stored(tmp_path).items() if "lora_" in name}
    (actor(tmp_path) / SHARD).write_bytes(torch_file(halves, SHARD.removesuffix(".pt")))
    with pytest.raises(CheckpointError, match="has an adapter alone, without the model") as caught:
        latest(tmp_path).merge(tmp_path / "model")
    assert "--lora adapter" in str(caught.value.hint)
    latest(tmp_path).merge(tmp_path / "after", lora="adapter")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "after" / name).read_bytes() == (tmp_path / "before" / name).read_bytes()


@pytest.mark.usefixtures("expected")
def test_what_tells_the_scale(tmp_path: Path) -> None:
    meta = actor(tmp_path) / "lora_train_meta.json"
    record = SaveRecord(7, "actor", 0, 1, 1.0, {meta.name: FileRecord(1, "0")})
    inputs = opened(actor(tmp_path))
    assert isinstance(inputs, MergeInputs)
    found = verify(replace(inputs, sidecars={0: Sidecars(record=record)})).findings
    assert "lora_train_meta.json is not as it was saved at step 7" in [each.message for each in found]
    meta.write_text(json.dumps(META | {"r": 4}))
    with pytest.raises(CheckpointError, match="does not fit the model and the rank 4 of lora_train_meta"):
        latest(tmp_path).merge(tmp_path / "model")
    for text in (None, " " * (1 << 17)):
        meta.unlink()
        if text is not None:
            meta.write_text(text)
        found = Checkpoints(LocalSource(tmp_path)).select(7)
        report = found.verify()
        assert report.ok is (text is None)  # what is not JSON is damaged besides
        assert any("there is no lora_train_meta.json" in each.message for each in report.findings)
        for lora in ("merge", "adapter"):
            with pytest.raises(CheckpointError, match="nothing tells the alpha"):
                found.merge(tmp_path / "model", lora=lora)
        meta.touch()
    assert not (tmp_path / "model").exists()


@pytest.mark.usefixtures("expected")
def test_the_config_of_the_first_adapter_tells_the_scale(tmp_path: Path) -> None:
    unsure = "is multiplied with 3: lora_train_meta.json has rank 2 and alpha 6, and no word of use_rslora"
    plain = latest(tmp_path).merge(tmp_path / "plain", dtype="fp32")
    assert any(unsure in warning for warning in plain.warnings)
    told = actor(tmp_path) / "adapter_config.json"
    told.write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 6, "use_rslora": True}))
    stabilized = latest(tmp_path).merge(tmp_path / "stabilized", dtype="fp32")
    assert not any("is multiplied with" in warning for warning in stabilized.warnings)
    assert not same(floats(tmp_path / "plain"), floats(tmp_path / "stabilized"))
    latest(tmp_path).merge(tmp_path / "adapter", lora="adapter")
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["use_rslora"] is True
    (actor(tmp_path) / "lora_adapter").mkdir()
    told.rename(actor(tmp_path) / "lora_adapter" / "adapter_config.json")
    latest(tmp_path).merge(tmp_path / "older", dtype="fp32")
    assert same(floats(tmp_path / "older"), floats(tmp_path / "stabilized"))
    told.write_text(" " * (1 << 23))
    with pytest.raises(CheckpointError, match="has 8388608 bytes, and 4194304 is the most"):
        latest(tmp_path).merge(tmp_path / "large")


@pytest.mark.io
@pytest.mark.usefixtures("expected")
@pytest.mark.parametrize(
    ("word", "end"),
    [("=/models/mine", "refused"), ("=null", "sure"), ("=https://me:hunter2@host/x", "refused"), (None, "unsure")],
)
def test_the_command_of_the_run_tells_of_a_first_adapter(word: str | None, end: str, tmp_path: Path) -> None:
    command = f"python3 -m verl.trainer.main_ppo actor_rollout_ref.model.lora_adapter_path{word}" if word else "x.sh"
    with FakeCluster() as cluster:
        cluster.add("job", b"", entrypoint=command, metadata={"job_name": "mine"})
        cluster.add("other", b"", entrypoint="bash mine.sh", metadata={"job_name": "other"})
        told = first_adapter(ClusterSource(cluster.connection()).commands("mine"))
    inputs = replace(opened(actor(tmp_path)), first_adapter=told)
    assert isinstance(inputs, MergeInputs)
    if end == "refused":
        with pytest.raises(CheckpointError, match=r"the run started from the adapter \S+, and .* no word of") as caught:
            merge(inputs, tmp_path / "model")
        assert "hunter2" not in str(caught.value)
        assert "Copy adapter_config.json of that adapter beside the shards" in str(caught.value.hint)
    else:
        warnings = merge(inputs, tmp_path / "model").warnings
        assert any("is multiplied with 3" in each for each in warnings) is (end == "unsure")


@pytest.mark.usefixtures("expected")
@pytest.mark.parametrize("folder", [".", "mine", "mine/global_step_7", "mine/global_step_7/actor"])
def test_logs_that_are_kept_beside_a_run_tell_its_command(folder: str, tmp_path: Path) -> None:
    def kept(job: str, name: str, path: str) -> None:
        command = f"python3 -m verl.trainer.main_ppo actor_rollout_ref.model.lora_adapter_path={path}"
        told = {"submission_id": job, "status": "SUCCEEDED", "entrypoint": command, "metadata": {"job_name": name}}
        keep(tmp_path, state_file(job), json.dumps(to_json(RayState(5.0, told))).encode())
        keep(tmp_path, driver_log(job), b"x")

    kept("other.1", "other", "/models/other")
    odd = RayState(5.0, {"submission_id": "odd", "metadata": "mine"})
    keep(tmp_path, state_file("odd"), json.dumps(to_json(odd)).encode())
    keep(tmp_path, driver_log("odd"), b"x")
    at = tmp_path / folder
    assert any("is multiplied with" in each for each in latest(at).merge(tmp_path / "unsure").warnings)
    kept("job.1", "mine", "null")
    assert not any("is multiplied with" in each for each in latest(at).merge(tmp_path / "sure").warnings)
    kept("job.2", "mine", "/models/mine")
    with pytest.raises(CheckpointError, match="the run started from the adapter /models/mine, and"):
        latest(at).merge(tmp_path / "refused")


def test_there_is_none(tmp_path: Path) -> None:
    whole = copied("torch-2.13.0/fsdp2", tmp_path)
    with pytest.raises(CheckpointError, match="has no LoRA adapter"):
        merge_role(whole, tmp_path / "model", lora="adapter")
    with pytest.raises(InputError, match="lora 'both' is unknown; choose merge or adapter"):
        merge_role(whole, tmp_path / "model", lora="both")


@pytest.mark.usefixtures("expected")
def test_its_card(tmp_path: Path) -> None:
    plan = plan_push(latest(tmp_path), "me/it", tmp_path / "staging", options=MergeOptions(lora="adapter"))
    assert "library_name: peft" in plan.card
    assert "| Weights | LoRA adapter, keep |" in plan.card
    assert plan.staging != plan_push(latest(tmp_path), "me/it", tmp_path / "staging").staging
    with pytest.raises(InputError, match="lora 'x' is unknown"):
        plan_push(latest(tmp_path), "me/it", tmp_path / "staging", options=MergeOptions(lora="x"))


def test_by_command(expected: Floats, tmp_path: Path, run: Run) -> None:
    words = ["checkpoints", "merge", "--dir", str(tmp_path), "--to"]
    said = run(*words, str(tmp_path / "model"), "--dtype", "fp32", "--json")
    assert json.loads(said.out)["lora"] == "merge"
    assert same(floats(tmp_path / "model"), expected)
    said = run(*words, str(tmp_path / "adapter"), "--lora", "adapter", "--json")
    assert [json.loads(said.out)[key] for key in ("dtype", "lora", "tensors")] == ["keep", "adapter", 14]
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()
