"""`cloudrl up`: start a cluster."""

from typing import Any

from cloudrl.cli import _output
from cloudrl.cli._options import DryRunOption, JsonOption, OnOption, YesOption, new_cluster, with_options
from cloudrl.cli._terminal import Terminal
from cloudrl.plugins import DEFAULT


@with_options(fields=new_cluster)
def up(
    *,
    fields: dict[str, Any],
    on: OnOption = DEFAULT,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    yes: YesOption = False,
) -> None:
    """Start a cluster and wait until it is READY. It keeps running after this command ends.

    If you press Ctrl-C, a cluster on this machine is stopped. One on dstack or Slurm keeps running or waiting, and the
    message says what it costs and how to stop it.
    """
    from cloudrl.sdk.cluster import load_cluster

    cluster, where = load_cluster(fields, on)
    if dry_run:
        plan = cluster.plan(where.name)
        _output.notes(plan.notes)
        _output.data(plan.preview())
        return
    with Terminal(yes=yes) as terminal:
        running = cluster.up(where.name, confirm=terminal.confirm, on_progress=terminal)
    recipe = "grpo" if cluster.gpu else "grpo-tiny"
    _output.hint(f"cloudrl submit {recipe} --cluster {cluster.name}\ncloudrl down {cluster.name}")
    url = running.connection.ray_url
    _output.result(url, {"name": cluster.name, "on": where.name, "dashboard_url": url}, is_json=as_json)
