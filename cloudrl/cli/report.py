"""`cloudrl report`: runs as a page, or as numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import AddressOption, ClusterOption, JsonOption, option
from cloudrl.cli._terminal import Terminal
from cloudrl.errors import InputError

if TYPE_CHECKING:
    from cloudrl.report import Report


def report(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB", help="Submission IDs, ray:// URLs, or driver logs (./x.log). Default: the newest job."
        ),
    ] = None,
    output: Annotated[
        Path | None, option("FILE", "Write the page there. Default: report.html.", "--output", "-o")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the page at a URL of this machine and keep it up to date.")
    ] = False,
    kept: Annotated[
        Path | None, option("DIR", "Folder of checkpoints that a cluster which is gone kept its logs in.", "--from")
    ] = None,
    port: Annotated[
        int, typer.Option(metavar="PORT", help="Port of --serve. Default: a free one.", min=0, max=65535)
    ] = 0,
    group: Annotated[
        str | None,
        option("NAME", "Draw the jobs as one group; without jobs, all runs submitted with --group NAME.", "--group"),
    ] = None,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the metrics as CSV instead.")] = False,
    cluster: ClusterOption = None,
    address: AddressOption = None,
) -> None:
    """Make a page of one run, or of several to compare. It works offline, also when it is sent to somebody.

    Runs whose configurations differ only in seeds are drawn as their mean and spread. The page has curves, time per
    step, configuration, nodes, attempts, checkpoints, cost and samples.
    """
    from cloudrl.report.page import page
    from cloudrl.sdk.report import ReportSource
    from cloudrl.sdk.report import report as make

    if serve + as_json + as_csv + (output is not None) > 1:
        raise InputError("-o, --serve, --json and --csv exclude each other", hint="Pass only one of them")
    if serve:
        _serve(ReportSource(jobs or [], cluster, address, kept, group=group, on_progress=Terminal()), port)
        return
    with Terminal() as terminal, terminal.busy("reading the runs"):
        made = make(jobs or [], cluster, address, kept, group=group, on_progress=terminal)
    if as_json:
        _output.as_json(made.to_json())
    elif as_csv:
        _output.data(_output.visible(made.to_csv(), keep="\n"))
    else:
        _output.write_file(output or Path("report.html"), page(made))


def _serve(look: Callable[[], Report], port: int) -> None:
    from cloudrl.report.server import ReportServer

    for run in look().runs:
        for text in run.notes:
            _output.note(f"{run.name}: {text}")
    try:
        server = ReportServer(look, port)
    except OSError as failure:
        raise InputError(f"port {port} cannot be used: {failure.strerror}", hint="Leave --port out") from failure
    with server:
        _output.data(server.url)
        _output.note("serving on this machine only; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            _output.note("no longer serving; jobs keep running")
