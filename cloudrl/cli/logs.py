"""`cloudrl logs`: the logs of all nodes."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import ClusterOption, JsonOption, KeptOption, option
from cloudrl.cli._terminal import Terminal


def logs(
    node: Annotated[int | None, typer.Option("--node", metavar="N", min=0, help="Only the node of this rank.")] = None,
    grep: Annotated[str | None, option("REGEX", "Only lines that contain this.", "--grep")] = None,
    around: Annotated[
        str | None, option("TIME", "Only 30 s before and after: 13:05:10, '2026-11-23 13:05'.", "--around")
    ] = None,
    log: Annotated[str, option("PATTERN", "Only logs of such a name: 'worker-*.err', raylet.out.", "--log")] = "*",
    cluster: ClusterOption = None,
    kept: KeptOption = None,
    run: Annotated[str | None, option("ID", "ID of the cluster's run, where several are kept.", "--run")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the logs of all nodes in the order of their times, of a cluster that is up or gone.

    With --json, print one object per line. The log of a job alone: cloudrl jobs logs.
    """
    from cloudrl.sdk.logs import logs as read

    with Terminal() as terminal:
        lines = read(cluster, kept, run=run, node=node, log=log, grep=grep, around=around, on_progress=terminal)
        for line in lines:
            if as_json:
                _output.data(json.dumps(asdict(line)))
            else:
                at = f"{datetime.fromtimestamp(line.at).astimezone():%m-%d %H:%M:%S}"
                _output.data(_output.visible(f"{at} {line.rank} {line.log} | {line.text}", keep="\t"))
