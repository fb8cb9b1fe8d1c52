"""Records of saves: what is written is read, and what is malformed is refused."""

import json

import pytest

from cloudrl.errors import CheckpointError
from cloudrl.saves.records import FileRecord, SaveRecord

RECORD = SaveRecord(10, "actor", 1, 2, 1789.5, {"model_world_size_2_rank_1.pt": FileRecord(123, "9f86d0")})
VALUE = RECORD.to_json()


def test_what_is_written_is_read() -> None:
    assert SaveRecord.from_json(json.loads(json.dumps(VALUE))) == RECORD
    assert SaveRecord.from_json({**VALUE, "later": "unknown"}) == RECORD


@pytest.mark.parametrize(
    "value",
    [
        None, [], {"step": 1}, {**VALUE, "format": 1}, {**VALUE, "step": "x"}, {**VALUE, "rank": float("inf")},
        {**VALUE, "recorded_at": None}, {**VALUE, "files": []}, {**VALUE, "files": {"a.pt": {"size_bytes": 1}}},
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(value: object) -> None:
    with pytest.raises(CheckpointError, match="not a record of a save"):
        SaveRecord.from_json(value)
