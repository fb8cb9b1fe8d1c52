"""The HTTP session of dstack's own client, with bounds: it has none for time or bytes, and unpacks what is compressed.

The client asks three times before it gives up (dstack 0.22.5, api/server/__init__.py: _request).
"""

import io
import json
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError

from cloudrl.errors import ConnectionFailed, Unauthorized
from cloudrl.foreign import Malformed, PatientResponse, parse_json, read_all

SETUP = (
    "With a server of your own: dstack server\n"
    "With one elsewhere: dstack project add --name main --url URL --token TOKEN"
)
TIMEOUT_S = 60.0
"""For each request: a plan asks every backend for its offers."""
_ATTEMPTS = 3


class _Connection(HTTPConnection):
    response_class = PatientResponse


class _TlsConnection(HTTPSConnection):
    response_class = PatientResponse


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def mount(session: requests.Session, url: str, project: str) -> None:
    """Give each request of a session its bounds, and errors that say what to do."""
    session.headers["Accept-Encoding"] = "identity"
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Adapter(url, project))


class _Adapter(HTTPAdapter):
    def __init__(self, url: str, project: str) -> None:
        self._url, self._project, self._refused = url, project, 0
        super().__init__()

    def init_poolmanager(self, *args: Any, **keywords: Any) -> None:
        super().init_poolmanager(*args, **keywords)
        _be_patient(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **keywords: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **keywords)
        _be_patient(manager)
        return manager

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:  # type: ignore[override]
        timeout_s = options.get("timeout") or TIMEOUT_S
        try:
            answer = super().send(request, **{**options, "timeout": timeout_s, "stream": True})
            answer.raw = io.BytesIO(_body(answer))
        except requests.ConnectionError as error:
            self._refused += 1
            if self._refused < _ATTEMPTS:
                raise
            self._refused = 0
            raise ConnectionFailed(
                f"no dstack server answers at {self._url}", hint=f"Is it running? {SETUP}"
            ) from error
        except (Malformed, OSError, HTTPError) as error:
            raise ConnectionFailed(f"dstack server at {self._url}: {error}") from error
        self._refused = 0
        if answer.is_redirect:  # what is sent on as GET, without its body, can only fail
            raise ConnectionFailed(
                f"the dstack server at {self._url} redirects to another address",
                hint="Name the server itself: dstack project add --name NAME --url URL --token TOKEN",
            )
        if answer.status_code == HTTPStatus.FORBIDDEN:
            raise Unauthorized(
                f"the dstack server at {self._url} refuses the token for project {self._project!r}",
                hint="A token is set with: dstack project add --name NAME --url URL --token TOKEN",
            )
        return answer


def _be_patient(manager: Any) -> None:
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}


def _body(answer: requests.Response) -> bytes:
    """The body as the client may parse it; of an error that is not a sound JSON nothing.

    Raises:
        Malformed: It is too large, compressed, or no sound JSON.
    """
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        answer.close()
        raise Malformed("its answer is compressed, which was not asked for")
    try:
        content = read_all(SimpleNamespace(read1=answer.raw.read))
    finally:
        answer.close()
    try:
        return json.dumps(parse_json(content)).encode() if content else b""
    except Malformed:
        if answer.status_code < HTTPStatus.BAD_REQUEST:
            raise
        return b""
