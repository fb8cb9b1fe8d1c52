"""Where `pip install` of set-up commands puts packages, on a node whose image cannot be written.

Apptainer's images are read-only: pip would fall back to ~/.local, which the nodes of a site share and all later Pythons
read, or to a memory of 64 MB (Apptainer 1.5, pkg/util/apptainerconf/config.go: sessiondir max size). So the job script
names a folder of this node and job in CLOUDRL_PACKAGES.
"""

import os
import sys
import sysconfig
from importlib import metadata
from typing import Dict, List, Mapping, Optional

VARIABLE = "CLOUDRL_PACKAGES"


def with_packages(base: Mapping[str, str]) -> Dict[str, str]:
    """The environment in which pip installs into that folder, and Python and shells find what is there.

    The folder is the user's base, so that pip adds only what the image lacks. A virtual environment has none: there the
    folder is pip's target, and a package comes with all that it needs unless the command says --no-deps.

    Args:
        base: without CLOUDRL_PACKAGES it is returned as it is.
    """
    folder = base.get(VARIABLE)
    if not folder:
        return dict(base)
    path = os.pathsep.join([base.get("PATH", os.defpath), f"{folder}/bin"])
    if _is_virtual():
        imported = os.pathsep.join(filter(None, [folder, base.get("PYTHONPATH")]))
        return {**base, "PATH": path, "PIP_TARGET": folder, "PYTHONPATH": imported}
    return {**base, "PATH": path, "PYTHONUSERBASE": folder, "PIP_USER": "1", "PYTHONNOUSERSITE": ""}


def installed_version(package: str, env: Mapping[str, str]) -> Optional[str]:
    """Release of a package as children with this environment import it; None if it is not installed.

    This process itself may have started before set-up commands installed it.
    """
    found = next(iter(metadata.distributions(name=package, path=[*_added(env), *sys.path])), None)
    return None if found is None else found.version


def _added(env: Mapping[str, str]) -> List[str]:
    folder = env.get(VARIABLE)
    if not folder or _is_virtual():
        return [folder] if folder else []
    return [sysconfig.get_path("purelib", "posix_user", {"userbase": folder})]


def _is_virtual() -> bool:
    return sys.prefix != sys.base_prefix
