"""What Ray's job server says about a job and a node, read with whatever else it sends ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from cloudrl.foreign import Malformed, as_object, checked_time, number_of, text_of


class JobStatus(str, Enum):
    """Where a job is in its life (Ray 2.60, dashboard/modules/job/common.py: JobStatus)."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    UNKNOWN = "UNKNOWN"
    """A word that this release of cloudrl does not know; never taken for an end."""

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended, one way or the other."""
        return self in (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED)

    @classmethod
    def _missing_(cls, value: object) -> JobStatus:  # noqa: ARG003 - the signature is Enum's
        return cls.UNKNOWN

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class RayJob:
    """A submitted job. Times are Unix seconds; None where Ray has no value yet."""

    submission_id: str
    status: JobStatus
    message: str = ""
    entrypoint: str = ""
    start_time: float | None = None
    end_time: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    driver_node_id: str | None = None
    """The node whose disk holds the log; None until the driver has started."""
    driver_exit_code: int | None = None
    job_id: str | None = None
    """Ray's own id of the driver, by which the state API knows its tasks; None until the driver has connected."""

    def trained(self, run: str) -> bool:
        """Whether it saves into the folder of this run, or has its name."""
        folder = self.metadata.get("cloudrl_checkpoints", "").rstrip("/")
        return self.metadata.get("job_name") == run or (run != "." and folder.endswith(f"/{run}"))

    @classmethod
    def read(cls, details: Mapping[str, Any]) -> RayJob:
        """Read one entry of `/api/jobs/` (Ray 2.60, pydantic_models.py: JobDetails).

        Raises:
            Malformed: The answer is not Ray's.
        """
        row = as_object(details, "a job")
        if not isinstance(row.get("status"), str):
            raise Malformed("a job has no status")
        exit_code = number_of(row, "driver_exit_code")
        return cls(
            submission_id=text_of(row, "submission_id"),
            status=JobStatus(row["status"]),
            message=text_of(row, "message"),
            entrypoint=text_of(row, "entrypoint"),
            start_time=_seconds(number_of(row, "start_time")),
            end_time=_seconds(number_of(row, "end_time")),
            metadata={key: str(value) for key, value in as_object(row.get("metadata") or {}, "metadata").items()},
            runtime_env=as_object(row.get("runtime_env") or {}, "runtime_env"),
            driver_node_id=text_of(row, "driver_node_id") or None,
            driver_exit_code=None if exit_code is None else int(exit_code),
            job_id=text_of(row, "job_id") or None,
        )

    @property
    def variables(self) -> dict[str, str]:
        """Of its runtime environment; Ray's clients can submit any JSON there."""
        variables = self.runtime_env.get("env_vars")
        return {name: str(value) for name, value in variables.items()} if isinstance(variables, dict) else {}

    @property
    def log_name(self) -> str:
        """The file of the driver's output in Ray's log folder (common.py: JOB_LOGS_PATH_TEMPLATE)."""
        return f"job-driver-{self.submission_id}.log"


@dataclass(frozen=True)
class RayNode:
    """A node that is alive, with the GPUs that it has in all, used or not."""

    node_id: str
    ip: str
    is_head: bool
    gpus: float

    @classmethod
    def read(cls, node: Mapping[str, Any]) -> RayNode:
        """Read one entry of `/api/v0/nodes?detail=1` (Ray 2.60, util/state/common.py: NodeState).

        Raises:
            Malformed: The answer is not Ray's.
        """
        row = as_object(node, "a node")
        resources = as_object(row.get("resources_total") or {}, "resources_total")
        return cls(
            node_id=text_of(row, "node_id"),
            ip=text_of(row, "node_ip"),
            is_head=bool(row.get("is_head_node")),
            gpus=float(number_of(resources, "GPU") or 0),
        )


def _seconds(milliseconds: float | None) -> float | None:
    return checked_time(milliseconds / 1000) if milliseconds else None
