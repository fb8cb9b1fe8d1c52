"""Weights in Megatron's distributed format, saved by verl's own manager, against the model that they are of."""

import copy
import importlib.util
import itertools
import json
import pickle
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from crafted import InMemory, archived, dump
from megatron_cases import CASES
from megatron_files import FIXTURES, dist_inputs, expected, extracted, weights
from shard_files import read_safetensors

from cloudrl.errors import CheckpointError
from cloudrl.shards.dist_metadata import DistMetadata, read_metadata
from cloudrl.shards.dtypes import DType, cast_bytes
from cloudrl.shards.megatron import DistInputs, open_shards, plan_dist
from cloudrl.shards.merge import write_model
from cloudrl.shards.pickled import Name, PickledObject
from cloudrl.shards.safe_pickle import read_pickle
from cloudrl.shards.source import LocalShard

DIST_CASES = [name for name, case in CASES.items() if not case.is_default]
SMALL = "qwen2-tied-stages"
Model = dict[str, tuple[str, tuple[int, ...], bytes]]


def merged(inputs: DistInputs, target: Path, dtype: str = "keep") -> Model:
    plan = plan_dist(inputs, dtype=dtype)
    target.mkdir(parents=True)
    assert write_model(plan, target) == plan.warnings
    return read_safetensors(target)


@pytest.fixture
def role(tmp_path: Path) -> Path:
    return extracted(SMALL, tmp_path)


@pytest.mark.parametrize("case", DIST_CASES)
def test_it_is_the_model(case: str, tmp_path: Path) -> None:
    role = extracted(case, tmp_path)
    model, wanted = merged(dist_inputs(role), tmp_path / "model"), expected(tmp_path)
    if CASES[case].is_critic:
        wanted["score.bias"] = (wanted["score.weight"][0], (1,), bytes(2))
    assert model == wanted


@pytest.mark.verl
@pytest.mark.parametrize("case", ["qwen3-moe", "mixtral-unstacked", "qwen2-critic"])
def test_transformers_loads_it(case: str, tmp_path: Path) -> None:
    import transformers

    merged(dist_inputs(extracted(case, tmp_path)), tmp_path / "model")
    kind = "TokenClassification" if CASES[case].is_critic else "CausalLM"
    _, said = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(said.values()), said


def test_a_cast_is_that_of_every_merge(tmp_path: Path) -> None:
    role = extracted("qwen3-more-ranks-than-groups", tmp_path)
    model = merged(dist_inputs(role), tmp_path / "model", "bf16")
    for name, (_, shape, data) in expected(tmp_path).items():
        assert model[name] == ("BF16", shape, cast_bytes(data, DType.FLOAT32, DType.BFLOAT16))


def test_a_critic_says_what_it_is(tmp_path: Path) -> None:
    plan = plan_dist(dist_inputs(extracted("qwen2-critic", tmp_path)))
    config = json.loads(plan.texts["config.json"])
    assert (config["architectures"], config["id2label"]) == (["Qwen2ForTokenClassification"], {"0": "LABEL_0"})


def test_an_output_layer_that_is_not_tied_is_kept(tmp_path: Path) -> None:
    role = extracted("llama-virtual-stages", tmp_path)
    plan = plan_dist(dist_inputs(role, tie_word_embeddings=True))
    assert "lm_head.weight" in {output.name for output in plan.outputs}
    assert json.loads(plan.texts["config.json"])["tie_word_embeddings"] is False


OTHER_CONFIGS = {
    "num_hidden_layers": (3, "config.json says 3 layers"),
    "num_attention_heads": (8, "linear_qkv"),
    "num_key_value_heads": (4, "linear_qkv"),
    "intermediate_size": (16, "linear_fc"),
    "hidden_size": (32, "word_embeddings"),
    "vocab_size": (41, "word_embeddings"),
    "tie_word_embeddings": (False, r"1 tensors of the model are missing: lm_head\.weight"),
    "architectures": (["Qwen3ForCausalLM"], "missing: model.layers.0.self_attn.q_norm.weight"),
}


@pytest.mark.parametrize("key", OTHER_CONFIGS)
def test_the_config_of_another_model_is_refused(role: Path, key: str) -> None:
    value, message = OTHER_CONFIGS[key]
    with pytest.raises(CheckpointError, match=message) as caught:
        plan_dist(dist_inputs(role, **{key: value}))
    assert "--base MODEL" in str(caught.value.hint)


