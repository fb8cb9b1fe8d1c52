"""`cloudrl task create`: a cluster as a file for `dstack apply`."""

from __future__ import annotations

from pathlib import Path

import typer

from cloudrl.cli import _cluster_options as options
from cloudrl.cli import _data_options as of_data
from cloudrl.cli import _output
from cloudrl.cli._rendered import DryRunOption, OutputOption, YesOption, write

app = typer.Typer(help="Tasks: a cluster as a file for `dstack apply`.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Without it Typer would make the only command the whole group."""


@app.command()
def create(
    name: options.NameArgument = "ray-cluster",
    nodes: options.NodesOption = 2,
    gpu: options.GpuOption = "80GB:8",
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
    output: OutputOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Write NAME.dstack.yml and the node agent beside it; `dstack apply -f` needs nothing else."""
    from cloudrl.render.agent import write_agent
    from cloudrl.render.dstack import to_dstack

    fields = {
        "source": source, "prompt_field": prompt_field, "answer_field": answer_field, "system": system,
        "config": config, "split": split, "test_split": test_split, "test_rows": test_rows,
        "data_source": data_source, "skip_bad": skip_bad,
    }  # fmt: skip
    sets = of_data.described(data or [], fields, local=False)
    cluster = options.cluster(
        {
            "name": name, "nodes": nodes, "gpu": options.gpus(gpu), "cpu": cpu, "memory": memory,
            "disk": disk, "shm_size": shm_size, "data": sets or None, "models": model, "verl": verl, "rollout": rollout,
            "image": image, "setup": setup, "secrets": secret, "checkpoints": checkpoints, "volumes": volume,
            "fleets": fleet, "spot_policy": spot_policy, "max_price": max_price, "max_duration": max_duration,
        },
        env=env,
        fields=field,
    )  # fmt: skip
    text = to_dstack(cluster)
    if dry_run:
        _output.data(text)
        return
    path = output or Path(f"{name}.dstack.yml")
    write(path, text, yes=yes)
    write_agent(path.parent)
    _output.hint(f"dstack apply -f {path}")
    _output.data(str(path))
