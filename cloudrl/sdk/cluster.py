"""A cluster as it is declared, with the verbs for it, and how one is started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cloudrl import spec
from cloudrl.errors import CloudrlError, InputError, Interrupted
from cloudrl.jobs.local_files import is_marked
from cloudrl.jobs.node_warnings import node_warnings
from cloudrl.plugins import DEFAULT
from cloudrl.providers.dstack.task import to_dstack
from cloudrl.providers.model import Plan, Provider, Status
from cloudrl.providers.registry import default_provider, ensure_name_free, provider
from cloudrl.providers.slurm.script import to_slurm
from cloudrl.render import search
from cloudrl.sdk.callbacks import Confirm, Notice, OnProgress, Question, notify, silent, unattended
from cloudrl.sdk.costs import price_difference, report_price, with_state
from cloudrl.sdk.running import RunningCluster
from cloudrl.sdk.save_room import save_room
from cloudrl.units import dollars_text

_DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


LookAtPlan = Callable[[Plan], Iterable[str]]
"""What there is to say of a priced plan."""


def _say_nothing(_plan: Plan) -> Iterable[str]:
    return ()


class Cluster(spec.Cluster):
    """A cluster as it is declared (docs/fields.md has the fields), with the verbs for it.

        cluster = cloudrl.Cluster(name="two-nodes", nodes=2, gpu="80GB..:8", models=["Qwen/Qwen2.5-7B-Instruct"])
        print(cluster.to_dstack())

    It cannot be changed: `cluster.replace(nodes=4)` is another one.
    """

    def to_dstack(self) -> str:
        """The exact YAML of its dstack task."""
        return to_dstack(self)

    def refuse_other_files(self, folder: Path) -> None:
        """Raise `InputError` where `write_files` would replace a file with another content."""
        search.refuse_other_files(self, folder)

    def write_files(self, folder: Path) -> None:
        """Write the files that the task needs beside it: the agent's, and those of its search servers."""
        search.write_files(self, folder)

    def to_slurm(self) -> str:
        """The exact text of its job script; `cloudrl.sdk.slurm.slurm_script` makes one with a job."""
        return to_slurm(self)

    def plan(self, on: str = DEFAULT) -> Plan:
        """What `up` would do; `.preview()` is the text that `--dry-run` prints."""
        return provider(on).plan(self)

    def up(
        self,
        on: str = DEFAULT,
        *,
        detach: bool = True,
        down_anyway: bool = False,
        confirm: Confirm = unattended,
        on_progress: OnProgress = silent,
        look: LookAtPlan = _say_nothing,
    ) -> RunningCluster:
        """Start it and return once it is READY.

            with cluster.up(on="local", on_progress=cloudrl.ProgressLines()) as ray:
                print(ray.submit("grpo-tiny", steps=20).result())

        As a context manager the result ends the cluster when the block is left, also by an exception, unless
        checkpoints would be lost with it (see `RunningCluster`); otherwise it goes on until `down()`, also after this
        program.

        Args:
            on: the provider.
            detach: let it outlive this program; otherwise it ends when this program does, even by SIGKILL, which
                only provider `local` can do.
            down_anyway: let a `with` block end it even if checkpoints are lost with it.
            confirm: is asked before anything that costs money is started.
            on_progress: receives offers and prices, and every look at the cluster while it comes up.
            look: what else to say of the priced plan, before `confirm` is asked.

        Raises:
            InputError: one of this name is up already, here or elsewhere, `detach` is False on dstack, or the answer
                was no.
            CapacityError: the provider cannot give what is asked for.
            ClusterFailed: it did not become ready; nothing of it is left running.
            Interrupted: Ctrl-C; the message says what goes on and what it costs.
        """
        with nothing_started():
            plan = plan_to_start(self, on, confirm=confirm, on_progress=on_progress, look=look)
        return start(plan, detach=detach, down_anyway=down_anyway, on_progress=on_progress)


def plan_to_start(
    cluster: Cluster, on: str, *, confirm: Confirm, on_progress: OnProgress, look: LookAtPlan = _say_nothing
) -> Plan:
    """What is started of a cluster, priced and confirmed. Raises as `Cluster.up` does before it."""
    plan = provider(on).plan(cluster)
    ensure_name_free(cluster.name, on)
    return priced_and_confirmed(plan, confirm, on_progress, look)


