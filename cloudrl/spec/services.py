"""Servers of the user's that run beside Ray on every node, and the files that they need."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, PlainValidator

from cloudrl.errors import SpecError
from cloudrl.protocol.services import Artifact as AgentArtifact
from cloudrl.protocol.services import Service as AgentService
from cloudrl.spec.base import Spec
from cloudrl.spec.fields import command, matching, one_line, optional, unique_list_of
from cloudrl.spec.ports import ANOTHER_PORT, port_holder, port_number

_EXAMPLE = "The port at which it answers, and the command that it is, for example '8000:bash launch.sh'"
_artifact_name = matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", "the name of an artifact", "For example 'my-index'")
_service_name = matching(r"[a-z][a-z0-9-]{0,29}", "the name of a service", "Small letters, digits and dashes")


def _port(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise SpecError(f"{value!r} is not a port", hint=ANOTHER_PORT)
    port = port_number(str(value))
    if port_holder(port) is not None:
        raise SpecError(f"port {port} belongs to {port_holder(port)}", hint=ANOTHER_PORT)
    return port


def _path(value: object) -> str:
    path = one_line(value)
    if not re.fullmatch(r"/[!-~]*", path):
        raise SpecError(f"{value!r} is not an HTTP path", hint="For example '/health'")
    return path


class Artifact(Spec):
    """Files that a command brings to the nodes, such as an index: once per node, or once per file system they share.

    The command runs in a folder of its own, `$CLOUDRL_ARTIFACTS/NAME`, at every start of the cluster: it continues what
    was interrupted, and does nothing when everything is there. Its last line is the reason if it fails.
    """

    name: Annotated[str, PlainValidator(_artifact_name)]
    command: Annotated[str, PlainValidator(command)]

    def for_agent(self) -> AgentArtifact:
        """As the node agent reads it."""
        return AgentArtifact(self.name, self.command)


class Service(Spec):
    """A server that runs beside Ray on every node, with more to say than its port and its command."""

    port: Annotated[int, PlainValidator(_port)]
    """At which it answers. A command that has `$PORT` in it can also run where several nodes are one machine."""
    command: Annotated[str, PlainValidator(command)]
    """Stays in the foreground."""
    name: Annotated[str | None, PlainValidator(optional(_service_name))] = None
    """What jobs call it: they find its address in `$CLOUDRL_SERVICE_NAME`. None means its port."""
    needs: Annotated[Sequence[str], PlainValidator(unique_list_of(one_line))] = ()
    """Artifacts and models of the cluster that have to be there before it is started."""
    health: Annotated[str | None, PlainValidator(optional(_path))] = None
    """An HTTP path that answers with status 200 when it is ready; None means that an open port is enough."""
    restart: Annotated[int, Field(ge=0)] = 0
    """How often in a row it is started again when it ends or no longer answers. With 0 its end is the node's end."""

    def for_agent(self) -> AgentService:
        """As the node agent reads it."""
        return AgentService(
            self.port, self.command, self.name or "", tuple(self.needs), self.health or "", self.restart
        )


def parse_service(value: object) -> AgentService:
    """Read `8000:bash launch.sh`.

    Raises:
        SpecError: `value` is not that, or the port is Ray's, the agent's or dstack's.
    """
    match = re.fullmatch(r"\s*([0-9]{1,5})\s*:(.*)", value, re.DOTALL) if isinstance(value, str) else None
    if match is None:
        raise SpecError(f"{value!r} is not a service", hint=_EXAMPLE)
    port = port_number(match[1])
    if port_holder(port) is not None:
        raise SpecError(f"{value!r}: port {port} belongs to {port_holder(port)}", hint=ANOTHER_PORT)
    return AgentService(port, command(match[2]))


def agent_service(value: str | Service) -> AgentService:
    """One item of `Cluster.services` as the node agent reads it."""
    return parse_service(value) if isinstance(value, str) else value.for_agent()


def _service(value: object) -> str | Service:
    if isinstance(value, Service):
        return value
    return Service.load(value) if isinstance(value, Mapping) else str(parse_service(value))


def _artifact(value: object) -> Artifact:
    if isinstance(value, Artifact):
        return value
    if not isinstance(value, Mapping):
        raise SpecError(f"{value!r} is not an artifact", hint="For example {name: index, command: bash get_index.sh}")
    return Artifact.load(value)


_service_list = unique_list_of(
    _service,
    by=lambda item: agent_service(item).port,
    message="two services have port {}",
    hint="Give each one its own",
)


def _services(value: object) -> tuple[str | Service, ...]:
    services = _service_list(value)
    names = [agent_service(each).label for each in services]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"two services are called {name!r}", hint="Give each one its own name")
    return services


Services = Annotated[Sequence[str | Service], PlainValidator(_services)]
Artifacts = Annotated[
    Sequence[Artifact], PlainValidator(unique_list_of(_artifact, by=lambda each: each.name, message="{} stands twice"))
]
