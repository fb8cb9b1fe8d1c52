"""The configuration in a log, as verl prints it."""

import time
from pprint import pformat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.verl.printed_config import ConfigReader

CONFIG = {
    "actor_rollout_ref": {"actor": {"optim": {"lr": 1e-06}, "use_kl_loss": True, "clip": None}, "empty": {}},
    "data": {"train_files": ["/a.parquet", "/b.parquet"], "prompt": "say {"},
    "trainer": {"experiment_name": "a 'run'"},
}
FLAT = {
    "actor_rollout_ref.actor.optim.lr": "1e-06",
    "actor_rollout_ref.actor.use_kl_loss": "True",
    "actor_rollout_ref.actor.clip": "None",
    "actor_rollout_ref.empty": "{}",
    "data.train_files": "['/a.parquet', '/b.parquet']",
    "trainer.experiment_name": "a 'run'",
}
PREFIX = "\x1b[36m(TaskRunnerV1 pid=20460)\x1b[0m "


def read(*lines: str) -> ConfigReader:
    reader = ConfigReader()
    for line in lines:
        reader.read(line)
    return reader


def printed(config: object) -> list[str]:
    return [PREFIX + line for line in pformat(config).splitlines()]


def test_it_is_read_once():
    config = {**CONFIG, "data": {"train_files": CONFIG["data"]["train_files"]}}
    assert read("before", *printed(config), "after", *printed({**config, "trainer": {}})).config == FLAT


@pytest.mark.parametrize(
    "lines",
    [
        printed(CONFIG),  # a brace within a text
        [*printed({**CONFIG, "data": {}})[:3], "(other pid=1) said between", *printed({**CONFIG, "data": {}})[3:]],
        ["{'actor_rollout_ref': __import__('os').getpid()}"],
        ["{'actor_rollout_ref': " + "[" * 5000 + "}"],
        ["{'actor_rollout_ref': {'a': 1}"],
    ],
)
def test_what_cannot_be_read_is_none(lines: list[str]):
    assert read(*lines).config is None


@given(st.lists(st.text(alphabet="{}'actor_rollout_ref: \n0[]\\", max_size=40)))
def test_no_line_makes_it_fail(lines: list[str]):
    read("{'actor_rollout_ref': ", *lines)


def test_a_configuration_without_an_end_is_read_once():
    """Each of its lines may be the last one, and none closes all that is open."""
    before_s = time.process_time()
    assert read("{'actor_rollout_ref': {", *[" 'a': {'b': 'cccccccccccccccccccc'}"] * 19_000).config is None
    assert read("{'actor_rollout_ref': {" + "'a': 1, " * 500_000, "}}").config is None, "no configuration is so long"
    assert time.process_time() - before_s < 2
