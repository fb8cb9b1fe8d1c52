"""The plug-in leaves verl as it is, except in the processes of a CPU job. Real verl, in processes of their own."""

import json
import os
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from verl_forks import Script

from cloudrl.verl_cpu.plugin import is_cpu_job
from cloudrl.verl_cpu.tiny_model import make_tiny_model

pytestmark = pytest.mark.verl

PROBES = Path(__file__).parent / "probes"


def start(probe: str, arguments: list[str], **environ: str) -> Script:
    """Start a probe in an environment without a word about platforms or plug-ins but the given ones."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_"))}
    return Script(PROBES / probe, arguments, environ={**kept, "OMP_NUM_THREADS": "1", **environ})


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What verl looks like in four kinds of process, started at the same time."""
    folder = tmp_path_factory.mktemp("worker")
    alone = {"RANK": "0", "WORLD_SIZE": "1", "DIST_INIT_METHOD": (folder / "rendezvous").as_uri()}
    started = {
        "without": start("state.py", ["trainer.device=cpu"], VERL_USE_EXTERNAL_PLUGINS="none"),
        "gpu driver": start("state.py", ["trainer.device=cuda", "trainer.nnodes=2"]),
        "cpu driver": start("state.py", ["trainer.nnodes=2", "trainer.device=cpu"]),
        "cpu worker": start("worker.py", [make_tiny_model(str(folder / "model"))], VERL_PLATFORM="cpu", **alone),
    }
    return {kind: json.loads(script.end()[-1]) for kind, script in started.items()}


def test_installed_entry_point_is_the_plugin() -> None:
    [ours] = [point for point in entry_points(group="verl.plugins") if point.name == "cloudrl_cpu"]
    assert ours.value == "cloudrl.verl_cpu.plugin"


def test_nothing_of_verl_changes_unless_the_job_says_cpu(found: dict[str, dict[str, Any]]) -> None:
    without, gpu = found["without"], found["gpu driver"]
    assert without["cloudrl"] == []
    assert gpu["cloudrl"] == ["cloudrl", "cloudrl.verl_cpu", "cloudrl.verl_cpu.plugin"]
    assert gpu["modules"].keys() == without["modules"].keys()
    for module, attributes in without["modules"].items():
        assert gpu["modules"][module] == attributes, module
    assert gpu["registries"] == without["registries"]
    assert gpu["environ"] == without["environ"]
    assert len(without["modules"]) > 100  # the comparison is not an empty one


@pytest.mark.parametrize("kind", ["cpu driver", "cpu worker"])
def test_a_cpu_job_gets_the_platform_and_the_rollout(found: dict[str, dict[str, Any]], kind: str) -> None:
    before, now = found["without"]["registries"], found[kind]["registries"]
    assert now["platform in use"] == "CpuPlatform"
    assert set(now["platforms"]) - set(before["platforms"]) == {"cpu"}
    assert set(now["replicas"]) - set(before["replicas"]) == {"hf"}
    assert set(now["adapters"]) - set(before["adapters"]) == {"hf/async"}
    for registry in ("platforms", "replicas", "adapters", "engines"):  # nothing of verl's own is replaced
        assert {key: now[registry][key] for key in before[registry]} == before[registry]
    assert "cloudrl.verl_cpu.rollout.HfReplica" in now["replica class"]
    assert "cloudrl.verl_cpu.rollout.HfWorkerAdapter" in now["adapter class"]


def test_a_cpu_driver_hands_the_platform_on(found: dict[str, dict[str, Any]]) -> None:
    assert found["cpu driver"]["actor environment"]["VERL_PLATFORM"] == "cpu"
    assert "VERL_PLATFORM" not in found["gpu driver"]["actor environment"]


def test_a_cpu_worker_has_group_and_engines(found: dict[str, dict[str, Any]]) -> None:
    """verl's own calls in the order of a training worker, in a group of one."""
    worker = found["cpu worker"]
    assert worker["backend"] == "gloo"
    assert worker["engines"] == {
        "actor": "CpuLanguageModelEngine",
        "reference": "CpuLanguageModelEngine",
        "critic": "CpuValueModelEngine",
    }
    assert worker["pinned"] == []
    assert worker["reference is forward only"]
    assert worker["critic outputs"] == 1
    assert worker["critic attention"] == "sdpa"
    assert worker["loader is verl's again"]


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        ([], {}, False),
        (["trainer.device=cpu"], {}, True),
        (["a=b", "trainer.device='cpu'"], {}, True),
        (["++trainer.device=cpu"], {}, True),
        (["trainer.device=cpu", "trainer.device=cuda"], {}, False),
        (["trainer.device=cuda", "trainer.device=cpu"], {}, True),
        (["trainer.device=cuda"], {}, False),
        (["critic.trainer.device=cpu"], {}, False),
        (["trainer.device"], {}, False),
        ([], {"VERL_PLATFORM": "cpu"}, True),
        ([], {"VERL_PLATFORM": " CPU "}, True),
        ([], {"VERL_PLATFORM": ""}, False),
        (["trainer.device=cpu"], {"VERL_PLATFORM": "nvidia"}, False),
        (["trainer.device=cuda"], {"VERL_PLATFORM": "cpu"}, True),
    ],
)
def test_what_makes_a_cpu_job(arguments: list[str], environ: dict[str, str], expected: bool) -> None:
    assert is_cpu_job(arguments, environ) is expected