@pytest.mark.parametrize("value", [None, 0, -1, "4", 2.0, 10**9, 10**30, True])
def test_sizes_that_are_none(role: Path, value: object) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json (says|has no value for) num_hidden_layers"):
        plan_dist(dist_inputs(role, num_hidden_layers=value))


def test_a_base_that_the_run_contradicts(role: Path) -> None:
    inputs = replace(dist_inputs(role), saved={"num_layers": 2, "kv_channels": 4, "num_query_groups": 8, "arch": "X"})
    with pytest.raises(CheckpointError, match="num_key_value_heads = 2, and the run had 8"):
        plan_dist(inputs)


def test_an_architecture_that_was_never_compared(role: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"Gemma3ForCausalLM cannot be merged.*Qwen2, Qwen3, Llama, Qwen3Moe, Mixtral"
    ):
        plan_dist(dist_inputs(role, architectures=["Gemma3ForCausalLM"]))


def test_without_a_config(role: Path) -> None:
    with pytest.raises(CheckpointError, match="neither config nor tokenizer") as caught:
        plan_dist(replace(dist_inputs(role), config_files={}))
    assert "--base MODEL" in str(caught.value.hint)


# what is damaged


def test_every_byte_of_a_tensor_counts(role: Path, tmp_path: Path) -> None:
    inputs = dist_inputs(role)
    metadata = read_metadata(inputs.metadata)
    for shard in open_shards(metadata, inputs.data).values():
        path = Path(shard.label)
        for at, member in enumerate(shard.archive.members.values()):
            good = path.read_bytes()
            bad = bytearray(good)
            bad[member.offset + at % member.size_bytes] ^= 1
            path.write_bytes(bad)
            with pytest.raises(CheckpointError, match="is damaged: data/"):
                merged(inputs, tmp_path / path.name / str(at))
            path.write_bytes(good)


def test_a_file_that_is_cut_off(role: Path) -> None:
    path = max(weights(role).glob("*.distcp"), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="it is cut off"):
        plan_dist(dist_inputs(role))


def test_a_file_that_is_missing(role: Path) -> None:
    inputs = dist_inputs(role)
    with pytest.raises(CheckpointError, match=r"1 files that .metadata names are not there: __1_0.distcp"):
        plan_dist(replace(inputs, data={name: each for name, each in inputs.data.items() if name != "__1_0.distcp"}))


# what .metadata may say


def records(role: Path) -> dict[str, object]:
    """Its contents, as inert records."""
    data = (weights(role) / ".metadata").read_bytes()
    top = read_pickle(data, lambda _: True, "x", protocols=(4,), until="all_local_plans")
    return top if isinstance(top, dict) else top.state  # type: ignore[no-any-return]


def reread(records: dict[str, object]) -> DistMetadata:
    return read_metadata(InMemory(b"\x80\x04" + dump(records)[2:], ".metadata"))


def first(records: dict[str, object], name: str, kind: str = "TensorStorageMetadata") -> PickledObject:
    return next(each for each in records[name].values() if each.name.endswith(kind))  # type: ignore[attr-defined]


def test_records_are_read_as_they_were_written(role: Path) -> None:
    assert reread(records(role)) == read_metadata(LocalShard(weights(role) / ".metadata"))


@pytest.mark.parametrize("case", DIST_CASES)
def test_plans_of_the_ranks_are_not_needed(case: str, tmp_path: Path) -> None:
    path = weights(extracted(case, tmp_path)) / ".metadata"
    whole = read_pickle(path.read_bytes(), lambda _: True, "x", protocols=(4,))
    assert reread({key: value for key, value in whole.state.items() if key != "all_local_plans"}) == read_metadata(
        LocalShard(path)
    )


def test_transformed_items(role: Path) -> None:
    found = records(role)
    first(found, "storage_data", "_StorageInfo").state["transform_descriptors"] = ["zstd"]
    with pytest.raises(CheckpointError, match="transformed"):
        reread(found)


@pytest.mark.parametrize("path", ["../__0_0.distcp", "/etc/passwd", "__0_0.distcp\n", "a/__0_0.distcp", "", 3])
def test_files_elsewhere(role: Path, path: object) -> None:
    found = records(role)
    first(found, "storage_data", "_StorageInfo").state["relative_path"] = path
    with pytest.raises(CheckpointError, match="an item would be in"):
        reread(found)


