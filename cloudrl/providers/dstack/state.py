"""What this machine keeps of each dstack cluster: the task that was sent, the way there, the tunnel in the background.

~/.cloudrl/dstack/PROJECT/NAME/
    NAME.dstack.yml, cloudrl-node.pyz    what `up` has sent
    ssh_config, ssh.log                  the tunnel of the last command
    tunnel/                              the tunnel that `up` and `attach` keep open: tunnel.json, lock, log
"""

from __future__ import annotations

import os
from pathlib import Path


def root() -> Path:
    """`$CLOUDRL_HOME/dstack`, by default below `~/.cloudrl`."""
    return Path(os.environ.get("CLOUDRL_HOME") or "~/.cloudrl").expanduser().absolute() / "dstack"


def folder(project: str, name: str) -> Path:
    """The folder of one cluster."""
    return root() / project / name
