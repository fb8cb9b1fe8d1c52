"""The reference has every public name and every field, with the defaults, exit codes and limits of the code."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import PydanticUndefined

import cloudrl
from cloudrl.jobs import JobHandle
from cloudrl.jobs.uploads import SMALL_BYTES
from cloudrl.node.job_secrets import MAX_BYTES
from cloudrl.protocol.backoff import Backoff
from cloudrl.protocol.options import AgentOptions
from cloudrl.providers.model import UP_TIMEOUT_S
from cloudrl.spec.base import Spec
from cloudrl.spec.fleet import IDLE_DURATION
from cloudrl.transport.ray_client import PACKAGE_LIMIT_BYTES

PAGE = (Path(__file__).parents[2] / "docs/reference.md").read_text()
SPECS = (cloudrl.Cluster, cloudrl.Fleet, cloudrl.Job)
VERBS = {
    "| `cloudrl.RunningCluster`": cloudrl.RunningCluster,
    "| `cloudrl.Cluster`": cloudrl.Cluster,
    "A job": JobHandle,
}


def section(title: str) -> str:
    """What stands below a heading."""
    [text] = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return text


def rows(title: str) -> list[list[str]]:
    """The cells of the tables below a heading, without their heads."""
    lines = [line for line in section(title).splitlines() if re.match(r"\| [^|-]", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def default(spec: type[Spec], name: str) -> str:
    """As the page would say it; nothing where it is empty."""
    value: Any = spec.model_fields[name].default
    if value is PydanticUndefined:
        return "needed"
    if isinstance(value, tuple):
        value = " ".join(value)
    return "" if value in (None, "", {}) else f"`{value}`"


def test_every_public_name_is_there_and_no_other() -> None:
    errors = [f"cloudrl.{name}" for row in rows("Errors") for name in code(row[0])]
    said = [re.split(r"[^\w.]", each)[0] for row in rows("Python") for each in code(row[0])]
    assert {f"cloudrl.{name}" for name in cloudrl.__all__} == {*said, *errors}


def test_every_error_has_its_exit_code() -> None:
    listed = {code(row[0])[0]: int(row[1]) for row in rows("Errors")[1:]}
    public = {name: getattr(cloudrl, name) for name in cloudrl.__all__ if name in vars(cloudrl.errors)}
    assert listed == {name: each.exit_code for name, each in public.items()}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.__name__)
def test_every_field_is_there_with_its_default(spec: type[Spec]) -> None:
    said = {name: row[1] for row in rows(spec.__name__) for name in code(row[0])}
    assert said == {name: default(spec, name) for name in spec.model_fields}


def test_the_fields_of_the_other_parts_are_there() -> None:
    said = {code(row[0])[0]: code(row[1]) for row in rows("Other parts")}
    parts = {"Artifact", "DataSet", "NetworkVolume", "Search", "Service", "Volume"}
    assert said == {name: list(getattr(cloudrl, name).model_fields) for name in parts}


@pytest.mark.parametrize("start", VERBS)
def test_the_verbs_are_there(start: str) -> None:
    [text] = [part for part in re.split(r"\n\n|\n(?=\|)", section("Python")) if part.startswith(start)]
    verbs = [found[1] for each in code(text) if (found := re.match(r"\.(\w+)", each))]
    assert len(verbs) > 2
    assert [verb for verb in verbs if not hasattr(VERBS[start], verb)] == []


def test_the_limits_are_those_of_the_code() -> None:
    options, text = AgentOptions.from_argv([]), section("Limits")
    assert f"{PACKAGE_LIMIT_BYTES // 2**20} MiB, as Ray's" in text
    assert f"above {SMALL_BYTES // 2**20} MiB" in text
    assert f"{MAX_BYTES // 2**10} KiB together" in text
    assert f"given back after {IDLE_DURATION.replace('h', ' h')}," in text
    assert f"given up after {options.lost_after_s:g} s" in text
    assert f"try for {Backoff.give_up_s:g} s" in text
    assert f"`up` waits {UP_TIMEOUT_S / 3600:g} h" in text
    deadlines = {row[2]: row[1].split()[0] for row in rows("Limits") if len(row) == 3}
    for phase in ("join", "setup", "ray", "fetch"):
        assert deadlines[f"`--{phase}-timeout-s`"] == f"{getattr(options, f'{phase}_timeout_s'):g}"