@pytest.mark.parametrize(("offset", "length"), [(-1, 5), (0, -1), (1 << 62, 5), (0.5, 5), (True, 5), (None, 5)])
def test_impossible_places(role: Path, offset: object, length: object) -> None:
    found = records(role)
    first(found, "storage_data", "_StorageInfo").state.update(offset=offset, length=length)
    with pytest.raises(CheckpointError, match="is not as torch writes it"):
        reread(found)


@pytest.mark.parametrize("change", ["gone", "twice", "longer", "shifted", "other"])
def test_chunks_that_do_not_tile(role: Path, change: str) -> None:
    found = records(role)
    tensor = found["state_dict_metadata"]["decoder.layers.mlp.linear_fc2.weight"]  # type: ignore[index]
    chunks = tensor.state["chunks"]
    if change == "gone":
        chunks.pop()
    elif change == "twice":
        chunks.append(chunks[0])
    elif change == "longer":
        tensor.state["size"] = PickledObject("torch.Size", ((3, 16, 24),))
    elif change == "shifted":
        chunks[0].state["sizes"] = PickledObject("torch.Size", ((1, 15, 24),))
    else:
        chunks[0].state["offsets"] = PickledObject("torch.Size", ((0, 1, 0),))
    with pytest.raises(CheckpointError, match="is not as torch writes it"):
        reread(found)


@pytest.mark.parametrize("shape", [(), (1 << 40, 16, 24), (2,), (2, 16)])
def test_a_tensor_of_another_form(role: Path, shape: tuple[int, ...]) -> None:
    """Its item says that it is as long as need be; no file was looked at yet."""
    found = records(role)
    key = "decoder.layers.mlp.linear_fc2.weight"
    tensor = found["state_dict_metadata"][key]  # type: ignore[index]
    first = tensor.state["chunks"][0]
    start = PickledObject("torch.Size", ((0,) * len(shape),))
    tensor.state["size"] = first.state["sizes"] = PickledObject("torch.Size", (shape,))
    tensor.state["chunks"], first.state["offsets"] = [first], start
    stored = {index: info for index, info in found["storage_data"].items() if index.state["fqn"] != key}  # type: ignore[attr-defined]
    index, info = next((index, info) for index, info in found["storage_data"].items() if index.state["fqn"] == key)  # type: ignore[attr-defined]
    index.state["offset"], info.state["length"] = start, 1 << 60
    changed = {**found, "storage_data": {**stored, index: info}}
    with pytest.raises(CheckpointError, match="is not of the model that"):
        plan_dist(replace(dist_inputs(role), metadata=InMemory(b"\x80\x04" + dump(changed)[2:], ".metadata")))


def test_names_that_no_metadata_needs(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> object:
            return exec, (f"open({str(tmp_path / 'pwned')!r}, 'w')",)

    for protocol, what in itertools.product((4, 5), (Hostile(), [Hostile()], {"all_local_plans": Hostile()})):
        data = pickle.dumps(what, protocol)
        with pytest.raises(CheckpointError, match=r"names builtins\.exec|not what torch writes"):
            read_metadata(InMemory(data, ".metadata"))
    for name in ("torch.load", "torch.Tensor", "os.system", "builtins.getattr", "torch.storage.UntypedStorage"):
        with pytest.raises(CheckpointError, match=f"its pickle names {name}"):
            read_metadata(InMemory(b"\x80\x04" + dump(Name(name))[2:], ".metadata"))
    assert not list(tmp_path.iterdir())


def test_a_bomb_is_refused_before_it_takes_memory() -> None:
    with pytest.raises(CheckpointError, match="more than 150994944 bytes of memory"):
        read_metadata(InMemory(b"\x80\x04" + b"]0" * 3_000_000 + b"N.", ".metadata"))
    with pytest.raises(CheckpointError, match="is the most"):
        read_metadata(_Large(b""))


class _Large(InMemory):
    """Zeros without end."""

    def size_bytes(self) -> int:
        return 1 << 40

    def read(self, offset: int, length: int) -> bytes:
        return bytes(length)


def test_an_item_takes_few_bytes(role: Path) -> None:
    """Not the 2.2 KB of its records. A Qwen3-235B-A22B has 78,000 in its optimizer."""
    found, count = records(role), 2000
    key = "decoder.layers.mlp.linear_fc2.weight"
    tensor = copy.deepcopy(found["state_dict_metadata"][key])  # type: ignore[index]
    tensor.state["size"] = PickledObject("torch.Size", ((count, 24),))
    (index, info), *_ = [each for each in found["storage_data"].items() if each[0].state["fqn"] == key]  # type: ignore[attr-defined]
    chunk, chunks, stored = tensor.state["chunks"][0], [], {}
    for row in range(count):
        place = PickledObject("torch.Size", ((row, 0),))
        chunks.append(_with(chunk, offsets=place, sizes=PickledObject("torch.Size", ((1, 24),))))
        stored[_with(index, offset=place)] = _with(info, offset=2000 * row, length=1900)
    tensor.state["chunks"] = chunks
    data = b"\x80\x04" + dump({"state_dict_metadata": {key: tensor}, "storage_data": stored})[2:]
    source = InMemory(data, ".metadata")
    tracemalloc.start()
    try:
        assert len(read_metadata(source).items()) == count
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data) + 900 * count
    finally:
        tracemalloc.stop()


