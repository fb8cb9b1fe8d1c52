"""Logs that people have posted: the row that names each, or none, with the line that says it."""

from pathlib import Path

import pytest

from cloudrl.logs.causes import Evidence, LogTail
from cloudrl.logs.causes.finder import find_cause
from cloudrl.spec.yaml_core import load_value

FOUND = [
    found
    for name in ("found_logs.yml", "found_forms.yml")
    for found in load_value(Path(__file__).with_name(name).read_text(), name)
]


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found["source"])
def test_a_log_that_was_found(found: dict[str, str | None]):
    cause = find_cause(Evidence(logs=[LogTail("job-driver-x.log", 0, tuple(str(found["log"]).splitlines()))]))
    assert cause is not None
    assert (cause.signature, cause.error[: len(str(found["error"]))]) == (found["signature"], found["error"])
