"""The user's dstack server, through dstack's own client. Facts are from dstack 0.22.5, paths from its package on."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from cloudrl.errors import CloudrlError, ConnectionFailed, InputError
from cloudrl.foreign import NOT_AS_EXPECTED
from cloudrl.providers.state_folder import home

T = TypeVar("T")

_IMAGE = (
    "Is the image's name right, and may it be pulled? A private one needs registry_auth: docs/cluster-definition.md\n"
    "Where the server cannot reach the registry, say what it would ask for: --set user=root --set cpu=x86:8.."
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

        from cloudrl.providers.dstack.internals import ClientError, ResourceNotExistsError, ServerClientError

        try:
            return function(*args, **kwargs)
        except CloudrlError:
            raise
        except ResourceNotExistsError as error:
            raise NotThere(f"dstack: {error.msg}") from error
        except ServerClientError as error:
            message = str(error.msg or error)
            # the server has no code for it, and what is chosen by its words is a hint alone
            raise InputError(f"dstack: {message}", hint=_IMAGE if "docker registry" in message else None) from error
        except (ClientError, requests.RequestException) as error:
            raise ConnectionFailed(f"dstack server at {self.url}: {error}") from error
        except NOT_AS_EXPECTED as error:
            raise _other_form(self.url, error) from None


class NotThere(InputError):
    """What was asked for is not there."""


def is_configured() -> bool:
    """Whether the `dstack` command would find a server. Imports nothing of dstack, contacts no server."""
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
    from cloudrl.providers.dstack.internals import ConfigurationError, get_api_client
    from cloudrl.providers.dstack.session import SETUP, mount

    try:
        api, name = get_api_client(project_name=project)
    except ConfigurationError as error:
        raise InputError(f"no dstack server is configured: {error}", hint=SETUP) from error
    if not api.token:  # DSTACK_TOKEN="" counts as set and would be sent
        raise InputError("DSTACK_TOKEN is empty", hint="unset DSTACK_TOKEN")
    if not (api.token.isascii() and api.token.isprintable()):
        raise InputError("DSTACK_TOKEN holds characters that no HTTP header can have", hint="unset DSTACK_TOKEN")
    mount(api._s, api.base_url, name)  # noqa: SLF001
    return Server(url=api.base_url, project=name, api=api)


def _other_form(url: str, error: Exception) -> ConnectionFailed:
    """An answer that dstack's models do not take; pydantic's own message would quote it."""
    from pydantic import ValidationError

    where = ""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_context=False, include_url=False)[0]
        where = f": {'.'.join(map(str, first['loc'])) or error.title} is {first['type']}"
    return ConnectionFailed(
        f"what answers at {url} has another form than a dstack 0.22 server's answers{where}",
        hint="Is it a dstack server, and of that release? dstack server --version",
    )


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
    while (result := poll()) is None and clock() <= deadline:
        sleep(every_s)
    return result


def parse(text: str) -> Any:
    """A rendered YAML as dstack's own configuration, so that what is shown is what is sent."""
    import yaml

    from cloudrl.providers.dstack.internals import parse_apply_configuration

    return parse_apply_configuration(yaml.safe_load(text))
