"""`python -m dstack_hosts up|down|...`: a lab by hand, for `make dstack-lab` and `make dstack-lab-down`.

It is in the folder that DSTACK_LAB names, or in the folder for temporary files, under a fixed name, and goes on
until `down`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from . import namespaces, requirements
from .guarded import end
from .lab import Lab, LabUnavailable

_TEXT = """
The lab is in {folder}: {hosts} hosts, an idle fleet "lab", and the dstack server at {url} in the lab's own network.
Commands reach it through `{enter}`, for example:

    {enter} dstack fleet
    {enter} dstack apply -f ray-cluster.dstack.yml
    {enter} bash

HOME is {home} in there: its ~/.dstack/config.yml has the server's address and token.
The server's log is {log}. `make dstack-lab-down` ends everything.
"""


def folder() -> Path:
    """Where the lab by hand is: a short path, since sockets of ssh will are in it."""
    return Path(os.environ.get("DSTACK_LAB") or Path(tempfile.gettempdir()) / "dstack-lab")


def up(arguments: argparse.Namespace) -> int:
    """Start hosts, server and fleet, and say how to use them."""
    if folder().exists():
        print(f"there is a lab in {folder()}; end it first: make dstack-lab-down", file=sys.stderr)
        return 2
    lab = Lab(arguments.hosts, folder(), fast=not arguments.stock, guarded=False)
    try:
        lab.start()
    except LabUnavailable as error:
        print(error, file=sys.stderr)
        return 2
    lab.create_fleet()
    enter = _write_command(lab.folder / "in")
    log = lab.server.log
    print(
        _TEXT.format(folder=lab.folder, hosts=arguments.hosts, url=lab.server.url, enter=enter, home=lab.home, log=log)
    )
    return 0


def _write_command(path: Path) -> Path:
    """A short command that runs another one in the lab."""
    tests = shlex.quote(str(Path(__file__).parents[1]))
    lab = shlex.quote(str(folder()))
    path.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={tests} DSTACK_LAB={lab}\n"
        f'exec {shlex.quote(sys.executable)} -m dstack_hosts in "$@"\n'
    )
    path.chmod(0o755)
    return path


def down(_arguments: argparse.Namespace) -> int:
    """End the lab, if there is one."""
    if folder().exists():
        end(folder())
    return 0


def inside(arguments: argparse.Namespace) -> int:
    """Run a command in the lab, here and in this terminal."""
    from .client import client_environment

    if not (folder() / "lab.pid").exists():
        print(f"there is no lab in {folder()}; start one: make dstack-lab", file=sys.stderr)
        return 2
    first = int((folder() / "lab.pid").read_text().split()[1])
    words = [*namespaces.enter(first), *namespaces.in_folder(Path.cwd(), arguments.words)]
    kept = {key: os.environ[key] for key in ("TERM", "COLUMNS", "LINES") if key in os.environ}
    environment = {**client_environment(folder() / "home"), **kept}
    return subprocess.run(words, env=environment, check=False).returncode


def packages(_arguments: argparse.Namespace) -> int:
    """Print the Debian packages that are missing, for the Makefile."""
    print(" ".join(requirements.missing_packages()))
    return 0


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="dstack_hosts")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("up", help="start hosts, server and fleet")
    command.add_argument("--hosts", type=int, default=2)
    command.add_argument("--stock", action="store_true", help="dstack's own polling intervals")
    command.set_defaults(act=up)
    commands.add_parser("down", help="end the lab").set_defaults(act=down)
    commands.add_parser("packages", help="print missing Debian packages").set_defaults(act=packages)
    command = commands.add_parser("in", help="run a command in the lab's network")
    command.add_argument("words", nargs=argparse.REMAINDER)
    command.set_defaults(act=inside)
    arguments = parser.parse_args()
    return int(arguments.act(arguments))


if __name__ == "__main__":
    sys.exit(main())
