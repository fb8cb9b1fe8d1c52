"""A training as it is taken over, and the script that it comes from: values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudrl.scripts.containers import Container
from cloudrl.scripts.lines import Line
from cloudrl.scripts.sandbox import Call
from cloudrl.spec import Job
from cloudrl.spec.hydra import parse_override


@dataclass(frozen=True)
class Taken:
    """One training.

    Attributes:
        fields: Of its recipe, as YAML holds them.
        job: The same.
        call: What started it.
        working_dir: The folder or URL that has to be sent with it, as it is named from here.
        runtime_env: What its runtime environment has beside variables and the working directory.
        secrets: Variables that it needs and no file holds.
        cluster: Fields of the cluster that its arguments say.
        lost: Overrides that the author wrote and that never reached verl.
    """

    fields: Mapping[str, Any]
    job: Job
    call: Call
    working_dir: str | None = None
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    cluster: Mapping[str, Any] = field(default_factory=dict)
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """Where the script is from, and what is known of its cluster beside what it does.

    Attributes:
        name: Of the recipes.
        shown: What messages and files call it.
        here: What relative paths start from.
        text: Of the script, for the places of lines.
        cluster: Fields of the cluster that stand beside the script.
        lines: What became of what stands beside it.
        container: The one that options of sbatch ask for.
        working_dir: The folder that a task sends; absolute.
        mounted: Absolute paths of the nodes -> absolute paths of this machine that a task sends there.
        same_machines: Whether the cluster is going to be on the script's own machines.
    """

    name: str
    shown: str
    here: Path
    text: str
    cluster: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()
    container: Container | None = None
    working_dir: str | None = None
    mounted: Mapping[str, str] = field(default_factory=dict)
    same_machines: bool = False


def lost_fields(taken: Taken) -> dict[str, str]:
    """Overrides that never reached verl, by key."""
    return {key: str(value) for key, value in map(parse_override, taken.lost)}


def cluster_name(name: str) -> str:
    """A cluster's name made of a script's or a job's."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:41].strip("-")
    return slug if re.fullmatch(r"[a-z][a-z0-9-]+", slug) else f"c-{slug or 'cluster'}"[:41]
