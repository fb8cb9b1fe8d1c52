"""The cluster or job that is meant: by its name, by an address, or as `cloudrl.sdk.choose` finds it.

RAY_ADDRESS is not asked: inside a Ray job it is Ray's own address, and a stray one leads to another cluster.
"""

import os
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from cloudrl.errors import CloudrlError, InputError
from cloudrl.jobs import JobHandle
from cloudrl.jobs.handle import newest_job
from cloudrl.plugins import providers
from cloudrl.providers import registry
from cloudrl.providers.model import Status
from cloudrl.providers.registry import names_in_use, provider
from cloudrl.sdk.callbacks import Notice, OnProgress, silent
from cloudrl.sdk.choose import ANY_RAY_HINT, KEPT_FOLDER_HINT, Purpose, choose_cluster
from cloudrl.sdk.running import RunningCluster, attach, connect
from cloudrl.transport.job_url import JOB_URL

_LOOPBACK = ("127.0.0.1", "localhost")


def find(
    name: str | None = None,
    address: str | None = None,
    *,
    purpose: Purpose = Purpose.ASK,
    keep_open: bool = False,
    otherwise: str = ANY_RAY_HINT,
    on_progress: OnProgress = silent,
) -> RunningCluster:
    """The cluster of that name, the Ray at that address, or the one that `choose_cluster` finds.

    Args:
        name: as `cloudrl status` lists it; `dstack/lab` where two providers have a `lab`.
        address: of any Ray's dashboard. Without it only one's own clusters are talked to.
        purpose: what is done with it.
        keep_open: let the connection be of use after this program, too.
        otherwise: a hint: what the command takes in place of a cluster.
        on_progress: receives which of several clusters it is.

    Raises:
        InputError: both are given, there is no such cluster, or there are several to choose from, also of one name.
        ConnectionFailed: it does not answer.
    """
    if name is not None and address is not None:
        raise InputError(f"--cluster {name} and --address {address} exclude each other", hint="Pass only one of them")
    if address is not None:
        return connect(address if "://" in address else f"http://{address}", _ray_token())
    chosen = name if name is not None else choose_cluster(purpose, otherwise=otherwise, on_progress=on_progress)
    return attach(chosen, keep_open=keep_open)


def look(name: str | None = None, *, watch: bool = False, on_progress: OnProgress = silent) -> list[Status]:
    """One look at all clusters of a name, or at all, also those that are over and have left something.

    Args:
        name: theirs.
        watch: look at the only one until it is over, or Ctrl-C, and return the last look.
        on_progress: receives who could not be asked, and each look of a watch.

    Raises:
        InputError: the name is unknown.
        CloudrlError: a provider could not be asked, and the others have none.
    """
    named = registry.find(name)
    refs = [cluster.ref for cluster in named.clusters]
    if name is None:
        named.refuse_silent()
        for unasked, why in named.errors.items():
            on_progress(Notice(f"clusters on {unasked} are not shown: {why.message}", why.hint or ""))
    elif not refs:
        refs = [registry.locate(name)]
    if name is None:
        _report_idle_costs(named.errors, on_progress)
    if not watch or len(refs) != 1:
        return [provider(ref.provider).status(ref.name) for ref in refs]
    with closing(provider(refs[0].provider).watch(refs[0].name)) as statuses:
        status = next(statuses)
        with suppress(KeyboardInterrupt):
            on_progress(status)
            for status in statuses:
                on_progress(status)
    return [status]


def _report_idle_costs(silent_providers: Collection[str], on_progress: OnProgress) -> None:
    """Say what costs money and is used by no cluster; a provider that does not answer has been named before."""
    for asked in (provider(name) for name in providers() if name not in silent_providers):
        with suppress(CloudrlError):
            for notice in asked.idle_costs() if asked.is_configured() else ():
                on_progress(notice)


def ensure_one(name: str, statuses: Sequence[Status]) -> None:
    """Raises: InputError: a name means several clusters, of several providers."""
    if len(statuses) > 1:
        raise registry.ambiguous(name, [cluster.ref for cluster in statuses])


def find_job(
    job_id: str | None = None,
    name: str | None = None,
    address: str | None = None,
    *,
    purpose: Purpose = Purpose.ASK,
    on_progress: OnProgress = silent,
) -> JobHandle:
    """A job by its submission id or `ray://` URL; the newest one of the cluster for None.

    The other arguments are those of `find`.

    Raises:
        InputError: it does not exist.
        ConnectionFailed: no answer.
    """
    cluster, job_id = cluster_and_job(job_id, name, address, purpose=purpose, on_progress=on_progress)
    return newest_job(cluster.connection) if job_id is None else cluster.job(job_id)


