"""Servers of the user's that run beside Ray on every node, and the files that they need."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PlainValidator, model_validator

from cloudrl.errors import SpecError, did_you_mean
from cloudrl.protocol.services import Artifact as AgentArtifact
from cloudrl.protocol.services import Service as AgentService
from cloudrl.retriever.published import PUBLISHED
from cloudrl.spec.base import Spec
from cloudrl.spec.fields import absolute_path, command, list_of, matching, one_line, optional, unique_list_of
from cloudrl.spec.ports import ANOTHER_PORT, port_holder, port_number
from cloudrl.spec.quoting import quoted

if TYPE_CHECKING:
    from typing_extensions import Self

SERPAPI, SERPAPI_KEY = "serpapi", "SERPAPI_API_KEY"
READY_MADE = (*PUBLISHED, SERPAPI)
PACKAGES = {"bm25": ("bm25s", "bm25s==0.3.16"), "faiss": ("faiss", "faiss-cpu==1.15.1")}
"""Module and requirement of engines; the others need only what verl's images have."""
_SEARCH = "search:"
_OURS, _PACKAGE = "cloudrl://", Path(__file__).parents[1]
"""How a file that comes with cloudrl is named, as in paths of jobs (jobs/local_files.py)."""
_RETRIEVER = 'python3 "$CLOUDRL_FILES/cloudrl-retriever.pyz"'
_SHARING = '--peers "$PEERS" --shard "$RANK" --peer-token-file "$CLOUDRL_PEER_TOKEN_FILE"'
_RESTARTS, _PEER_PORT_IS_HIGHER_BY = 5, 100
_CORPORA = "One of {}, a file of this machine such as './passages.jsonl', or an absolute path of the nodes".format(
    ", ".join(READY_MADE)
)
_EXAMPLE = "The port at which it answers, and the command that it is, for example '8000:bash launch.sh'"
_artifact_name = matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", "the name of an artifact", "For example 'my-index'")
_device = matching(r"cpu|cuda(:[0-9]+)?", "a device", "For example 'cuda:0', also for AMD")
_service_name = matching(r"[a-z][a-z0-9-]{0,29}", "the name of a service", "Small letters, digits and dashes")


