"""Where the checkpoints are that a command means: a folder of this machine, or a cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloudrl.cli import _output
from cloudrl.cli._target import connect, running_clusters
from cloudrl.errors import InputError
from cloudrl.providers.registry import find

if TYPE_CHECKING:
    from cloudrl.checkpoints.sources import CheckpointSource

StepArgument = Annotated[
    str | None,
    typer.Argument(metavar="[STEP]", help="A step; `latest`, the newest complete one, if left out."),
]
WhereArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[CLUSTER|DIR]", help="A cluster, or a folder; not needed when one cluster is up."
    ),
]
RunOption = Annotated[
    str | None, typer.Option("--run", metavar="NAME", help="The run, where several have the step.")
]
RoleOption = Annotated[str, typer.Option("--role", help="actor or critic.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="bf16, fp16, fp32, or keep.")]
WaitOption = Annotated[
    float,
    typer.Option("--wait", metavar="MINUTES", help="How long to wait for a node that stays silent.", min=0),
]


def origin(where: str | None, wait_min: float = 10.0) -> CheckpointSource:
    """The folder or cluster of that name; the only cluster for None.

    Raises:
        InputError: There is none, or there are several clusters.
    """
    from cloudrl.checkpoints.sources import ClusterSource, LocalSource
    from cloudrl.protocol.backoff import Backoff

    if where is not None and is_folder(where):
        return LocalSource(Path(where).expanduser())
    kept = _kept_folder(where)
    if kept is not None:
        return LocalSource(kept)
    name = where if where is not None else _only_cluster()
    return ClusterSource(connect(name, None), Backoff(give_up_s=wait_min * 60), _output.note)


def is_folder(text: str) -> bool:
    """Whether a word means a folder: by its form, or since there is one."""
    return "/" in text or text.startswith(("~", ".")) or os.path.isdir(text)  # noqa: PTH112  Path's raises for a long word


def step_and_where(step: str | None, where: str | None) -> tuple[str, str | None]:
    """Both may be left out, so the first word may be the second."""
    if step is not None and where is None and not (step.isdecimal() or step == "latest"):
        return "latest", step
    return step or "latest", where


def _only_cluster() -> str:
    """The cluster that is up; these commands take its name as an argument, not as an option."""
    running = running_clusters()
    if not running:
        raise InputError(
            "there is no cluster", hint="Name a folder, for example: cloudrl checkpoints list ./checkpoints"
        )
    if len(running) > 1:
        raise InputError(
            f"several clusters are up: {', '.join(running)}",
            hint=f"Name one of them, for example: cloudrl checkpoints list {running[0]}",
        )
    return running[0]


def _kept_folder(where: str | None) -> Path | None:
    """What a cluster that is over has left on this machine."""
    if where is None:
        return None
    looks = find(where).clusters
    folder = looks[0].checkpoint_dir if looks and looks[0].is_over and looks[0].nodes_are_here else None
    return Path(folder) if folder is not None and Path(folder).is_dir() else None
