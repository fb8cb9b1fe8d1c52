"""A cluster that is up: submit to it, see its jobs and checkpoints, end it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudrl import recipes
from cloudrl.errors import InputError
from cloudrl.jobs import JobHandle, SubmitOptions, find_job, list_jobs, submit
from cloudrl.providers.registry import ClusterRef, locate, provider
from cloudrl.transport import Connection, inspect_cluster

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from cloudrl.checkpoints.handle import Checkpoints
    from cloudrl.providers.model import Provider, Status
    from cloudrl.spec import Job
    from cloudrl.spec.shape import ClusterShape
    from cloudrl.transport.ray_job import RayJob


@dataclass(frozen=True)
class RunningCluster:
    """A cluster that jobs can be submitted to.

    As a context manager it ends when the block is left if it is `owned`; any other goes on.

    Attributes:
        connection: addresses and tokens.
        provider: where it lives; None for a plain Ray cluster, which cloudrl cannot end.
        owned: whether this program has started it, by `Cluster.up`; one that was there belongs to somebody else.
    """

    connection: Connection
    provider: str | None = None
    owned: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.owned:
            self.down()

    def shape(self) -> ClusterShape:
        """Nodes, GPUs, data, models and checkpoint folder, as a job will find them."""
        return inspect_cluster(self.connection)

    def submit(  # noqa: PLR0913 - the options of `cloudrl submit`
        self,
        job: Job | str,
        overrides: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        steps: int | None = None,
        model: str | None = None,
        data: str | Sequence[str] = (),
        reward: str | None = None,
        env: Mapping[str, str] | None = None,
        working_dir: str | None = None,
        submission_id: str | None = None,
    ) -> JobHandle:
        """Submit a job, or a recipe by its name or path.

        Paths of this machine (`./x`, `../x`, `~/x`, or `x` where it exists here) are sent along wherever verl reads a
        file; `/x` is a path on the nodes, `owner/name` a model on the Hub. HF_TOKEN and the keys of the loggers in
        `trainer.logger` are passed on from this process's environment where the job needs them and the agents can
        take them.

        Args:
            job: what to run.
            overrides: in verl's own keys; they win over recipe and cluster.
            name: the run's name; the same name again continues from the newest step that its ranks can load (see
                docs/clusters.md, "Where checkpoints lie").
            steps: total training steps.
            model: on the Hub, prepared on the cluster, or a folder of this machine (`./my-model`).
            data: data sets of the cluster, parquet files, or folders with train.parquet and test.parquet.
            reward: a Python file, and after a colon the function in it.
            env: variables of the job; secrets among them reach it through the agents, where the cluster has them and
                its Ray is 2.43 or later.
            working_dir: a folder to send along; the job starts in it, and a verl in it takes the place of the nodes'.
            submission_id: Ray's id, which makes a repeated call harmless.

        Raises:
            InputError: job and cluster do not go together, or the id is taken.
            CheckpointError: the run of this name has steps, and its ranks could load none of them.
            ConnectionFailed: nobody answers.
        """
        options = SubmitOptions(
            overrides=overrides or {}, name=name, steps=steps, model=model,
            data=(data,) if isinstance(data, str) else tuple(data), reward=reward, env=env or {},
            working_dir=working_dir, submission_id=submission_id,
        )  # fmt: skip
        return submit(self.connection, recipes.load(job) if isinstance(job, str) else job, options)

    def job(self, submission_id: str) -> JobHandle:
        """The handle of a job that was submitted before.

        Raises:
            InputError: the cluster does not know it.
        """
        return find_job(self.connection, submission_id)

    def jobs(self) -> tuple[RayJob, ...]:
        """All submitted jobs, the oldest first."""
        return list_jobs(self.connection)

    def checkpoints(self) -> Checkpoints:
        """What jobs have saved, on all nodes: a sequence, with `.latest()`, each with `.merge("./model")`.

        Raises:
            InputError: it is a plain Ray cluster.
            ConnectionFailed: nobody answers.
        """
        from cloudrl.checkpoints.handle import Checkpoints
        from cloudrl.checkpoints.sources import ClusterSource

        return Checkpoints(ClusterSource(self.connection))

    def status(self) -> Status:
        """One look at the cluster and its nodes.

        Raises:
            InputError: it is a plain Ray cluster.
        """
        return self._provider().status(self.connection.name)

    def down(self) -> bool:
        """End the cluster; checkpoints and logs stay. False when nothing was running.

        Raises:
            InputError: it is a plain Ray cluster.
        """
        return self._provider().down(self.connection.name)

    def _provider(self) -> Provider:
        if self.provider is None:
            raise InputError(f"{self.connection.name} is a plain Ray cluster; cloudrl did not start it")
        return provider(self.provider)


def attach(name: str, on: str | None = None) -> RunningCluster:
    """Connect to a cluster that is up. It goes on when a `with` block of the result is left; `down()` ends it.

    Args:
        name: the cluster's.
        on: the provider; None for the one that has it.

    Raises:
        InputError: there is none of that name, or one in two places and no provider was named.
        ConnectionFailed: nobody answers.
    """
    ref = ClusterRef(on, name) if on is not None else locate(name)
    return RunningCluster(provider(ref.provider).attach(ref.name), provider=ref.provider)


def connect(ray_url: str, token: str | None = None) -> RunningCluster:
    """Connect to any Ray cluster by the address of its dashboard, for example `http://localhost:8265`."""
    return RunningCluster(Connection(name=ray_url, ray_url=ray_url, ray_token=token))
