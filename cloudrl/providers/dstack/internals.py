"""Every name of dstack's that its documentation does not promise: this file alone says in which module each one is.

`from cloudrl.providers.dstack.internals import FleetSpec` imports dstack's module then, and no other. Facts are from
dstack 0.22.5; pyproject.toml pins the minor version.
"""

from importlib import import_module
from importlib.metadata import version
from typing import Any

from cloudrl.errors import CloudrlError

_MODULES = {
    "core.consts": ("DSTACK_RUNNER_SSH_PORT",),
    "core.errors": ("ClientError", "ConfigurationError", "ResourceNotExistsError", "ServerClientError"),
    "core.models.configurations": ("TaskConfiguration", "parse_apply_configuration"),
    "core.models.fleets": ("FleetConfiguration", "FleetSpec"),
    "core.models.instances": ("SSHKey",),
    "core.models.profiles": ("DEFAULT_FLEET_TERMINATION_IDLE_TIME", "Profile"),
    "core.models.volumes": ("KubernetesVolumeConfiguration",),
    "core.services.api_client": ("get_api_client",),
    "core.services.configs": ("ConfigManager",),
    "core.services.ssh.attach": ("SSHAttach", "SSHProxyAttach"),
    "core.services.ssh.key_manager": ("UserSSHKeyManager",),
    "core.services.ssh.ports": ("PortsLock",),
    "server.schemas.logs": ("PollLogsRequest",),
    "utils.ssh": ("resolve_ssh_key",),
}
"""Module below `dstack._internal` -> what is used of it."""
NAMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name of dstack's.

    Raises:
        CloudrlError: another version of dstack is installed than cloudrl was made for.
    """
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"dstack._internal.{NAMES[name]}"), name)
    except (ImportError, AttributeError) as error:
        raise CloudrlError(
            f"cloudrl is made for dstack 0.22, and {version('dstack')} is installed: {error}",
            hint="pip install 'dstack>=0.22,<0.23'",
        ) from error
