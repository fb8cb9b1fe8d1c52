"""Megatron's files spoiled at random: never a traceback, never other tensors, never code that runs.

40 cases of each of the four kinds; with CLOUDRL_SLOW=1 they are 10,000 together.
"""

import os
import tempfile
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from crafted import InMemory, changed, changes, dump, places
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron_files import dist_inputs, extracted
from shard_files import read_safetensors

from cloudrl.errors import CheckpointError
from cloudrl.shards.dist_metadata import read_metadata
from cloudrl.shards.megatron import DistInputs, plan_dist
from cloudrl.shards.merge import write_model
from cloudrl.shards.safe_pickle import read_pickle
from cloudrl.shards.source import ShardSource

CASES = 2_500 if os.environ.get("CLOUDRL_SLOW") == "1" else 40


@cache
def good() -> DistInputs:
    """A checkpoint in memory."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = dist_inputs(extracted("qwen2-tied-stages", Path(folder)))
        data = {name: in_memory(source) for name, source in inputs.data.items()}
        return replace(inputs, metadata=in_memory(inputs.metadata), data=data)


def in_memory(source: ShardSource) -> InMemory:
    return InMemory(source.read(0, source.size_bytes()), source.label)


def content(source: ShardSource) -> bytes:
    return source.read(0, source.size_bytes())


def model(inputs: DistInputs) -> dict[str, Any] | None:
    """What it merges to; None: an error that is meant for people."""
    with tempfile.TemporaryDirectory() as folder, suppress(CheckpointError):
        write_model(plan_dist(inputs, dtype="keep"), Path(folder))
        return read_safetensors(Path(folder))
    return None


@cache
def good_model() -> dict[str, Any]:
    found = model(good())
    assert found
    return found


@cache
def good_records() -> tuple[dict[str, Any], list[Any]]:
    """What `.metadata` says, and every place in it."""
    top = read_pickle(content(good().metadata), lambda _: True, "x", protocols=(4,), until="all_local_plans")
    return top, list(places(top))


def with_metadata(data: bytes) -> DistInputs:
    return replace(good(), metadata=InMemory(data, ".metadata"))


@settings(max_examples=CASES)
@given(st.data())
def test_changed_records(data: st.DataObject) -> None:
    records, where = good_records()
    new = changed(records, data.draw(st.sampled_from(where)), data.draw(changes()))
    with suppress(OverflowError):  # a number that no pickle of this writer can have
        result = model(with_metadata(b"\x80\x04" + dump(new)[2:]))
        assert result is None or result.keys() == good_model().keys()


@settings(max_examples=CASES)
@given(st.integers(0, 1 << 20), st.binary(max_size=9))
def test_changed_bytes_of_metadata(at: int, data: bytes) -> None:
    content_ = content(good().metadata)
    start = at % len(content_)
    result = model(with_metadata(content_[:start] + data + content_[start + len(data) :]))
    assert result is None or result.keys() == good_model().keys()


@settings(max_examples=CASES)
@given(st.binary(max_size=300), st.integers(0, 5000))
def test_metadata_that_is_cut_off_or_random(data: bytes, length: int) -> None:
    for text in (data, b"\x80\x04" + data, content(good().metadata)[:length]):
        with suppress(CheckpointError):
            read_metadata(InMemory(text, ".metadata"))


@settings(max_examples=CASES)
@given(
    st.sampled_from(["flip", "cut", "insert"]),
    st.integers(0, 1),
    st.integers(0, 1 << 20),
    st.binary(min_size=1, max_size=40),
)
def test_changed_data(how: str, rank: int, at: int, data: bytes) -> None:
    name = f"__{rank}_0.distcp"
    old = content(good().data[name])
    start = at % len(old)
    new = {
        "flip": old[:start] + bytes([old[start] ^ (data[0] or 1)]) + old[start + 1 :],
        "cut": old[:start],
        "insert": old[:start] + data + old[start:],
    }[how]
    result = model(replace(good(), data={**good().data, name: InMemory(new, name)}))
    assert result in (None, good_model())
