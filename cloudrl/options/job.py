"""What the user asks for when a job is submitted, beyond its recipe."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

from cloudrl.options.declaration import Option


def _variables(items: Sequence[str]) -> dict[str, str]:
    from cloudrl.options.environment import parse_env

    return parse_env(items, os.environ)


def _runtime_env(path: Path) -> dict[str, Any]:
    from cloudrl.options.environment import load_runtime_env

    return load_runtime_env(path)


ENV = Option(
    "Environment variable; K alone copies this shell's. Repeatable.", "K[=V]", ("--env", "-e"),
    typed=list[str], read=_variables,
)  # fmt: skip


@dataclass(frozen=True)
class SubmitOptions:
    """What a job is to be beyond its recipe; None leaves the choice to cloudrl."""

    model: Annotated[
        str | None, Option("Model: a Hub ID, or a folder here (with ./).", "HUB_ID|./DIR", is_alias=True)
    ] = None
    """Also one that the cluster has prepared, or an absolute folder on the nodes."""
    data: Annotated[
        tuple[str, ...],
        Option(
            "Data set by name or Hub ID, a parquet, jsonl or csv file, or a folder of them. What verl cannot read is "
            "converted. Repeatable.",
            "NAME|PATH", typed=list[str], read=tuple, is_alias=True,
        ),
    ] = ()  # fmt: skip
    reward: Annotated[
        str | None, Option("Reward function. Default FUNCTION: compute_score.", "FILE.py[:FUNCTION]", is_alias=True)
    ] = None
    steps: Annotated[int | None, Option("Total training steps.", "N", is_alias=True)] = None
    asynchronous: Annotated[
        bool,
        Option(
            "Generate the next answers while training (verl's mode colocate_async).",
            names=("--async",),
            sets=True,
            is_alias=True,
        ),
    ] = False
    """Pays off with long answers: verl measures a third less time."""
    rollout_nodes: Annotated[
        int | None,
        Option(
            "Nodes that only generate, while the others train (verl's mode separate_async).",
            "N",
            least=1,
            is_alias=True,
        ),
    ] = None
    """Implies `asynchronous`."""
    name: Annotated[str | None, Option("Run name. Using the same name again resumes from its checkpoints.", "RUN")] = (
        None
    )
    """The run goes on from the newest step that its ranks can load. None makes a name of recipe and time, so that no
    run continues another by accident."""
    group: Annotated[
        str | None,
        Option("Label of runs that repeat each other, such as several seeds; `report` draws their mean.", "NAME"),
    ] = None
    """Trackers get it, too, where they have groups."""
    track: Annotated[
        tuple[str, ...],
        Option(
            "Send metrics to wandb, tensorboard, swanlab, mlflow or trackio. Repeatable.",
            "LOGGER", typed=list[str], read=tuple, is_alias=True,
        ),
    ] = ()  # fmt: skip
    """Beside the console. A run that resumes goes on as one curve in the first three."""
    env: Annotated[Mapping[str, str], ENV] = field(default_factory=dict, repr=False)
    """They win over those of `runtime_env` and recipe. Secrets among them reach the job through the agents, where the
    cluster has them and its Ray is 2.43 or later."""
    runtime_env: Annotated[
        Mapping[str, Any],
        Option(
            "Ray runtime environment as YAML, as in `ray job submit`.", "FILE", typed=Path, read=_runtime_env,
        ),
    ] = field(default_factory=dict, repr=False)  # fmt: skip
    working_dir: Annotated[str | None, Option("Folder to upload; the job starts in it.", "DIR")] = None
    """Or a URL; wins over the one of `runtime_env`. A verl in it takes the place of the nodes'."""
    submission_id: Annotated[str | None, Option("Ray's ID for the job; must be unused.", "ID")] = None
    """Makes a repeated call harmless; None makes one of name and time."""
    debug: Annotated[
        str | None,
        Option("Let breakpoint() wait for `cloudrl debug`.", names=("--debug",), sets="debugpy"),
        Option("The same with pdb, Ray's legacy debugger. Implies --debug.", names=("--legacy-debugger",), sets="pdb"),
    ] = None
    """The debugger. With None, `breakpoint()` does nothing in a job."""
    post_mortem: Annotated[bool, Option("Let a task that fails wait, too. Implies --debug.", sets=True)] = False
    durable: Annotated[
        bool | None,
        Option(
            "Leave the job with the cluster's agents, also behind other jobs. They start it again after a loss; "
            "refused if they cannot.",
            names=("--durable", "--queue"), sets=True,
        ),
        Option("Hand the job to Ray alone: nothing starts it again after a loss.", names=("--no-durable",), sets=False),
    ] = None  # fmt: skip
    """None: where it can be, on a free cluster; otherwise a note has the reason, and the job goes to Ray alone. Each
    attempt goes on from the newest step that is whole. A job whose own program fails is not tried again."""
    mirror: Annotated[
        str | None,
        Option("Keep copies of a durable job's steps in a folder or bucket that outlives the machines.", "URL"),
    ] = None
    """`/mnt/volume/runs`, one folder that all nodes mount, or `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`.
    After the loss of all disks the job goes on from there."""
    mirror_rate: Annotated[str | None, Option("Most that a node sends there a second: 200MB.", "SIZE")] = None
    """None: half of the time of network and disk. All of it before the cluster ends."""
    save_every: Annotated[str | None, Option("Save when a step ends this long after the last save: 20m.", "TIME")] = (
        None
    )
    """`trainer.save_freq` counts as well, where the user sets it."""
    keep_every: Annotated[
        int | None, Option("Steps that are multiples of N stay for good, of a durable job.", "N", least=1)
    ] = None
    """Beside them the newest `trainer.max_actor_ckpt_to_keep` steps stay to go on from; 2 without that key."""
    keep_best: Annotated[
        str | None,
        Option("The saved step with the highest value of a metric stays for good; min:METRIC the lowest.", "METRIC"),
    ] = None
    """As verl names it: `val-core/openai/gsm8k/reward/mean@1`, `critic/score/mean`. A step without a value of its own
    has the last one since the save before."""
    unchecked: Annotated[bool, Option("Send the job even if its verl configuration cannot work.", sets=True)] = False
    """What is known to be wrong with it becomes notes."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """In verl's keys; they win over recipe and cluster."""

    @property
    def working_dir_source(self) -> str | None:
        """The working directory, wherever it was asked for."""
        return self.working_dir or self.runtime_env.get("working_dir")


