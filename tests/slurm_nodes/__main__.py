"""`python -m slurm_nodes up|down|in|packages`: a cluster by hand, for `make slurm-lab` and `make slurm-lab-down`.

It is in the folder that SLURM_LAB names, or in /tmp/slurm-lab, and goes on until `down`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from dstack_hosts import namespaces
from dstack_hosts.guarded import end

from . import requirements
from .cluster import SlurmNodes, SlurmUnavailable
from .gpus import Gpus
from .nodes import login_environment, login_words

_TEXT = """
{count} nodes are idle. A command runs on the login node, on `laptop`, or on a node, as a user who is there:

    {enter} login sinfo
    {enter} --user alice login sbatch --nodes=2 --wrap "srun hostname"
    {enter} node0 bash

/shared and /home of the nodes are {folder}/shared and {folder}/home. `make slurm-lab-down` ends everything.
"""


def folder() -> Path:
    """Where the cluster by hand is."""
    return Path(os.environ.get("SLURM_LAB", "/tmp/slurm-lab"))


def up(arguments: argparse.Namespace) -> int:
    """Start the cluster and say how to use it."""
    if folder().exists():
        print(f"there is a cluster in {folder()}; end it first: make slurm-lab-down", file=sys.stderr)
        return 2
    gpus = Gpus(vendor=arguments.vendor, kind="mi300x" if arguments.vendor == "amd" else "h100")
    cluster = SlurmNodes(arguments.nodes, folder(), gpus=gpus, containers=arguments.containers, guarded=False)
    try:
        cluster.start()
    except SlurmUnavailable as error:
        print(error, file=sys.stderr)
        return 2
    for node in (cluster.login, cluster.laptop, *cluster.nodes):
        (folder() / f"{node.name}.pid").write_text(str(node.pid))
    enter = f"PYTHONPATH={Path(__file__).parents[1]} {sys.executable} -m slurm_nodes in"
    print(_TEXT.format(count=arguments.nodes, enter=enter, folder=folder()))
    return 0


def down(_arguments: argparse.Namespace) -> int:
    """End the cluster, if there is one."""
    if folder().exists():
        end(folder())
    return 0


def inside(arguments: argparse.Namespace) -> int:
    """Run a command on a node, in this terminal."""
    file = folder() / f"{arguments.node}.pid"
    if not file.exists():
        print(f"there is no {arguments.node} in {folder()}; start a cluster: make slurm-lab", file=sys.stderr)
        return 2
    words = login_words(arguments.words, arguments.user)
    environment = {**login_environment(arguments.user), "TERM": os.environ.get("TERM", "dumb")}
    return subprocess.run([*namespaces.enter(int(file.read_text())), *words], env=environment, check=False).returncode


def packages(_arguments: argparse.Namespace) -> int:
    """Print the Debian packages that are missing, those of the dstack lab too, for the Makefile."""
    print(" ".join(requirements.missing_packages()))
    return 0


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="slurm_nodes")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("up", help="start a cluster")
    command.add_argument("--nodes", type=int, default=2)
    command.add_argument("--vendor", choices=("nvidia", "amd"), default="nvidia")
    command.add_argument("--containers", action="store_true", help="with docker and podman")
    command.set_defaults(act=up)
    commands.add_parser("down", help="end the cluster").set_defaults(act=down)
    commands.add_parser("packages", help="print missing Debian packages").set_defaults(act=packages)
    command = commands.add_parser("in", help="run a command on a node")
    command.add_argument("--user", default="root")
    command.add_argument("node")
    command.add_argument("words", nargs=argparse.REMAINDER)
    command.set_defaults(act=inside)
    arguments = parser.parse_args()
    return int(arguments.act(arguments))


if __name__ == "__main__":
    sys.exit(main())
