"""Where a cluster lives. One small protocol; a provider's module is imported when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from cloudrl.errors import InputError
from cloudrl.providers.model import UP_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cloudrl.providers.model import CheckpointRetention, NodePaths, Plan, Status
    from cloudrl.spec import Cluster
    from cloudrl.transport import Connection

PROVIDERS = {
    "local": "cloudrl.providers.local.provider",
    "dstack": "cloudrl.providers.dstack.provider",
}
"""Name -> module that has all functions of `Provider`."""


class Provider(Protocol):
    """The verbs. All of them raise errors of `cloudrl.errors` only."""

    def places(self, cluster: Cluster) -> NodePaths:
        """Where a cluster's nodes are going to keep what jobs read and write, as far as it is known before `up`."""

    def plan(self, cluster: Cluster, *, dashboard_port: int | None = None) -> Plan:
        """What `up` would do, without doing it."""

    def up(
        self,
        plan: Plan,
        *,
        on_status: Callable[[Status], None] | None = None,
        timeout_s: float = UP_TIMEOUT_S,
        detach: bool = True,
    ) -> Connection:
        """Start the cluster and return once it is READY; where something is left when it fails, the error says so.

        Without `detach` it also ends when this program does, however that comes about; dstack refuses that.
        """

    def attach(self, name: str) -> Connection:
        """Connect to a running cluster."""

    def keep_open(self, name: str) -> None:
        """Let the addresses that `attach` returns be of use after this program has ended, too."""

    def status(self, name: str) -> Status:
        """One look at a cluster, running or not."""

    def down(self, name: str) -> bool:
        """End a cluster; False when nothing of it was running. Checkpoints and logs stay."""

    def names(self) -> list[str]:
        """One's own clusters that are running or have left something."""

    def whose(self, name: str) -> str:
        """The user that a cluster belongs to, "" if it is one's own."""

    def folder(self, name: str) -> Path:
        """Where this machine keeps what it knows of a cluster; for a local one also logs and volume."""

    def logs(self, name: str) -> str:
        """How to read a cluster's own logs: a folder, or a command."""

    def keeping(self, name: str) -> CheckpointRetention:
        """What becomes of a cluster's checkpoints when it ends."""

    def what_stays(self, name: str) -> str:
        """What `down` leaves, and where, in half a sentence."""


def provider(name: str) -> Provider:
    """Look a provider up by name.

    Raises:
        InputError: there is none of that name.
    """
    if name not in PROVIDERS:
        from cloudrl.spec import did_you_mean

        raise InputError(
            f"no provider {name!r}{did_you_mean(name, PROVIDERS)}; this release has: {', '.join(PROVIDERS)}",
            hint="For example: --on local",
        )
    return cast("Provider", import_module(PROVIDERS[name]))
