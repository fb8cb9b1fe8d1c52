"""A described data set in a dstack task: what the agent reads is what was declared."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
from dstack._internal.utils.nodes_interpolator import interpolate_groups_ip_address
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloudrl.data.request import parse_request
from cloudrl.protocol.options import AgentOptions
from cloudrl.render.dstack import to_dstack
from cloudrl.spec import Cluster, DataSet

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = [
    "'",
    '"',
    "$HOME",
    "`id`",
    "${{ groups[0].nodes[0].IP_ADDRESS }}",
    "${{",
    "\n",
    "\\",
    "\u2028",
    "--x",
    "汉",
    "!",
]
texts = st.lists(
    st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
).map("".join)


@pytest.fixture(scope="module")
def stub_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `python3` that prints its words, each ending in NUL."""
    stub = tmp_path_factory.mktemp("bin") / "python3"
    stub.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    stub.chmod(0o755)
    return stub.parent


@settings(max_examples=60)
@given(
    system=texts.filter(lambda text: text.strip() and "\0" not in text),
    column=st.sampled_from(["q", "it's $x", "a.b"]),
)
@example(system="".join(HOSTILE), column='"')
def test_what_the_agent_reads_is_what_was_declared(system: str, column: str, stub_path: Path) -> None:
    fields: dict[str, Any] = {"prompt_field": column, "system": system, "test_rows": 7, "skip_bad": True}
    cluster = Cluster(name="one", data=["gsm8k", DataSet(name="mine", source="/data/it's.csv", **fields)])
    task = parse_apply_configuration(yaml.safe_load(to_dstack(cluster)))
    commands = [interpolate_groups_ip_address(command, [["10.0.0.1"]]) for command in task.commands]
    done = subprocess.run(
        ["/bin/sh", "-c", " && ".join(command.strip() for command in commands)],
        env={"PATH": f"{stub_path}{os.pathsep}/usr/bin:/bin"}, capture_output=True, timeout=30, check=True,
    )  # fmt: skip
    _, run, *words = done.stdout.decode().split("\0")[:-1]
    assert run == "run"
    gsm8k, mine = AgentOptions.from_argv(words).data
    assert gsm8k == "gsm8k"
    read = parse_request(mine)
    assert (read.name, read.source) == ("mine", "/data/it's.csv")
    assert {name: getattr(read, name) for name in fields} == fields
