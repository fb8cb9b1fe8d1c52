"""`cloudrl status`, `down`, `env`, `attach` and `detach`: a cluster that is there."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import AddressOption, JsonOption, YesOption, cluster_name, with_options
from cloudrl.cli._terminal import Terminal

if TYPE_CHECKING:
    from cloudrl.providers.model import Status


@with_options(name=cluster_name)
def status(
    *,
    name: str | None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show all clusters, or the nodes of one. Exit code 4 if that one has failed.

    With --json, the cluster of a NAME is an object; without a name, the output is a list.
    """
    from cloudrl.sdk.find import ensure_one, look
    from cloudrl.sdk.running import raise_for_status

    with Terminal() as terminal:
        clusters = look(name, watch=watch, on_progress=terminal)
    if as_json and name is not None:
        ensure_one(name, clusters)
    elif as_json or len(clusters) != 1:
        _list(clusters, as_json=as_json)
        if name is not None:
            _output.hint(f"Choose one: cloudrl status {clusters[0].provider}/{name}")
        return
    if as_json:
        _output.as_json(_fields(clusters[0]))
    elif not watch:
        _show(clusters[0])
    raise_for_status(clusters[0])


@with_options(name=cluster_name)
def down(*, name: str | None, yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Stop a cluster and everything running on it. Asks first if jobs run or checkpoints would be lost; logs are kept.

    Without a name, this is your only cluster. Another user's cluster is stopped only by its name, after a question.
    """
    from cloudrl.sdk.choose import Purpose, choose_cluster
    from cloudrl.sdk.teardown import down as end

    with Terminal(yes=yes) as terminal:
        chosen = name or choose_cluster(Purpose.END)
        was_running = end(chosen, confirm=terminal.confirm, on_progress=terminal)
    if as_json:
        _output.as_json({"name": chosen, "was_running": was_running})


@with_options(name=cluster_name)
def env(*, name: str | None, address: AddressOption = None, as_json: JsonOption = False) -> None:
    """Print what a raw `ray job submit` needs: eval "$(cloudrl env)". The output contains the cluster's token.

    The tunnel to a cluster elsewhere stays open in the background, as after `cloudrl attach`.
    """
    from cloudrl.sdk.choose import Purpose
    from cloudrl.sdk.find import find

    variables = find(name, address, purpose=Purpose.CHANGE, keep_open=True).connection.env
    text = "\n".join(f"export {key}={shlex.quote(value)}" for key, value in variables.items())
    _output.result(text, variables, is_json=as_json)


@with_options(name=cluster_name)
def attach(*, name: str | None, as_json: JsonOption = False) -> None:
    """Forward a cluster's dashboard to this machine in the background, until `cloudrl detach`.

    The tunnel reopens after the connection breaks, and closes when the cluster ends. Other commands do not need it.
    """
    from cloudrl.sdk.choose import Purpose, choose_cluster
    from cloudrl.sdk.running import attach as connect

    with Terminal() as terminal:
        chosen = name or choose_cluster(Purpose.ASK, on_progress=terminal)
        running = connect(chosen, keep_open=True, on_progress=terminal)
    url = running.connection.ray_url.replace("127.0.0.1", "localhost")
    _output.hint(f"cloudrl detach {chosen}")
    _output.result(url, {"name": chosen, "dashboard_url": url}, is_json=as_json)


@with_options(name=cluster_name)
def detach(*, name: str | None, as_json: JsonOption = False) -> None:
    """Close the tunnel that `cloudrl attach` or `up` keeps open. The cluster keeps running."""
    from cloudrl.sdk.choose import Purpose, choose_cluster
    from cloudrl.sdk.running import detach as close

    chosen = name or choose_cluster(Purpose.END)
    was_open = close(chosen)
    if as_json:
        _output.as_json({"name": chosen, "was_open": was_open})
    else:
        _output.note(f"closed the tunnel to {chosen}" if was_open else f"there was no tunnel to {chosen}")


def _fields(status: Status) -> dict[str, object]:
    return {"name": status.name, "provider": status.provider, **asdict(status)}


def _list(statuses: list[Status], *, as_json: bool) -> None:
    from cloudrl.sdk.choose import START_HINT
    from cloudrl.units import dollars_text

    rows = [
        (
            status.name, status.provider, str(status.phase), str(status.facts.nodes),
            dollars_text(status.cost) if status.cost else "", status.dashboard_url or "",
        )
        for status in statuses
    ]  # fmt: skip
    _output.listing(
        [_fields(status) for status in statuses],
        ("name", "on", "phase", "nodes", "cost so far", "dashboard"),
        rows,
        is_json=as_json,
        empty="There is no cluster.",
        next_command=START_HINT,
    )


def _show(cluster: Status) -> None:
    from cloudrl.cli._nodes import columns, node_table, rows_of
    from cloudrl.jobs.format import mirror_lines
    from cloudrl.protocol.job_phases import phase_text
    from cloudrl.sdk.costs import describe
    from cloudrl.sdk.failures import newest_failure
    from cloudrl.sdk.progress_lines import describe_attempt, headline
    from cloudrl.sdk.status_warnings import links_text, status_warnings

    if not cluster.nodes:
        _output.data(headline(cluster))
    elif sys.stdout.isatty():
        _output.show(node_table(cluster))
    else:
        _output.table([*columns()], [cells for cells, _ in rows_of(cluster.nodes)])
    lines = [*map(describe_attempt, cluster.previous_attempts), *describe(cluster), links_text(cluster.nodes)]
    lines += mirror_lines(cluster.mirrors, time.time())
    for line in filter(None, lines):
        _output.note(line)
    if cluster.job is not None:
        _output.note(f"job {cluster.job.submission_id}: {phase_text(cluster.job, time.time())}")
    for warning in status_warnings(cluster):
        _output.note(f"warning: {warning.text}")
        if warning.hint:
            _output.hint(warning.hint)
    if (failure := newest_failure(cluster)) is not None:
        _output.note(f"job {failure.submission_id} failed: {failure.cause or 'nothing says why'}")
        _output.hint(f"cloudrl why --cluster {cluster.ref}")
    for notice in cluster.teardown_notices if cluster.is_over else ():
        _output.note(notice.text)
        _output.hint(notice.hint)
    if cluster.is_ready:
        dashboard = cluster.dashboard_url or f"with cloudrl attach {cluster.name}"
        _output.note(f"dashboard {dashboard}, checkpoints {cluster.facts.checkpoint_dir}")