def cluster_and_job(
    job_id: str | None,
    name: str | None,
    address: str | None,
    *,
    purpose: Purpose = Purpose.ASK,
    on_progress: OnProgress = silent,
) -> tuple[RunningCluster, str | None]:
    """The cluster of a job and the job's submission id; None for its newest job.

    The arguments are those of `find_job`.

    Raises:
        InputError: there is no such cluster.
        ConnectionFailed: no answer.
    """
    if job_id is not None and (url := JOB_URL.fullmatch(job_id)) is not None:
        job_id, place = url["id"], url["place"]
        if name is None and address is None:  # one of ours, also one that is over or another user's, or any Ray
            name = _name_at(place) if {":", "."} & set(place) else place
            address = f"http{'s' * bool(url['secure'])}://{place}" if name is None else None
    return find(name, address, purpose=purpose, on_progress=on_progress), job_id


def cluster_of(
    job_id: str | None, name: str | None, address: str | None, *, on_progress: OnProgress = silent
) -> str | None:
    """The cluster of a job whose logs may be all that is left; None if it is named by an address.

    The arguments are those of `find_job`.

    Raises:
        InputError: nothing names the cluster, and none can be chosen.
    """
    if name is not None or address is not None:
        return name
    if job_id is not None and JOB_URL.fullmatch(job_id) is not None:
        return None
    return choose_cluster(Purpose.READ_KEPT, otherwise=f"{ANY_RAY_HINT}\n{KEPT_FOLDER_HINT}", on_progress=on_progress)


class Kept(NamedTuple):
    """What a cluster has kept.

    Attributes:
        folder: of checkpoints, which clusters may share.
        job_id: the submission id of the job that is meant; None for its newest one.
        cluster: its name; None where any in the folder is meant.
        run: the id of its last start.
        is_over: whether it is known that nothing of it runs any more.
    """

    folder: Path
    job_id: str | None = None
    cluster: str | None = None
    run: str | None = None
    is_over: bool = False


def find_kept(job_id: str | None = None, name: str | None = None, address: str | None = None) -> Kept | None:
    """Where a cluster of this machine that does not answer has kept its logs, and which job of it is meant.

    The arguments are those of `find_job`. None where its folder of checkpoints is not on this machine.
    """
    job_id, name = names_of(job_id, name)
    status = find_here(name) if name is not None and address is None else None
    if status is None:
        return None
    return Kept(
        Path(status.facts.checkpoint_dir),
        job_id,
        status.name,
        status.facts.id or None,
        status.is_over,
    )


def names_of(job_id: str | None, name: str | None) -> tuple[str | None, str | None]:
    """The submission id and the cluster that a job's id or URL, and perhaps the name of its cluster, stand for."""
    url = JOB_URL.fullmatch(job_id) if job_id else None
    return (url["id"], name or url["place"]) if url else (job_id, name)


def folder_here(status: Status) -> Path | None:
    """A cluster's folder of checkpoints, if its nodes read this machine's own files."""
    is_here = registry.provider(status.provider).nodes_are_here and status.facts.checkpoint_dir
    return Path(status.facts.checkpoint_dir) if is_here else None


def find_here(name: str) -> Status | None:
    """A cluster whose folder of checkpoints is on this machine; None if absent."""
    with suppress(CloudrlError):
        status = look(name)
        return next((cluster for cluster in status if folder_here(cluster) is not None), None)
    return None


def _name_at(place: str) -> str | None:
    """Which cluster of ours is reached at a port of this machine, as an address alone has no token; None for none."""
    host, _, port = place.partition(":")
    if host not in _LOOPBACK:
        return None
    running = registry.find().running
    for name, cluster in zip(names_in_use(running), running, strict=True):
        dashboard_url = cluster.dashboard_url
        if not dashboard_url:
            with suppress(CloudrlError):
                dashboard_url = provider(cluster.provider).status(cluster.name).dashboard_url
        url = urlsplit(dashboard_url or "")
        if url.hostname in _LOOPBACK and str(url.port) == port:
            return name
    return None


def _ray_token() -> str | None:
    """Where Ray itself looks (docs.ray.io, token authentication), but for ~/.ray/auth_token.

    That file is left by any local `ray.init()`, and says nothing about this cluster.
    """
    token = os.environ.get("RAY_AUTH_TOKEN")
    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    if token or not path:
        return token or None
    file = Path(path).expanduser()
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(
            f"RAY_AUTH_TOKEN_PATH names {path}, which cannot be read: {reason}",
            hint="Name the file with the token, or leave it out: unset RAY_AUTH_TOKEN_PATH",
        ) from error
