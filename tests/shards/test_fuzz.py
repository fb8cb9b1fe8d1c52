"""Files spoiled at random: never a traceback, never another model than the good one, never code that runs.

30 cases of each of the four kinds; with CLOUDRL_SLOW=1 they are 10,000 together.
"""

import os
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from shard_files import FIXTURES, copied, edit, members, merge_role, opened, read_safetensors, shard_path

from cloudrl.errors import CheckpointError
from cloudrl.shards.validate import verify

CASES = 2_500 if os.environ.get("CLOUDRL_SLOW") == "1" else 30
SAVES = [("torch-2.4.1/fsdp1", 2), ("torch-2.6.0/hsdp", 4), ("torch-2.13.0/fsdp2", 2)]


@cache
def good_model(save: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        actor = copied(save, Path(folder))
        return read_safetensors(merge_role(actor, Path(folder) / "good").path)


def attempt(save: str, world_size: int, spoil: object) -> tuple[dict[str, object] | None, dict[str, object], bool]:
    """What came out of the spoiled checkpoint (None: an error that is meant for people), what comes out of the good
    one, and whether `verify` has no complaint.
    """
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        actor = copied(save, here)
        spoil(shard_path(actor, 1, world_size))  # type: ignore[operator]
        result = None
        with suppress(CheckpointError):
            result = read_safetensors(merge_role(actor, here / "bad").path)
        report = verify(opened(actor))
        assert {path.name for path in here.iterdir()} == {"global_step_1"} | ({"bad"} if result else set())
        return result, good_model(save), report.ok


@settings(max_examples=CASES)
@given(st.sampled_from(SAVES), st.integers(0, 20_000))
def test_truncated(save: tuple[str, int], length: int) -> None:
    result, good, ok = attempt(*save, lambda path: path.write_bytes(path.read_bytes()[:length]))
    if length < shard_path(FIXTURES / save[0], 1, save[1]).stat().st_size:
        assert (result, ok) == (None, False)
    else:
        assert (result, ok) == (good, True)


@settings(max_examples=CASES)
@given(st.sampled_from(SAVES), st.lists(st.tuples(st.integers(0, 8000), st.integers(0, 7)), min_size=1, max_size=4))
def test_flipped_bits(save: tuple[str, int], flips: list[tuple[int, int]]) -> None:
    def spoil(path: Path) -> None:
        data = bytearray(path.read_bytes())
        for at, bit in flips:
            data[at % len(data)] ^= 1 << bit
        path.write_bytes(data)

    result, good, ok = attempt(*save, spoil)
    assert result == good or (result is None and not ok)  # a date or a filling byte may change without harm


@settings(max_examples=CASES)
@given(st.sampled_from(SAVES), st.binary(max_size=2000), st.integers(0, 8000))
def test_random_bytes(save: tuple[str, int], data: bytes, at: int) -> None:
    def spoil(path: Path) -> None:
        content = path.read_bytes()
        start = at % len(content)
        path.write_bytes(content[:start] + data + content[start + len(data) :])

    result, good, ok = attempt(*save, spoil)
    assert result == good or (result is None and not ok)


@settings(max_examples=CASES)
@given(st.sampled_from(SAVES), st.binary(min_size=1, max_size=8), st.integers(0, 10_000))
def test_changed_pickles_with_the_right_crc(save: tuple[str, int], data: bytes, at: int) -> None:
    """Nothing can tell that such a file is not as it was saved; it only must not get out of hand."""
    size = len(members(shard_path(FIXTURES / save[0], 1, save[1]))["data.pkl"])

    def change(content: dict[str, bytes]) -> None:
        start = at % size
        content["data.pkl"] = content["data.pkl"][:start] + data + content["data.pkl"][start + len(data) :]

    result, good, _ = attempt(*save, lambda path: edit(path, change))
    assert result is None or result.keys() == good.keys()
