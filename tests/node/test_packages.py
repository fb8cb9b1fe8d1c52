"""Where pip of set-up commands puts packages in an image that cannot be written: pip itself installs one."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cloudrl.node.packages import installed_version, with_packages

_ASK = "import small; print(small.RELEASE)"
BASE = Path(sys.base_prefix, "bin/python3")
"""The Python of the tests is in a virtual environment, and this one in none."""


def wheel(folder: Path) -> Path:
    """A package of one module."""
    path = folder / "small-1.5-py3-none-any.whl"
    metadata = "Metadata-Version: 2.1\nName: small\nVersion: 1.5\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("small.py", "RELEASE = 1.5\n")
        archive.writestr("small-1.5.dist-info/METADATA", metadata)
        archive.writestr("small-1.5.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("small-1.5.dist-info/RECORD", "")
    return path


@pytest.mark.parametrize("python", [sys.executable, str(BASE)], ids=["virtual", "plain"])
def test_what_pip_installs_is_found_and_leaves_the_home_alone(python: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    keeps = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    job = {**keeps, "PATH": os.environ["PATH"], "HOME": str(home), "CLOUDRL_PACKAGES": str(tmp_path / "packages")}
    source = "from cloudrl.node.packages import *; import json, os; print(json.dumps(with_packages(os.environ)))"
    here = {"PYTHONPATH": str(Path(__file__).parents[2])}
    said = subprocess.run([python, "-c", source], env={**job, **here}, capture_output=True, check=True).stdout
    env = json.loads(said)
    install = [python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-cache-dir", str(wheel(tmp_path))]
    subprocess.run(install, env=env, check=True, capture_output=True)
    assert subprocess.run([python, "-c", _ASK], env=env, capture_output=True, check=True).stdout == b"1.5\n"
    assert not (home / ".local").exists()
    if python == sys.executable:
        assert installed_version("small", env) == "1.5"
        assert installed_version("small", {}) is None


def test_without_such_a_folder_nothing_changes() -> None:
    assert with_packages({"PATH": "/bin"}) == {"PATH": "/bin"}