def _with(record: PickledObject, **state: object) -> PickledObject:
    changed = PickledObject(record.name, record.args)
    changed.state = {**record.state, **state}
    return changed


def test_kinds_of_saves_that_are_something_else(role: Path) -> None:
    found = records(role)
    described: dict[str, PickledObject] = found["state_dict_metadata"]  # type: ignore[assignment]
    for prefix, message in (("model.module.", "Megatron-FSDP"), ("optimizer.state.", "such as optimizer.state.")):
        renamed = {**found, "state_dict_metadata": {prefix + key: each for key, each in described.items()}}
        renamed["storage_data"] = _renamed_indices(found, lambda key, prefix=prefix: prefix + key)
        with pytest.raises(CheckpointError, match=message):
            plan_dist(replace(dist_inputs(role), metadata=InMemory(b"\x80\x04" + dump(renamed)[2:], ".metadata")))
    adapter = {
        **found,
        "state_dict_metadata": {key.replace(".weight", ".adapter.weight"): each for key, each in described.items()},
    }
    adapter["storage_data"] = _renamed_indices(found, lambda key: key.replace(".weight", ".adapter.weight"))
    with pytest.raises(CheckpointError, match="LoRA adapters in Megatron's names"):
        plan_dist(replace(dist_inputs(role), metadata=InMemory(b"\x80\x04" + dump(adapter)[2:], ".metadata")))


def _renamed_indices(found: dict[str, object], rename: object) -> dict[PickledObject, object]:
    indices = {}
    for index, info in found["storage_data"].items():  # type: ignore[attr-defined]
        new = PickledObject(index.name, index.args)
        new.state = {**index.state, "fqn": rename(index.state["fqn"])}  # type: ignore[operator]
        indices[new] = info
    return indices


def test_an_item_that_is_another_tensor(role: Path) -> None:
    metadata = read_metadata(LocalShard(weights(role) / ".metadata"))
    item = metadata.tensors["decoder.final_layernorm.weight"].chunks[0].item
    path = weights(role) / item.file
    data = path.read_bytes()
    other = archived({"data.pkl": b"\x80\x02].", "data/0": b"", "version": b"3\n"}, "archive")
    path.write_bytes(data[: item.offset] + other.rjust(item.length, b"\0") + data[item.offset + item.length :])
    with pytest.raises(CheckpointError):
        plan_dist(dist_inputs(role))


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("megatron"), reason="megatron-core is not installed")
@pytest.mark.parametrize(
    "case", [name for name, each in CASES.items() if each.version == "0.16.1" and not each.is_default]
)
def test_made_anew(case: str, tmp_path: Path) -> None:
    """A save of today describes the same tensors in the same cuts as the fixture, and merges to the same model."""
    script = FIXTURES.parents[1] / "make_megatron.py"
    subprocess.run([sys.executable, script, case, "--to", tmp_path], check=True, timeout=280, capture_output=True)
    role, kept = extracted(case, tmp_path / "new", tmp_path), extracted(case, tmp_path / "kept")
    assert cuts(role) == cuts(kept)
    assert merged(dist_inputs(role), tmp_path / "model") == merged(dist_inputs(kept), tmp_path / "kept-model")


def cuts(role: Path) -> object:
    metadata = read_metadata(LocalShard(weights(role) / ".metadata"))
    return {
        key: (each.dtype, each.shape, sorted((chunk.offsets, chunk.sizes) for chunk in each.chunks))
        for key, each in metadata.tensors.items()
    }
