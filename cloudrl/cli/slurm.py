"""`cloudrl slurm`: a job with its cluster as a script for sbatch."""

from typing import Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import (
    JobRequest,
    NewClusterOption,
    cluster_options,
    declared_fields,
    explicit,
    requested_job,
    with_options,
)
from cloudrl.cli._terminal import Terminal

app = typer.Typer(help="Write a job script for Slurm.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Without it Typer would make the only command the whole group."""


@app.command()
@with_options(asked=requested_job, declared=cluster_options)
def script(
    cluster: NewClusterOption = None,
    *,
    asked: JobRequest,
    declared: dict[str, Any],
) -> None:
    """Print one self-contained job script: cluster, training, and its exit code. Redirect it, then `sbatch` it.

    Options of sbatch go into the section slurm: --set slurm.partition=gpu, or -f cluster.yml. The training continues
    from its newest checkpoint when Slurm starts the job again, and when the same script is submitted again.
    """
    from cloudrl.sdk.slurm import render_script

    job, job_options, of_script = asked
    with Terminal(prints_job=False) as terminal:
        fields = {**of_script, **declared_fields({**declared, **explicit(name=cluster)})}
        _output.data(render_script(job, job_options, fields, on_progress=terminal).rstrip("\n"))
