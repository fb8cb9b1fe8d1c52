"""Servers of the user's that run beside Ray, and the files that they need: as the agent's command line names them."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Dict, Tuple, Type, TypeVar

from cloudrl.errors import InputError
from cloudrl.protocol.wire import from_json

T = TypeVar("T")


@dataclass(frozen=True)
class Artifact:
    """Files that a shell command brings into a folder of its own, once per node or per shared file system.

    The command runs in that folder, `$CLOUDRL_ARTIFACTS/NAME`, at every start of the cluster. So it has to continue
    what was interrupted, and to be quick when everything is there. Status 75 (EX_TEMPFAIL) blames the network.
    """

    name: str
    command: str

    def __str__(self) -> str:
        return _written(self)


@dataclass(frozen=True)
class Service:
    """One server of the user's on its own node.

    Attributes:
        port: the TCP port at which it answers; `$PORT` in its command.
        command: the shell command that it is. It stays in the foreground: its end, also with status 0, is that of the
            service.
        name: what jobs call it; "" for its port.
        needs: artifacts and models that have to be there before it is started.
        health: an HTTP path that answers with status 200 while the service is ready; "" where an open port is enough.
        restart: how often it is started again in a row; with 0 its end is the end of the node.
        peer_port: at which it answers its like on other nodes; 0 where it knows nothing of them. It is started when the
            addresses of all are known: they are in `$PEERS`, in the order of ranks, its own place among them in
            `$RANK`, and a token that only they have is in the file `$CLOUDRL_PEER_TOKEN_FILE`.
    """

    port: int
    command: str
    name: str = ""
    needs: Tuple[str, ...] = ()
    health: str = ""
    restart: int = 0
    peer_port: int = 0

    @property
    def label(self) -> str:
        """Its name, or else its port."""
        return self.name or str(self.port)

    @property
    def variable(self) -> str:
        """The variable by which jobs find it: its address on the node, `127.0.0.1:8000`."""
        return "CLOUDRL_SERVICE_" + self.label.upper().replace("-", "_")

    def __str__(self) -> str:
        plain = self == Service(self.port, self.command)
        return f"{self.port}:{self.command}" if plain else _written(self)


def parse_service(text: str) -> Service:
    """Read `8000:bash launch.sh`, or the fields as JSON.

    Raises:
        InputError: it is neither.
    """
    if text.startswith("{"):
        service = _read(Service, text)
    else:
        port, _, command = text.partition(":")
        service = Service(int(port) if port.isascii() and port.isdigit() else 0, command)
    if not (0 < service.port < 65536 and service.command.strip()):
        raise InputError(f"{text!r} is not PORT:COMMAND, for example '8000:bash launch.sh'")
    return service


def parse_artifact(text: str) -> Artifact:
    """Read the fields as JSON.

    Raises:
        InputError: they are not there, or the name is not a name of a folder.
    """
    artifact = _read(Artifact, text)
    if artifact.name in ("", ".", "..") or "/" in artifact.name or not artifact.command.strip():
        raise InputError(f'{text!r} is not an artifact, for example {{"name": "index", "command": "bash get.sh"}}')
    return artifact


def _read(kind: Type[T], text: str) -> T:
    try:
        return from_json(kind, json.loads(text))
    except ValueError as error:
        raise InputError(f"{text!r} cannot be read: {error}") from error


def _written(value: Any) -> str:
    """As JSON, without what has its default."""
    fields: Dict[str, Any] = {}
    for field in dataclasses.fields(value):
        given = getattr(value, field.name)
        if given != field.default:
            fields[field.name] = given
    return json.dumps(fields, ensure_ascii=False)
