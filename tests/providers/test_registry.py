"""How providers are found: ours, and those of other packages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import cloudrl
from cloudrl import plugins
from cloudrl.errors import CloudrlError
from cloudrl.providers.registry import provider

FOLDERS = Path(cloudrl.__file__).parent / "providers"
TOY = """
from cloudrl.providers.model import Plan, Provider

class ToyPlan(Plan):
    place = "on toys"
    honoured = ("name", "toy")

    def __init__(self, cluster):
        object.__setattr__(self, "cluster", cluster)

    def render(self):
        return f"{self.cluster.name} with {self.cluster.toy['bricks']} bricks"

class ToyProvider(Provider):
    name, default_cluster, nodes_are_here, has_gpus = "toy", "toys", False, False
    state_pattern = "toy/*/"

    def is_configured(self):
        return True

    def plan(self, cluster):
        return ToyPlan(cluster)

    def list(self, name=None):
        return ()
"""


def test_ours_are_found_in_a_checkout_as_in_an_installation() -> None:
    text = (FOLDERS.parents[1] / "pyproject.toml").read_text()
    [declared] = re.findall(
        r'^\[project\.entry-points\."cloudrl\.providers"\]\n(.*?)\n\n', text, re.MULTILINE | re.DOTALL
    )
    assert dict(re.findall(r'^(\w+) = "(.*)"$', declared, re.MULTILINE)) == plugins.own_providers()
    assert [provider(name).name for name in plugins.own_providers()] == [*plugins.own_providers()]
    assert next(iter(plugins.own_providers())) == plugins.DEFAULT


def test_no_provider_knows_another() -> None:
    shared = {"model", "machines", "planned", "state_folder"}
    for name in plugins.own_providers():
        text = "".join(file.read_text() for file in (FOLDERS / name).rglob("*.py"))
        assert set(re.findall(r"cloudrl\.providers\.(\w+)", text)) <= {name, *shared}


@pytest.mark.io
def test_a_package_adds_a_provider_by_an_entry_point(tmp_path: Path) -> None:
    (tmp_path / "toy_provider.py").write_text(TOY)
    metadata = tmp_path / "toy-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[cloudrl.providers]\ntoy = toy_provider:ToyProvider\n")
    environment = {"PYTHONPATH": f"{tmp_path}:{FOLDERS.parents[1]}", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    words = ("up", "lab", "--on", "toy", "--dry-run", "--set", "toy.bricks=7", "--set", "dstack.retry=false")
    command = (sys.executable, "-c", "from cloudrl.cli.main import main; main()", *words)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == (
        "lab with 7 bricks\n", "note: without effect on toys: dstack\n", 0,
    )  # fmt: skip


def test_a_provider_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugins.providers(), "toy", "no_such_module:ToyProvider")
    with pytest.raises(CloudrlError, match="provider toy cannot be imported: No module named 'no_such_module'"):
        provider("toy")
