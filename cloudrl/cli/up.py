"""`cloudrl up`: start a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cloudrl.cli import _cluster_options as options
from cloudrl.cli import _data_options as of_data
from cloudrl.cli import _output
from cloudrl.cli._rendered import YesOption  # noqa: TC001 - Typer reads the annotations

if TYPE_CHECKING:
    from cloudrl.connection import Connection
    from cloudrl.providers import Provider
    from cloudrl.providers.model import Plan


def up(
    name: options.NameArgument = "ray-cluster",
    on: Annotated[str, typer.Option("--on", metavar="PROVIDER", help="Where: local or dstack.")] = "local",
    nodes: options.NodesOption = 1,
    gpu: options.GpuOption = None,
    cpu: options.CpuOption = None,
    memory: options.MemoryOption = None,
    disk: options.DiskOption = None,
    shm_size: options.ShmOption = None,
    data: options.DataOption = None,
    source: of_data.SourceOption = None,
    prompt_field: of_data.PromptOption = None,
    answer_field: of_data.AnswerOption = None,
    system: of_data.SystemOption = None,
    config: of_data.ConfigOption = None,
    split: of_data.SplitOption = None,
    test_split: of_data.TestSplitOption = None,
    test_rows: of_data.TestRowsOption = None,
    data_source: of_data.DataSourceOption = None,
    skip_bad: of_data.SkipBadOption = False,
    model: options.ModelOption = None,
    verl: options.VerlOption = None,
    rollout: options.RolloutOption = None,
    image: options.ImageOption = None,
    setup: options.SetupOption = None,
    env: options.EnvOption = None,
    secret: options.SecretOption = None,
    checkpoints: options.CheckpointsOption = None,
    volume: options.VolumeOption = None,
    fleet: options.FleetOption = None,
    spot_policy: options.SpotOption = None,
    max_price: options.MaxPriceOption = None,
    max_duration: options.MaxDurationOption = None,
    field: options.FieldOption = None,
    dashboard_port: Annotated[int | None, typer.Option(help="For Ray's dashboard; 8265 if free.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be started.")] = False,
    yes: YesOption = False,
) -> None:
    """Start a cluster and wait until it is READY. It goes on when this command ends."""
    from cloudrl.providers import provider

    where = provider(on)
    fields = {
        "source": source, "prompt_field": prompt_field, "answer_field": answer_field, "system": system,
        "config": config, "split": split, "test_split": test_split, "test_rows": test_rows,
        "data_source": data_source, "skip_bad": skip_bad,
    }  # fmt: skip
    sets = of_data.described(data or [], fields, local=on == "local")
    cluster = options.cluster(
        {
            "name": name, "nodes": nodes, "gpu": options.gpus(gpu), "cpu": cpu, "memory": memory, "disk": disk,
            "shm_size": shm_size, "data": sets or None, "models": model, "verl": verl, "rollout": rollout,
            "image": image, "setup": setup, "secrets": secret, "checkpoints": checkpoints, "volumes": volume,
            "fleets": fleet, "spot_policy": spot_policy, "max_price": max_price, "max_duration": max_duration,
        },
        env=env,
        fields=field,
    )  # fmt: skip
    plan = where.plan(cluster, dashboard_port=dashboard_port)
    if dry_run:
        _output.data(plan.render())
        return
    connection = start(where, plan, on=on, yes=yes)
    _output.note(f"READY: {name} with {nodes} node{'s' * (nodes > 1)}, dashboard {connection.ray_url}")
    _output.hint(
        f"cloudrl submit {'grpo' if cluster.gpu else 'grpo-tiny'} --cluster {name}\ncloudrl down {name}"
    )
    _output.data(connection.ray_url)


def start(where: Provider, plan: Plan, *, on: str, yes: bool) -> Connection:
    """Ask if it costs money, then start it while the nodes are shown."""
    from cloudrl.cli._live import watching

    if on == "dstack":
        from cloudrl.cli._price import ask

        ask(plan, yes=yes)
    with watching() as on_status:
        return where.up(plan, on_status=on_status)