def start(
    plan: Plan, *, detach: bool = True, down_anyway: bool = False, on_progress: OnProgress = silent
) -> RunningCluster:
    """Start what was confirmed, and return once it is READY. Raises as `Cluster.up` does afterwards."""
    where, name = provider(plan.provider), plan.name
    connection = where.up(plan, on_status=on_progress, detach=detach)
    try:
        _report_ready(where, plan, connection.ray_url, on_progress)
    except KeyboardInterrupt:
        stopped = Interrupted("interrupted", hint=f"Look: cloudrl status {name}")
        raise with_state(stopped, where, name) from None
    return RunningCluster(connection, provider=plan.provider, owned=True, down_anyway=down_anyway)


def load_cluster(fields: Mapping[str, Any], on: str | None = None) -> tuple[Cluster, Provider]:
    """The cluster of these fields, with its provider's default name unless they name it, and that provider.

    Where its nodes read this machine's own files, relative paths of data sets are made absolute.

    Args:
        fields: of `Cluster`.
        on: the provider; None is the first of dstack and Slurm that is set up for a cluster with GPUs, and this machine
            for one without.

    Raises:
        SpecError: a field is wrong.
        InputError: there is no such provider.
    """
    if on is not None:
        where = provider(on)
    else:
        where = default_provider(gpus=Cluster.load({"name": "unnamed", **fields, "data": ()}).device == "gpu")
    fields = {"name": where.default_cluster, **fields}
    data = fields.get("data")
    if where.nodes_are_here and isinstance(data, (list, tuple)):
        fields["data"] = [absolute_data(data_set) for data_set in data]
    return Cluster.load(fields), where


def absolute_data(value: Any) -> Any:
    """A data set by its name or its fields, with relative paths of this machine made absolute.

    As in a shell, `./x`, `../x` and `~/x` are paths, and so is `x.jsonl` or the like where it exists.
    """
    if isinstance(value, Mapping):
        return {key: absolute_data(item) if key in ("name", "source") else item for key, item in value.items()}
    if not isinstance(value, str):
        return value
    path = Path(value).expanduser()
    is_here = is_marked(value) or (path.suffix in _DATA_SUFFIXES and path.exists())
    return str(path.resolve()) if is_here else value


def priced_and_confirmed(
    plan: Plan, confirm: Confirm, on_progress: OnProgress, look: LookAtPlan = _say_nothing
) -> Plan:
    """The plan as `up` applies it: what it costs is said, and asked if it costs anything.

    Args:
        plan: not priced yet.
        confirm: is asked.
        on_progress: gets the price.
        look: what to say of the priced plan before the question.

    Raises:
        InputError: the answer was no, or a run of that name is going on.
        CapacityError: there is no such machine.
    """
    notify(on_progress, *(f"note: {note}" for note in plan.notes))
    plan = plan.priced()
    if (price := plan.price) is None:
        return plan
    report_price(price, f"{plan.cluster.nodes} nodes in total", on_progress)
    notify(on_progress, *look(plan))
    cost = f" for about {dollars_text(price.per_hour)}/h" if price.per_hour else ""
    if not confirm(Question(f"Start {plan.name}{cost}?")):
        raise InputError("nothing was started")
    return plan


def _report_ready(where: Provider, plan: Plan, url: str, on_progress: OnProgress) -> None:
    nodes = f"{plan.cluster.nodes} node{'s' * (plan.cluster.nodes > 1)}"
    on_progress(Notice(f"READY: {plan.name} with {nodes}, dashboard {url}"))
    with suppress(CloudrlError):  # a warning is not worth a cluster that is up
        status = where.status(plan.name)
        if text := price_difference(status):
            on_progress(Notice(text))
        report_warnings(status, on_progress)


def report_warnings(status: Status, on_progress: OnProgress) -> None:
    """What jobs should not be submitted without knowing: room for a save, and what the nodes warn of."""
    for warning in (save_room(status.facts), *node_warnings(status.nodes).values()):
        if warning is not None:
            on_progress(Notice(f"warning: {warning.text}", warning.hint))


@contextmanager
def nothing_started(fleet: str | None = None) -> Iterator[None]:
    """For what comes before anything is submitted.

    Args:
        fleet: one that was created right before; none of its machines is rented yet.

    Raises:
        Interrupted: Ctrl-C.
    """
    unused = f"Fleet {fleet} costs nothing without a cluster; delete it: cloudrl fleet delete {fleet}"
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("interrupted; nothing was started", hint=unused if fleet is not None else None) from None
    except CloudrlError as error:
        if fleet is not None:
            error.hint = "\n".join(filter(None, (error.hint, unused)))
        raise
