"""The user's dstack server, through dstack's own client.

The only module, with its neighbours in this folder, that touches what dstack does not document; facts are from
dstack 0.22.5, paths relative to `dstack/_internal`. pyproject.toml pins the minor version.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from cloudrl.errors import CloudrlError, ConnectionFailed, InputError, Unauthorized
from cloudrl.providers.model import home

T = TypeVar("T")

_ATTEMPTS = 3
TIMEOUT_S = 60.0
"""For each request: a plan asks every backend for its offers."""
_SETUP = (
    "With a server of your own: dstack server\n"
    "With one elsewhere: dstack project add --name main --url https://... --token ..."
)

_IMAGE = (
    "Is the image's name right, and may it be pulled? A private one needs registry_auth: docs/clusters.md\n"
    "Where the server cannot reach the registry: --set user=root --set cpu=x86:8.. say what it would ask for"
)


@dataclass(frozen=True)
class Server:
    """A dstack server and one project on it.

    Attributes:
        url: the server's address.
        project: the project that fleets, volumes and runs belong to.
        api: dstack's low-level client (`dstack.api.server.APIClient`).
    """

    url: str
    project: str
    api: Any = field(repr=False)

    def folder(self, name: str) -> Path:
        """What this machine keeps of a cluster: what `up` sent, the ssh to it, and in `tunnel/` the one kept open."""
        return home() / "dstack" / self.project / name

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function of `api`, with dstack's errors as ours.

        Raises:
            InputError: the server refuses what was asked for, in its own words.
            Unauthorized: it refuses the token.
            ConnectionFailed: it does not answer, or not as a dstack server does.
        """
        import requests
        from dstack._internal.core import errors

        try:
            return function(*args, **kwargs)
        except errors.ResourceNotExistsError as error:
            raise NotThere(f"dstack: {error.msg}") from error
        except errors.ServerClientError as error:
            said = str(error.msg or error)
            # the server has no code for it, and what is chosen by its words is a hint alone
            raise InputError(f"dstack: {said}", hint=_IMAGE if "docker registry" in said else None) from error
        except (errors.ClientError, requests.RequestException) as error:
            raise ConnectionFailed(f"dstack server at {self.url}: {error}") from error


class NotThere(InputError):
    """What was asked for is not there."""


def is_configured() -> bool:
    """Whether the `dstack` command would find a server. Imports nothing of dstack, asks nobody."""
    return "DSTACK_SERVER_URL" in os.environ or Path("~/.dstack/config.yml").expanduser().is_file()


def connect(project: str | None = None) -> Server:
    """The server and project that the `dstack` command would use.

    Those are DSTACK_SERVER_URL, DSTACK_TOKEN and DSTACK_PROJECT, or the default of `~/.dstack/config.yml`
    (core/services/api_client.py). Nothing is asked of the server yet.

    Args:
        project: another project than the default.

    Raises:
        InputError: no server is configured, or no such project.
        CloudrlError: another version of dstack is installed than cloudrl was made for.
    """
    try:
        from dstack._internal.core.errors import ConfigurationError
        from dstack._internal.core.services.api_client import get_api_client
    except ImportError as error:
        from importlib.metadata import version

        raise CloudrlError(
            f"cloudrl is made for dstack 0.22, and {version('dstack')} is installed: {error}",
            hint="pip install 'dstack>=0.22,<0.23'",
        ) from error
    try:
        api, name = get_api_client(project_name=project)
    except ConfigurationError as error:
        raise InputError(f"no dstack server is configured: {error}", hint=_SETUP) from error
    if not api.token:  # DSTACK_TOKEN="" counts as set and would be sent
        raise InputError("DSTACK_TOKEN is empty", hint="unset DSTACK_TOKEN")
    _mount_adapter(api, api.base_url, name)
    return Server(url=api.base_url, project=name, api=api)


def _mount_adapter(api: Any, url: str, project: str) -> None:
    """Give each request a timeout, which dstack's client does not, and take what it has only words for as it happens.

    The client asks three times before it says that nobody answers (api/server/__init__.py: _request, _MAX_RETRIES).
    """
    import requests
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        _refused = 0

        def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:  # type: ignore[override]
            try:
                answer = super().send(request, **{**options, "timeout": options.get("timeout") or TIMEOUT_S})
            except requests.ConnectionError as error:
                self._refused += 1
                if self._refused < _ATTEMPTS:
                    raise
                self._refused = 0
                raise ConnectionFailed(f"no dstack server answers at {url}", hint=f"Is it running? {_SETUP}") from error
            self._refused = 0
            if answer.status_code == HTTPStatus.FORBIDDEN:
                raise Unauthorized(
                    f"the dstack server at {url} refuses the token for project {project!r}",
                    hint="A token is set with: dstack project add --name NAME --url URL --token TOKEN",
                )
            return answer

    for scheme in ("http://", "https://"):
        api._s.mount(scheme, Adapter())  # noqa: SLF001


def wait_for(
    poll: Callable[[], T | None],
    *,
    timeout_s: float,
    every_s: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T | None:
    """What `poll` finds, called again as long as that is None; None after `timeout_s`."""
    deadline = clock() + timeout_s
    while (found := poll()) is None and clock() <= deadline:
        sleep(every_s)
    return found


def parse(text: str) -> Any:
    """A rendered YAML as dstack's own configuration, so that what is shown is what is sent."""
    import yaml
    from dstack._internal.core.models.configurations import parse_apply_configuration

    return parse_apply_configuration(yaml.safe_load(text))
