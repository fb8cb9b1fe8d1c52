"""What the user asks for when a job is submitted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SubmitOptions:
    """None leaves the choice to cloudrl."""

    overrides: Mapping[str, Any] = field(default_factory=dict)
    """In verl's keys; they win over recipe and cluster."""
    name: str | None = None
    """The run's name; None makes one of recipe and time, so that no run continues another by accident."""
    steps: int | None = None
    """Total training steps of the run."""
    model: str | None = None
    """A model on the Hub, one that the cluster has prepared, a folder of this machine (`./my-model`), or an absolute
    one on the nodes."""
    data: tuple[str, ...] = ()
    """Data sets that the cluster has prepared, parquet files, and folders with train.parquet and test.parquet."""
    reward: str | None = None
    """A Python file, and after a colon the function in it."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables; they win over those of `runtime_env` and recipe."""
    runtime_env: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Fields of Ray's runtime environment, as `load_runtime_env` reads them."""
    working_dir: str | None = None
    """A folder to send along, or a URL; wins over the one of `runtime_env`."""
    submission_id: str | None = None
    """Ray's id of the job; None makes one of name and time."""

    @property
    def working_dir_source(self) -> str | None:
        """The working directory, wherever it was asked for."""
        return self.working_dir or self.runtime_env.get("working_dir")
