"""The Python interface: what `import cloudrl` offers, in the order in which a run goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudrl import recipes, spec
from cloudrl.errors import CheckpointError, CloudrlError, InputError, Interrupted
from cloudrl.jobs import JobHandle, Wishes, find_job, list_jobs, submit
from cloudrl.providers import provider, whereabouts
from cloudrl.render.dstack import to_dstack
from cloudrl.render.fleet import fleet_to_dstack
from cloudrl.spec import DataSet, Job, NetworkVolume, Resources, SshConfig, SshHost, Volume
from cloudrl.transport import Connection, inspect_cluster

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from cloudrl.checkpoints.handle import Checkpoints
    from cloudrl.providers.dstack.fleets import FleetPlan, FleetState
    from cloudrl.providers.model import Plan, Status
    from cloudrl.spec.shape import ClusterShape
    from cloudrl.transport.ray_job import RayJob

__all__ = [
    "Cluster",
    "DataSet",
    "Fleet",
    "Job",
    "NetworkVolume",
    "Resources",
    "Run",
    "RunningCluster",
    "SshConfig",
    "SshHost",
    "Volume",
    "attach",
    "connect",
    "recipe",
    "run",
]


class Cluster(spec.Cluster):
    """A cluster as it is declared (see `cloudrl.spec.Cluster` for the fields), with the verbs for it."""

    def to_dstack(self) -> str:
        """The exact YAML of its dstack task."""
        return to_dstack(self)

    def plan(self, on: str = "local") -> Plan:
        """What `up` would do; `.render()` is the text that `--dry-run` prints."""
        return provider(on).plan(self)

    def up(
        self,
        on: str = "local",
        *,
        on_status: Callable[[Status], None] | None = None,
        detach: bool = True,
    ) -> RunningCluster:
        """Start it and return once it is READY.

        As a context manager the result ends the cluster when the block is left, also by an exception; otherwise
        it goes on until `down()`, also after this program.

        Args:
            on: the provider.
            on_status: called with every look at the cluster while it comes up.
            detach: let it outlive this program; otherwise it ends when this program does, even by SIGKILL, which
                only provider `local` can do.

        Raises:
            InputError: one of this name is up already, here or elsewhere, or `detach` is False on dstack.
            CapacityError: the provider cannot give what is asked for.
            ClusterFailed: it did not become ready; nothing of it is left running.
        """
        where = provider(on)
        plan = where.plan(self)
        whereabouts.refuse_elsewhere(self.name, on)
        connection = where.up(plan, on_status=on_status, detach=detach)
        return RunningCluster(connection, provider=on, owned=True)


class Fleet(spec.Fleet):
    """A fleet as it is declared (see `cloudrl.spec.Fleet` for the fields), with the verbs for it."""

    def to_dstack(self) -> str:
        """The exact YAML of the dstack fleet."""
        return fleet_to_dstack(self)

    def plan(self, project: str | None = None) -> FleetPlan:
        """What `create` would do, with offers and prices; asks the dstack server.

        Raises:
            InputError: no server is configured, or it refuses the fleet.
            ConnectionFailed: it does not answer.
        """
        from cloudrl.providers.dstack import fleets, server

        return fleets.plan(server.connect(project), self.to_dstack())

    def create(
        self,
        project: str | None = None,
        *,
        replace: bool = False,
        on_look: Callable[[FleetState], None] = lambda _look: None,
    ) -> FleetState:
        """Create it, or change it to what is declared here, and wait for the machines that come at once.

        Args:
            project: of the dstack server; None for the default one.
            replace: delete a fleet of this name that cannot be changed in place, with its machines and their disks.
            on_look: called with every look while machines come.

        Raises:
            InputError: no server is configured, it refuses the fleet, or one would have to be replaced.
            CapacityError: there are no such machines, or one of them did not come up.
            ConnectionFailed: the server does not answer.
        """
        from cloudrl.providers.dstack import fleets, server

        where = server.connect(project)
        planned = fleets.plan(where, self.to_dstack())
        if not replace:
            fleets.refuse_replacing(planned)
        if planned.action != "nothing":
            fleets.apply(where, planned)
        return fleets.wait(where, self.name, on_look=on_look)


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
        wishes = Wishes(
            overrides=overrides or {}, name=name, steps=steps, model=model,
            data=(data,) if isinstance(data, str) else tuple(data), reward=reward, env=env or {},
            working_dir=working_dir, submission_id=submission_id,
        )  # fmt: skip
        return _submit(self.connection, recipes.load(job) if isinstance(job, str) else job, wishes)

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
        from cloudrl.checkpoints.origin import ClusterOrigin

        return Checkpoints(ClusterOrigin(self.connection))

    def down(self) -> bool:
        """End the cluster; checkpoints and logs stay. False when nothing was running.

        Raises:
            InputError: it is a plain Ray cluster.
        """
        if self.provider is None:
            raise InputError(f"{self.connection.name} is a plain Ray cluster; cloudrl did not start it")
        return provider(self.provider).down(self.connection.name)


def attach(name: str, on: str | None = None) -> RunningCluster:
    """Connect to a cluster that is up. It goes on when a `with` block of the result is left; `down()` ends it.

    Args:
        name: the cluster's.
        on: the provider; None for the one that has it.

    Raises:
        InputError: there is none of that name, or one in two places and no provider was named.
        ConnectionFailed: nobody answers.
    """
    where = on or whereabouts.home(name)
    return RunningCluster(provider(where).attach(name), provider=where)


def connect(ray_url: str, token: str | None = None) -> RunningCluster:
    """Connect to any Ray cluster by the address of its dashboard, for example `http://localhost:8265`."""
    return RunningCluster(Connection(name=ray_url, ray_url=ray_url, ray_token=token))


@dataclass(frozen=True)
class Run:
    """A job, and the cluster that it runs on."""

    cluster: RunningCluster
    job: JobHandle


def run(
    job: Job | str,
    overrides: Mapping[str, Any] | None = None,
    *,
    cluster: Cluster | str = "ray-cluster",
    on: str | None = None,
    create_fleet: bool = False,
    on_status: Callable[[Status], None] | None = None,
    **wishes: Any,
) -> Run:
    """Check, start a cluster, and submit: `cloudrl run`, without its questions.

    A cluster of that name that is up and fits is used.

    Args:
        job: what to run, or a recipe by its name or path.
        overrides: in verl's own keys.
        cluster: as it shall be, or only its name; then nodes, GPUs, data and model are the recipe's.
        on: the provider; None is dstack for a cluster with GPUs, and this machine for one without.
        create_fleet: on dstack, create a fleet if none fits.
        on_status: called with every look at the cluster while it comes up.
        wishes: as `RunningCluster.submit` takes them.

    Raises:
        InputError: job and cluster do not go together, or one of that name is up that does not fit.
        CapacityError: the provider cannot give what is asked for.
        ClusterFailed: the cluster did not become ready.
        CloudrlError: the job could not be submitted. A cluster that was started for it is ended again if the job was
            refused, and goes on otherwise; the message says which.
    """
    from cloudrl.jobs import rehearsal

    job = recipes.load(job) if isinstance(job, str) else job
    data = wishes.pop("data", ())
    wished = Wishes(
        overrides=overrides or {}, data=(data,) if isinstance(data, str) else tuple(data), **wishes
    )
    asked = cluster.explicit_fields() if isinstance(cluster, Cluster) else {}
    if isinstance(cluster, str):
        cluster = Cluster.load({"name": cluster, **rehearsal.fields_for(job, wished)})
    where = on or ("dstack" if cluster.device == "gpu" else "local")
    rehearsal.rehearse(cluster, job, wished, on=where)
    there = rehearsal.living(cluster, asked, on=where)
    if there is None and create_fleet and where == "dstack":
        _create_fleet_if_none_fits(cluster)
    running = (
        RunningCluster(there, provider=where)
        if there is not None
        else cluster.up(on=where, on_status=on_status)
    )
    return Run(running, _submitted(running, job, wished))


def _submit(connection: Connection, job: Job, wishes: Wishes) -> JobHandle:
    from cloudrl.checkpoints.resume import with_resume

    wishes, _ = with_resume(connection, job, wishes)
    return submit(connection, job, wishes)


def _submitted(cluster: RunningCluster, job: Job, wishes: Wishes) -> JobHandle:
    """Submit; whoever gets an error instead has no handle of a cluster that was started just now."""
    name = cluster.connection.name
    try:
        return _submit(cluster.connection, job, wishes)
    except (InputError, CheckpointError) as error:  # refused: nothing was submitted
        if cluster.owned:
            cluster.down()
            raise type(error)(f"{error.message}; cluster {name} is ended again", hint=error.hint) from error
        raise
    except CloudrlError as error:
        hint = f"{error.hint or ''}\nEnd it: cloudrl down {name}".strip()
        raise type(error)(f"{error.message}; cluster {name} goes on", hint=hint) from error
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"interrupted; cluster {name} goes on", hint=f"End it: cloudrl down {name}"
        ) from error


def _create_fleet_if_none_fits(cluster: Cluster) -> None:
    from cloudrl.jobs import rehearsal
    from cloudrl.providers.dstack.provider import lacks_fleet

    if lacks_fleet(cluster):
        Fleet.load(rehearsal.fleet_for(cluster).explicit_fields()).create()


def recipe(
    name_or_path: str | os.PathLike[str],
    *,
    model: str | None = None,
    algorithm: str | None = None,
    **changes: Any,
) -> Job:
    """A recipe by its name, or a job of your own by the path of its file.

    Args:
        name_or_path: one of `cloudrl.recipes.names()`, or a `.yml` file.
        model: another model than the recipe's.
        algorithm: another algorithm than the recipe's, one of `cloudrl.recipes.algorithms()`.
        changes: other fields of `Job`, for example `overrides={"trainer.test_freq": 5}`, which are added.

    Raises:
        RecipeError: there is no such recipe or algorithm, or its file is none.
        SpecError: a change does not fit.
    """
    job = recipes.load(name_or_path)
    if algorithm is not None:
        job = recipes.with_algorithm(job, algorithm)
    job = job.with_overrides(changes.pop("overrides", {}))
    return job.replace(**({"model": model} if model else {}), **changes)
