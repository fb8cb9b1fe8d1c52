"""What the agents of a cluster are asked to do, whoever starts them; a provider adds its folders and ports."""

from collections.abc import Callable, Mapping
from pathlib import Path

from cloudrl.errors import SpecError
from cloudrl.protocol.options import AgentOptions, BudgetLimits
from cloudrl.protocol.secret_names import is_secret, mask_by_form, names_a_file
from cloudrl.render.search import with_search
from cloudrl.spec import Cluster
from cloudrl.spec.data import data_argument
from cloudrl.spec.sizes import seconds_of
from cloudrl.verl.releases import Release, release

HONOURED = (
    "name", "nodes", "gpu", "env", "secrets", "setup", "services", "artifacts", "data", "models", "down_when_idle",
    "max_cost", "price_per_hour",
)  # fmt: skip
"""Fields that have an effect wherever a cluster runs; a provider adds those that have one there."""
CPU_SLOTS = 8
"""CPUs that Ray counts on a node without GPU: 3 for verl's training worker, the rest for its driver and loops."""


def agent_options(
    cluster: Cluster, release: Release | None, *, place: Callable[[str], str] | None = None
) -> AgentOptions:
    """The options that follow from the portable fields.

    Args:
        cluster: as it is declared.
        release: the release of verl whose image the nodes run; see `image_release`.
        place: see `with_search`.

    Raises:
        SpecError: a cost is limited and the price is unknown.
    """
    rendered = with_search(cluster, place=place)
    return AgentOptions(
        device=cluster.device,
        # Without GPUs one place a node: verl 0.9.1 places its workers on nothing else (single_controller/ray/base.py).
        # A range is left to the provider, which tells each node its number.
        gpus=1 if cluster.device == "cpu" else cluster.gpus_per_node,
        cpus=CPU_SLOTS if cluster.device == "cpu" else None,
        setup=(*(release.install if release else ()), *rendered.setup, *cluster.setup),
        services=rendered.services,
        artifacts=rendered.artifacts,
        import_check=_import_check(cluster, release),
        data=tuple(map(data_argument, cluster.data)),
        models=tuple(cluster.models),
        checkpoints=Path(cluster.checkpoints),
        limits=budget_limits(cluster),
    )


def image_release(cluster: Cluster) -> Release | None:
    """The release of verl whose image a cluster asks for; None where the user names the image.

    Raises:
        SpecError: no image is known for what the cluster asks for.
    """
    return None if cluster.image is not None else release(cluster.verl, vendor=cluster.vendor, rollout=cluster.rollout)


def honoured_for_image(cluster: Cluster, release: Release | None) -> tuple[str, ...]:
    """Those of `verl` and `rollout` that have an effect; an image of the user's own has the release that it has."""
    if release is not None:
        return ("verl", "rollout")
    return () if cluster.device == "cpu" else ("rollout",)  # see `_import_check`


def budget_limits(cluster: Cluster) -> BudgetLimits:
    """When the agents end the cluster by themselves.

    Raises:
        SpecError: a cost is limited and the price is unknown.
    """
    if cluster.max_cost is not None and cluster.price_per_hour is None:
        raise SpecError(
            f"max_cost {cluster.max_cost:g} needs the price of the cluster: the agents count by it",
            hint="Of all nodes in US dollars: --set price_per_hour=49.2\n`cloudrl up --on dstack` finds it out",
        )
    idle_s = None if cluster.down_when_idle is None else seconds_of(cluster.down_when_idle)
    return BudgetLimits(idle_s, cluster.max_cost, cluster.price_per_hour)


def refuse_secrets(env: Mapping[str, str], remedy: str) -> None:
    """Refuse variables whose values would stand in a file that others read.

    Raises:
        SpecError: one of them holds a secret; `remedy`, with its name for `{0}`, is the hint.
    """
    for name, value in env.items():
        is_named = is_secret(name) and value and not names_a_file(name)
        if is_named or mask_by_form(value) != value:
            raise SpecError(
                f"env {name}: the value of a secret would stand in the file",
                hint=f"{remedy.format(name)}\nOr give it with a job: --env {name}",
            )


def _import_check(cluster: Cluster, release: Release | None) -> tuple[str, ...]:
    """What training imports into one process; of another image we know the engine only if the user says it."""
    if cluster.device == "cpu":
        return ()
    engine = release.rollout if release else cluster.rollout
    return ("numpy", "torch", *([engine] if engine else []))
