"""A Slurm cluster on this machine: a login node with the controller, compute nodes, and a user's own machine.

All of it lives in namespaces without names, in control groups of its own and in one folder. A guardian takes everything
away when the process that started the cluster ends, however it ends.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from dstack_hosts import cgroups
from dstack_hosts.guarded import Guarded
from dstack_hosts.runs import until
from patience import SLOWER

from . import slurm_conf
from .gpus import Gpus
from .jobs import Jobs
from .layout import NETWORK, Site
from .nodes import Node
from .requirements import why_not

_UP_S = 60.0


class SlurmUnavailable(Exception):
    """This machine cannot run a Slurm cluster; the message says why."""


class SlurmNodes:
    """A Slurm cluster, from `start` or `with` to `stop`, or to the end of this process.

    Args:
        count: compute nodes.
        folder: where everything is, which must not exist or be empty, and is removed at the end. A short path. None
            for a new one in the folder for temporary files.
        gpus: of each compute node.
        users: unprivileged users of all nodes. The public key of `key` opens the login node to them and to root.
        settings: of slurm.conf, beside those in `slurm_conf.py`.
        containers: whether docker and podman run on compute nodes, with the image `containers.IMAGE`.
        accounting: whether `sacct` has a database, as on most sites; the start then takes some seconds more.
        node_ssh: whether users may log in to compute nodes, which many sites refuse.
        track: "cgroup" or "linuxproc", how Slurm finds the processes of a job; None for the first where there are
            control groups of version 1.
        guarded: False for a cluster that goes on when this process ends, until `dstack_hosts.guarded.end(folder)`.

    Raises:
        SlurmUnavailable: on `start`, where the machine cannot do it.
    """

    def __init__(
        self,
        count: int = 2,
        folder: Path | None = None,
        *,
        gpus: Gpus | None = None,
        users: Sequence[str] = ("alice", "bob"),
        settings: Mapping[str, str] | None = None,
        containers: bool = False,
        accounting: bool = False,
        node_ssh: bool = False,
        track: str | None = None,
        guarded: bool = True,
    ) -> None:
        self._folder = folder
        tracks_cgroups = (track or ("cgroup" if "freezer" in cgroups.hierarchies() else "linuxproc")) == "cgroup"
        self._fields: dict[str, Any] = {
            "names": [f"node{index}" for index in range(count)],
            "users": {name: 3001 + index for index, name in enumerate(users)},
            "gpus": gpus or Gpus(),
            "settings": dict(settings or {}),
            "cgroups": tracks_cgroups,
            "containers": containers,
            "accounting": accounting,
            "node_ssh": node_ssh,
        }
        self._guarded = guarded
        self._namespaces: Guarded | None = None
        self._all: list[Node] = []

    def __enter__(self) -> SlurmNodes:
        self.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and wait until all nodes are idle."""
        reason = why_not()
        if reason:
            raise SlurmUnavailable(reason)
        self.folder = self._folder or Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.site = Site(self.folder, **self._fields)
        try:
            self._namespaces = Guarded(self.folder, f"{NETWORK}.1/24", guarded=self._guarded)
            self.site.prepare()
            self._make_nodes(self.site, self._namespaces.first_process)
            for node in self._all:
                node.power_on()
            for node in self._all:
                node.wait_until_up()
            self.wait_idle()
            self.login.path(slurm_conf.JOB_LOG).chmod(0o666)  # `sacct -c` opens it for writing, whoever asks
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything and wait until nothing of it is left. A second call does nothing."""
        guarded, self._namespaces = self._namespaces, None
        if guarded is not None:
            guarded.stop()
            for node in self._all:
                node.forget()

    @property
    def shared(self) -> Path:
        """/shared of all nodes."""
        return self.site.shared

    @property
    def home(self) -> Path:
        """/home of all nodes."""
        return self.site.home

    @property
    def jobs(self) -> Jobs:
        """The jobs of its controller."""
        return Jobs(self.login, self.nodes)

    def wait_idle(self, timeout_s: float = _UP_S) -> None:
        """Wait until Slurm says that all nodes are idle. Raises TimeoutError with what it says instead."""
        self.wait_states({node.name: "idle" for node in self.nodes}, timeout_s)

    def wait_states(self, wanted: Mapping[str, str], timeout_s: float = _UP_S) -> None:
        """Wait until Slurm gives nodes these states. Raises TimeoutError with what it says instead."""

        def told() -> str:
            consoles = [node.console.read_text(errors="replace")[-1500:] for node in (self.login, *self.nodes)]
            return f"nodes are {self.states()}, not {dict(wanted)}, after {timeout_s:.0f} s\n" + "".join(consoles)

        until(lambda: wanted.items() <= self.states().items(), timeout_s, told)

    def states(self) -> dict[str, str]:
        """What Slurm says of each node, such as `idle`, `mixed`, `down*`; nothing while it does not answer."""
        try:
            listed = self.login.run("sinfo", "-h", "-N", "-o", "%N %T", timeout_s=10)
        except (ChildProcessError, subprocess.TimeoutExpired):
            return {}
        return dict(line.split(maxsplit=1) for line in listed.stdout.splitlines())

    def drain(self, node: Node, reason: str = "test") -> None:
        """Let a node take no further job. `restore` ends it."""
        done = self.login.run("scontrol", "update", f"NodeName={node.name}", "State=DRAIN", f"Reason={reason}")
        assert done.returncode == 0, done.stderr

    def restore(self) -> None:
        """End all jobs and have all nodes idle, whatever a test has done to them."""
        self.jobs.cancel_all()
        for node in self.nodes:
            if not node.is_up:
                node.power_on()
                node.wait_until_up()
            node.restore()
        self.login.run("scontrol", "update", f"NodeName={','.join(self.site.names)}", "State=RESUME")
        self.wait_idle()

    def remains(self, timeout_s: float = 5.0) -> list[str]:
        """What ended jobs have left on compute nodes: processes, control groups, containers, files.

        Args:
            timeout_s: how long what is about to end may take.
        """
        deadline = time.monotonic() + SLOWER * timeout_s
        while (found := [line for node in self.nodes for line in node.remains()]) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _make_nodes(self, site: Site, first_process: int) -> None:
        configs = [site.login(), site.laptop(), *(site.compute(name) for name in site.names)]
        self._all = [
            Node(
                first_process,
                cast("Any", each),
                self.folder / "nodes" / each.name,
                self.folder / "disks" / each.name,
                index,
            )
            for index, each in enumerate(configs)
        ]
        self.login, self.laptop, *self.nodes = self._all
