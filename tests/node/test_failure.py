"""What errors mean: the failure that one is, its code, and whether the network is to blame or it will come back."""

import errno
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import requests
from huggingface_hub import errors as hub
from patience import SLOWER

from cloudrl.errors import ConnectionFailed, InputError
from cloudrl.node.failure import error_code, is_transient, unforeseen
from cloudrl.node.subcommands import ChildResult
from cloudrl.protocol.failures import FailureKind
from cloudrl.protocol.wire import from_json

REQUEST = httpx.Request("GET", "https://hub/api")


def _of_hub(kind: type[hub.HfHubHTTPError], status: int) -> hub.HfHubHTTPError:
    return kind("no", response=httpx.Response(status, request=REQUEST))


def _of_requests(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError("no", response=response)


def _from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def _while_handling(error: Exception, first: Exception, *, hidden: bool) -> Exception:
    error.__context__, error.__suppress_context__ = first, hidden
    return error


PASSING = [
    ConnectionResetError("reset"),
    TimeoutError("timed out"),
    socket.timeout("timed out"),  # noqa: UP041  another class in Python 3.9
    socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    http.client.IncompleteRead(b""),
    requests.ConnectionError("refused"),
    requests.ReadTimeout("slow"),
    requests.exceptions.ChunkedEncodingError("broke off"),
    httpx.ConnectError("refused"),
    httpx.ReadTimeout("slow"),
    _of_hub(hub.HfHubHTTPError, 503),
    _of_hub(hub.HfHubHTTPError, 429),
    _of_requests(502),
    RuntimeError("Data processing error: Reqwest Error: error sending request for url (https://cas-server)"),
    _from(hub.LocalEntryNotFoundError("not in the cache"), httpx.ConnectTimeout("slow")),
    _from(ConnectionFailed("data set x could not be downloaded"), ConnectionError("Couldn't reach x")),
    _while_handling(OSError("cannot load it"), requests.ConnectionError("refused"), hidden=False),
]
LASTING = [
    FileNotFoundError(errno.ENOENT, "no config.json"),
    OSError(errno.ENOSPC, "No space left on device"),
    ImportError("no datasets"),
    RuntimeError("CUDA error"),
    InputError("there is no data set 'adition'"),
    _of_hub(hub.RepositoryNotFoundError, 404),
    _of_hub(hub.RepositoryNotFoundError, 401),
    _of_hub(hub.GatedRepoError, 403),
    _of_hub(hub.RevisionNotFoundError, 404),
    _of_hub(hub.HfHubHTTPError, 401),
    _of_requests(404),
    hub.OfflineModeIsEnabled("HF_HUB_OFFLINE=1"),
    _from(hub.LocalEntryNotFoundError("not in the cache"), hub.OfflineModeIsEnabled("HF_HUB_OFFLINE=1")),
    _from(ConnectionError("Couldn't reach x"), _of_hub(hub.GatedRepoError, 403)),
    _while_handling(InputError("wrong field"), ConnectionResetError("reset"), hidden=True),
    urllib.error.URLError("unknown url type"),
]


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_what_may_pass(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize("error", LASTING, ids=repr)
def test_what_comes_back(error: Exception) -> None:
    assert not is_transient(error)


def test_errors_that_point_at_each_other() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    assert not is_transient(first)


def test_an_error_that_nobody_has_foreseen() -> None:
    def inner() -> None:
        raise KeyError("two\nlines")

    with pytest.raises(KeyError) as caught:
        inner()
    failure = unforeseen(FailureKind.AGENT, 2, caught.value)
    assert (failure.kind, failure.rank, failure.reason) == ("agent", 2, "KeyError: 'two\\nlines'")
    assert "in inner\n" in failure.tail
    assert unforeseen(FailureKind.AGENT, 0, ValueError()).reason == "ValueError"
    assert unforeseen(FailureKind.AGENT, 0, ValueError("two\nlines")).reason == "ValueError: two lines"
    assert len(unforeseen(FailureKind.AGENT, 0, ValueError("x" * 10**6)).tail) == 16_384


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyError("name"), "KeyError"),
        (OSError(errno.ENOSPC, "No space left", "/data/a"), "OSError ENOSPC"),
        (TimeoutError("after 10.2 s"), "TimeoutError"),
        (_of_requests(503), "HTTPError 503"),
        (RuntimeError("Reqwest: Connection reset by peer, os error 104"), "RuntimeError connection reset"),
        (RuntimeError("operation timed out after 31 s"), "RuntimeError timed out"),
        (
            _from(InputError("owner/name cannot be read"), RuntimeError("error sending request for url")),
            "RuntimeError error sending request",
        ),
        (RuntimeError("the shard 17 is corrupt"), "RuntimeError"),
        (_from(InputError("owner/name cannot be read"), _of_requests(404)), "HTTPError 404"),
        (InputError("there is no such data set"), "InputError"),
    ],
)
def test_the_code_of_an_error_has_nothing_that_changes(error: Exception, code: str) -> None:
    assert error_code(error) == code
    assert unforeseen(FailureKind.AGENT, 0, error).signature == f"agent||{code}"


# -- differential: what huggingface_hub itself raises -------------------------------------------------------------


class _Hub(BaseHTTPRequestHandler):
    """Refuses everything, in the way of the real one (huggingface_hub, utils/_http.py: X-Error-Code)."""

    def do_GET(self) -> None:
        status = int(self.path.split("/")[1])
        self.send_response(status)
        self.send_header("X-Error-Code", {404: "RepoNotFound"}.get(status, "Other"))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def hub_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(10 * SLOWER)


@pytest.mark.parametrize(("place", "transient"), [("404", False), ("503", True), (None, True)])
def test_a_model_that_the_hub_does_not_give(hub_url: str, tmp_path: Path, place: str | None, transient: bool) -> None:
    """None: no process listens there."""
    endpoint = f"{hub_url}/{place}" if place else "http://127.0.0.1:1"
    command = [sys.executable, "-m", "cloudrl.node", "model", "owner/name", "--to", str(tmp_path)]
    done = subprocess.run(
        [*command, "--result", str(tmp_path / "result")],
        env={"PATH": os.environ["PATH"], "HF_HOME": str(tmp_path), "HF_ENDPOINT": endpoint},
        capture_output=True,
        text=True,
        timeout=60,
    )
    result = from_json(ChildResult, json.loads((tmp_path / "result").read_text()))
    assert (done.returncode, result.path, result.transient) == (1, "", transient), done.stderr
    assert "Traceback" not in done.stderr
    assert result.code.endswith(f" {place}") or place is None
