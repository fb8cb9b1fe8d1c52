"""Which cluster is meant: by its name, by an address, or the only one that is there.

RAY_ADDRESS is not asked: inside a Ray job it is Ray's own address, and a stray one leads to another cluster.
"""

import os
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from cloudrl.errors import CloudrlError, InputError
from cloudrl.jobs import JobHandle
from cloudrl.jobs.handle import newest_job
from cloudrl.providers import registry
from cloudrl.providers.model import Status
from cloudrl.providers.registry import names_in_use, provider
from cloudrl.sdk.callbacks import Notice, OnProgress, silent
from cloudrl.sdk.running import RunningCluster, attach, connect
from cloudrl.transport.job_url import JOB_URL

PLAIN_URL = "http://localhost:8265"
_LOOPBACK = ("127.0.0.1", "localhost")


def find(
    name: str | None = None, address: str | None = None, *, keep_open: bool = False, plain: bool = True
) -> RunningCluster:
    """The cluster of that name, the Ray at that address, or the only cluster that is up.

    Where none is up it is the plain Ray of http://localhost:8265.

    Args:
        name: as `cloudrl status` lists it; `dstack/lab` where two providers have a `lab`.
        address: of any Ray's dashboard.
        keep_open: let the connection be of use after this program, too.
        plain: whether it may be that plain Ray.

    Raises:
        InputError: both are given, there is no such cluster, or there are several to choose from, also of one name.
        ConnectionFailed: it does not answer.
    """
    if name is not None and address is not None:
        raise InputError(f"--cluster {name} and --address {address} exclude each other", hint="Pass only one of them")
    if name is None and address is None:
        up = running_clusters()
        if not up and plain:
            address = PLAIN_URL
        else:
            name = only_of(up, none=f"Name one, or any Ray: --address {PLAIN_URL}")
    if name is not None:
        return attach(name, keep_open=keep_open)
    url = str(address) if "://" in str(address) else f"http://{address}"
    return connect(url, _ray_token())


def only_cluster(name: str | None) -> str:
    """The name that was given, or that of one's only cluster, up or not.

    Raises:
        InputError: none was given and there is not exactly one.
    """
    if name is not None:
        return name
    names = running_clusters() or names_in_use(registry.find().clusters)
    return only_of(names, none="Start one: cloudrl up --on local --nodes 2")


def only_of(names: Sequence[str], *, none: str) -> str:
    """The only one of several names; `none` is the hint if there is no name.

    Raises:
        InputError: there is not exactly one.
    """
    if not names:
        raise InputError("there is no cluster", hint=none)
    if len(names) > 1:
        raise InputError(f"there are several clusters: {', '.join(names)}", hint=f"Choose one: --cluster {names[0]}")
    return names[0]


def running_clusters() -> list[str]:
    """Clusters that are up or coming up, as commands name them.

    Raises:
        CloudrlError: a provider could not be asked, and nothing runs with the others.
    """
    clusters = registry.find()
    if clusters.errors and not clusters.running:
        raise next(iter(clusters.errors.values()))
    return names_in_use(clusters.running)


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
    if not watch or len(refs) != 1:
        return [provider(ref.provider).status(ref.name) for ref in refs]
    with closing(provider(refs[0].provider).watch(refs[0].name)) as statuses:
        status = next(statuses)
        with suppress(KeyboardInterrupt):
            on_progress(status)
            for status in statuses:
                on_progress(status)
    return [status]


def ensure_one(name: str, statuses: Sequence[Status]) -> None:
    """Raises: InputError: a name means several clusters, of several providers."""
    if len(statuses) > 1:
        raise registry.ambiguous(name, [cluster.ref for cluster in statuses])


def find_job(job_id: str | None = None, name: str | None = None, address: str | None = None) -> JobHandle:
    """A job by its submission id or `ray://` URL; the newest one of the cluster for None.

    Raises:
        InputError: it does not exist.
        ConnectionFailed: no answer.
    """
    if job_id is None:
        return newest_job(find(name, address).connection)
    if (url := JOB_URL.fullmatch(job_id)) is not None:
        job_id, place = url["id"], url["place"]
        if name is None and address is None:  # one of ours, also one that is over or another user's, or any Ray
            name = _name_at(place) if {":", "."} & set(place) else place
            address = f"http{'s' * bool(url['secure'])}://{place}" if name is None else None
    return find(name, address).job(job_id)


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
    url = JOB_URL.fullmatch(job_id) if job_id else None
    if address is not None:
        return None
    status = find_here(name or (url["place"] if url else None))
    if status is None:
        return None
    return Kept(
        Path(status.facts.checkpoint_dir),
        url["id"] if url else job_id,
        status.name,
        status.facts.id or None,
        status.is_over,
    )


def folder_here(status: Status) -> Path | None:
    """A cluster's folder of checkpoints, if its nodes read this machine's own files."""
    is_here = registry.provider(status.provider).nodes_are_here and status.facts.checkpoint_dir
    return Path(status.facts.checkpoint_dir) if is_here else None


def find_here(name: str | None) -> Status | None:
    """A cluster, one's only one for None, whose folder of checkpoints is on this machine; None if absent."""
    with suppress(CloudrlError):
        status = look(only_cluster(name))
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
