"""The servers that a job asks: what its cluster has to run, and whether the one at hand does."""

import json
from collections.abc import Mapping, Sequence

from cloudrl.errors import InputError
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.spec import Job, Search, Service
from cloudrl.spec.services import agent_service
from cloudrl.verl.keys import SEARCH_R1_URL

_SEARCH_URL = "CLOUDRL_SEARCH_URL"
"""By which the search function asks another server (tools/search.py)."""
_ON_THE_NODE = ("http://127.0.0.1:", "http://localhost:")


def needed_services(job: Job, env: Mapping[str, str]) -> Sequence[str | Service | Search]:
    """Those of a job's needs that are not elsewhere, as its variables say."""
    return tuple(need for need in job.needs if not _is_elsewhere(need, {**job.env, **env}))


def check_services(job: Job, env: Mapping[str, str], cluster: ClusterFacts) -> None:
    """Refuse a cluster without them: the job would run in vain. A server without a name will do, at the same port.

    Raises:
        InputError: The cluster is known to have none.
    """
    if not cluster.has_agents:
        return
    for service in needed_services(job, env):
        need = agent_service(service)
        if not {need.label, str(need.port)} & {*cluster.services}:
            text = service if isinstance(service, str) else service.explicit_fields()
            hint = (
                f"Start a cluster that has it: cloudrl run {job.name} --cluster NAME\n"
                f"Or when you start one yourself: --set 'services={json.dumps([text])}'"
            )
            if need.label == "search":
                hint += f"\nAsk a server elsewhere: --env {_SEARCH_URL}=http://HOST:8000/retrieve"
            raise InputError(
                f"recipe {job.name!r} needs the service {need.label!r}, and cluster {cluster.name!r} has "
                f"{', '.join(cluster.services) or 'no services'}",
                hint=hint,
            )


def check_own_search(values: Mapping[str, str], cluster: ClusterFacts) -> None:
    """Refuse a cluster without any server to Search-R1's fork, whose settings name one on its own node.

    Raises:
        InputError: The cluster is known to have none.
    """
    url = values.get(SEARCH_R1_URL, "")
    if url.startswith(_ON_THE_NODE) and cluster.has_agents and not cluster.services:
        raise InputError(
            f"{SEARCH_R1_URL}={url}, and cluster {cluster.name!r} has no services",
            hint="When you start the cluster: --set 'services=[\"search:wiki-18\"]'\n"
            f"Ask a server elsewhere: {SEARCH_R1_URL}=http://HOST:8000/retrieve",
        )


def _is_elsewhere(declared: str | Service | Search, env: Mapping[str, str]) -> bool:
    need = agent_service(declared)
    return need.variable in env or (need.label == "search" and _SEARCH_URL in env)