def _port(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise SpecError(f"{quoted(value)} is not a port", hint=ANOTHER_PORT)
    port = port_number(str(value))
    if port_holder(port) is not None:
        raise SpecError(f"port {port} belongs to {port_holder(port)}", hint=ANOTHER_PORT)
    return port


def _corpus(value: object) -> str:
    if not isinstance(value, str):
        raise SpecError(f"{quoted(value)} is not a corpus", hint=_CORPORA)
    if value in READY_MADE:
        return value
    if value.startswith("/"):
        return absolute_path(value)
    if not value.startswith(("./", "../", "~/", _OURS)):
        raise SpecError(f"there is no corpus {quoted(value)}{did_you_mean(value, READY_MADE)}", hint=_CORPORA)
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", PurePosixPath(one_line(value)).name, re.ASCII):
        raise SpecError(f"{quoted(value)}: letters, digits, dots, dashes and _ in the name of a file that is sent")
    return value


def _path(value: object) -> str:
    path = one_line(value)
    if not re.fullmatch(r"/[!-~]*", path):
        raise SpecError(f"{quoted(value)} is not an HTTP path", hint="For example '/health'")
    return path


class Artifact(Spec):
    """Files that a command brings to the nodes, such as an index: once per node, or once per file system they share.

    The command runs in a folder of its own, `$CLOUDRL_ARTIFACTS/NAME`, at every start of the cluster: it continues what
    was interrupted, and does nothing when everything is there. Its last line is the reason if it fails.

        index = cloudrl.Artifact(name="index", command="hf download me/index --repo-type dataset --local-dir .")
        server = cloudrl.Service(port=8000, command='python3 /data/serve.py --port "$PORT"', needs=["index"])
        cloudrl.Cluster(name="mine", artifacts=[index], services=[server])
    """

    name: Annotated[str, PlainValidator(_artifact_name)]
    command: Annotated[str, PlainValidator(command)]

    def for_agent(self) -> AgentArtifact:
        """As the node agent reads it."""
        return AgentArtifact(self.name, self.command)


class Service(Spec):
    """A server that runs beside Ray on every node, with more to say than its port and its command.

        judge = cloudrl.Service(name="judge", port=8000, command="python3 /data/judge.py", health="/health")
        cloudrl.Cluster(name="mine", services=[judge, "9000:python3 /data/sandbox.py"])

    What the fields mean: docs/services.md.
    """

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


class Search(Spec):
    """A retrieval server for agents that search, ready-made: the service `search`, and the index that it needs.

        search = cloudrl.Search(search="/data/passages", engine="flat", device="cuda:0")
        cloudrl.Cluster(name="mine", gpu="80GB..:8", services=[search])

    What it can serve: docs/retriever.md.
    """

    search: Annotated[str, PlainValidator(_corpus)]
    """`wiki-18`, `wiki-18-hnsw` or `serpapi`; `./passages.jsonl` of this machine; or an absolute path of the nodes: a
    file or folder of passages, or a folder of `cloudrl retriever build` or `fetch`."""
    engine: Literal["bm25", "flat"] | None = None
    """For passages of one's own: by words, or by vectors of e5-base-v2. None means bm25."""
    device: Annotated[str, PlainValidator(_device)] = "cpu"
    """Of torch, where the vectors are searched and made: `cuda:0`."""
    port: Annotated[int, PlainValidator(_port)] = 8000
    shards: Literal["nodes"] | None = None
    """`nodes`: each node holds its part of the vectors in memory, and asks the others for the rest at `port` + 100.
    None means that each node holds all of them."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.is_ready_made and self.engine is not None:
            raise SpecError(f"{self.search} has its own engine, so engine {quoted(self.engine)} does not apply to it")
        if self.shards is not None:
            if self._engine != "flat":
                hint = "Leave shards out" if self.is_ready_made else "engine: flat"
                raise SpecError(
                    f"search:{self.search} is searched by {self._engine}, nodes can share vectors", hint=hint
                )
            _port(self.peer_port)
        return self

    @property
    def peer_port(self) -> int:
        """At which the nodes that share an index ask each other; 0 if they do not."""
        return 0 if self.shards is None else self.port + _PEER_PORT_IS_HIGHER_BY

    @property
    def _engine(self) -> str:
        if self.is_ready_made:
            return PUBLISHED[self.search].engine if self.search in PUBLISHED else SERPAPI
        return self.engine or "bm25"

    @property
    def is_ready_made(self) -> bool:
        """Whether it is named, and not the place of passages."""
        return self.search in READY_MADE

    @property
    def local_file(self) -> str | None:
        """The path of this machine that it names."""
        if self.search.startswith(_OURS):
            return str(_PACKAGE / self.search.removeprefix(_OURS))
        return None if self.is_ready_made or self.search.startswith("/") else self.search

    @property
    def package(self) -> tuple[str, str] | None:
        """Module and requirement that its engine needs, and that verl's images do not have."""
        return PACKAGES.get(self._engine)

    def artifact(self, place: str, content: bytes = b"") -> Artifact | None:
        """The index that it serves, or None for the web. Jobs that share a data folder share one of the same passages.

        Args:
            place: of the passages on the nodes, as the shell reads it.
            content: of a file that is sent along, and is at the same place for every job.
        """
        if self.search == SERPAPI:
            return None
        if self.search in PUBLISHED:
            return Artifact(name=f"search-{self.search}", command=f"exec {_RETRIEVER} fetch {self.search} --to .")
        engine, stem = self._engine, re.sub(r"[^A-Za-z0-9._-]", "-", PurePosixPath(self.search).stem)
        command = f"exec {_RETRIEVER} build {place} --to . --engine {engine}{self._on_device}"
        source = hashlib.sha256(place.encode() + content).hexdigest()[:8]
        return Artifact(name=f"search-{stem[:60]}-{engine}-{source}", command=command)

    def service(self, place: str, content: bytes = b"") -> AgentService:
        """The server, as the node agent reads it; see `artifact`."""
        index = self.artifact(place, content)
        served = SERPAPI if index is None else f'"$CLOUDRL_ARTIFACTS/{index.name}"'
        return AgentService(
            port=self.port,
            command=f'exec {_RETRIEVER} serve {served} --port "$PORT"{self._on_device}{self._with_others}',
            name="search",
            needs=() if index is None else (index.name,),
            health="/health",
            restart=_RESTARTS,
            peer_port=self.peer_port,
        )

    @property
    def _with_others(self) -> str:
        return "" if self.shards is None else f" {_SHARING}"

    @property
    def _on_device(self) -> str:
        return "" if self.device == "cpu" else f" --device {self.device}"


def parse_service(value: object) -> AgentService:
    """Read `8000:bash launch.sh`.

    Raises:
        SpecError: `value` is not that, or the port is Ray's, the agent's or dstack's.
    """
    match = re.fullmatch(r"\s*([0-9]{1,5})\s*:(.*)", value, re.DOTALL) if isinstance(value, str) else None
    if match is None:
        raise SpecError(f"{quoted(value)} is not a service", hint=_EXAMPLE)
    port = port_number(match[1])
    if port_holder(port) is not None:
        raise SpecError(f"{quoted(value)}: port {port} belongs to {port_holder(port)}", hint=ANOTHER_PORT)
    return AgentService(port, command(match[2]))


def parse_search(value: str | Service | Search) -> Search | None:
    """One item of `Cluster.services`, if it is a ready-made server."""
    if isinstance(value, str) and value.startswith(_SEARCH):
        return Search(search=value.removeprefix(_SEARCH))
    return value if isinstance(value, Search) else None


def agent_service(value: str | Service | Search, place: str = "") -> AgentService:
    """One item of `Cluster.services` as the node agent reads it; `place` is as for `Search.artifact`."""
    if (search := parse_search(value)) is not None:
        return search.service(place)
    return parse_service(value) if isinstance(value, str) else value.for_agent()  # type: ignore[union-attr]


def _service(value: object) -> str | Service | Search:
    if isinstance(value, (Service, Search)):
        return value
    if isinstance(value, Mapping):
        return (Search if "search" in value else Service).load(value)
    if isinstance(value, str) and (text := value.strip()).startswith(_SEARCH):
        parse_search(text)
        return text
    return str(parse_service(value))


def _artifact(value: object) -> Artifact:
    if isinstance(value, Artifact):
        return value
    if not isinstance(value, Mapping):
        raise SpecError(
            f"{quoted(value)} is not an artifact", hint="For example {name: index, command: bash get_index.sh}"
        )
    return Artifact.load(value)


_service_list = list_of(_service)


def _services(value: object) -> tuple[str | Service | Search, ...]:
    services = _service_list(value)
    read = [agent_service(service) for service in services]
    ports: list[object] = [port for service in read for port in (service.port, service.peer_port) if port]
    names: list[object] = [service.label for service in read]
    for what, items in (("have port", ports), ("are called", names)):
        for item in items:
            if items.count(item) > 1:
                raise SpecError(f"two services {what} {quoted(item)}", hint="Give each one its own")
    return services


Services = Annotated[Sequence[str | Service | Search], PlainValidator(_services)]
Artifacts = Annotated[
    Sequence[Artifact],
    PlainValidator(unique_list_of(_artifact, by=lambda artifact: artifact.name, message="{} stands twice")),
]
