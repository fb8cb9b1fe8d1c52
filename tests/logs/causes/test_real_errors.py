"""What the installed torch, transformers, datasets and verl really raise is known by its signature."""

import json
import os
from pathlib import Path

import pytest
from verl_forks import Script

from cloudrl.logs.causes.signatures import recognise
from cloudrl.logs.causes.tracebacks import innermost

pytestmark = pytest.mark.verl

SIGNATURES = {
    "port_taken": "port-taken",
    "rank_missing": "rank-missing",
    "store_missing": "rank-missing",
    "no_interface": "gloo-network",
    "peer_gone": "peer-gone",
    "peer_silent": "collective-timeout",
    "nan": "nan",
    "out_of_memory": "allocation-failed",
    "too_many_files": "too-many-files",
    "disk_full": "disk-full",
    "shards_missing": "shards-missing",
    "wrong_model": "wrong-model",
    "wrong_folder": "wrong-model",
    "data_missing": "data-missing",
    "divisibility": "divisibility",
    "reward_missing": "file-missing",
    "reward_unknown": "reward-unknown",
    "reward_fails": "reward-fails",
    "tool_fails": "tool-fails",
}


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("errors")
    script = Path(__file__).with_name("real_errors.py")
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    Script(script, ["told.json"], environ=env, folder=folder).end()
    return json.loads((folder / "told.json").read_text())


def test_each_error_has_its_row(errors: dict[str, str]):
    assert set(errors) == set(SIGNATURES)


@pytest.mark.parametrize("name", SIGNATURES)
def test_an_error_is_known(name: str, errors: dict[str, str]):
    found = innermost(errors[name])
    assert recognise("\n".join(found.lines)).name == SIGNATURES[name]
    assert found.error