class JobKeywords(TypedDict, total=False):
    """The fields of `SubmitOptions` but `overrides`, as keyword arguments; a test compares the two."""

    model: str | None
    data: str | Sequence[str]
    reward: str | None
    steps: int | None
    asynchronous: bool
    rollout_nodes: int | None
    name: str | None
    group: str | None
    track: str | Sequence[str]
    env: Mapping[str, str]
    runtime_env: Mapping[str, Any]
    working_dir: str | None
    submission_id: str | None
    debug: str | None
    post_mortem: bool
    durable: bool | None
    mirror: str | None
    mirror_rate: str | None
    save_every: str | None
    keep_every: int | None
    keep_best: str | None
    unchecked: bool


def submit_options(overrides: Mapping[str, Any] | None, keywords: JobKeywords) -> SubmitOptions:
    """The same for the planning of a job.

    Raises:
        InputError: `runtime_env` is not a runtime environment.
    """
    from cloudrl.options.environment import checked_runtime_env

    checked: dict[str, Any] = {
        "overrides": overrides or {},
        "data": _several(keywords.get("data", ())),
        "track": _several(keywords.get("track", ())),
        "runtime_env": checked_runtime_env(keywords.get("runtime_env", {}), "runtime_env"),
    }
    return SubmitOptions(**{**keywords, **checked})


def _several(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
