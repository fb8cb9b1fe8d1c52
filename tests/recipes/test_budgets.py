"""The memory that a recipe's comment promises is what the estimate says for the GPU that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cloudrl import recipes
from cloudrl.jobs import SubmitOptions
from cloudrl.sdk.runs import plan_run
from cloudrl.spec.hydra import parse_overrides
from cloudrl.verl.releases import RELEASE

FOLDER = Path(recipes.__file__).parent
LINE = re.compile(r"^# Budget in GiB of each (\S+) \((\d+) there\): (.*)\.$", re.MULTILINE)
WITH_BUDGET = sorted(path.stem for path in FOLDER.glob("*.yml") if "# Budget in GiB" in path.read_text())


def estimated(name: str, card: str) -> tuple[int, dict[str, int]]:
    """GiB of the GPU, and the most that each phase likely needs of it."""
    memory = plan_run(name, SubmitOptions(), {"gpu": f"{card}:8"}, "dstack").submission.memory
    assert memory is not None
    answer = memory.to_json()
    phases: dict[str, float] = {}
    for phase in answer["phases"]:
        if phase["phase"] not in ("host", "disk"):
            phases[phase["phase"]] = max(phases.get(phase["phase"], 0.0), phase["gib"][1])
    return round(answer["gpu_gib"]), {group: round(gib) for group, gib in phases.items()}


@pytest.mark.parametrize("name", WITH_BUDGET)
def test_a_budget_is_the_estimate(name: str) -> None:
    found = LINE.search((FOLDER / f"{name}.yml").read_text())
    assert found is not None
    card, there, text = found.groups()
    said = dict(part.rsplit(" ", 1) for part in text.split(", "))
    gib, phases = estimated(name, card)
    assert (int(there), {group: int(number) for group, number in said.items()}) == (gib, phases)


def test_every_recipe_for_gpus_and_this_release_has_one() -> None:
    """The fork of Search-R1 is verl 0.1, which the estimate does not know."""
    jobs = [recipes.load(name) for name in recipes.names()]
    assert sorted(job.name for job in jobs if job.device == "gpu" and job.verl == RELEASE.verl) == WITH_BUDGET


AS_IN_ITS_SOURCE = "ppo-sglang-7b-offload"
"""The settings of another team, saves included."""


@pytest.mark.parametrize("name", [name for name in WITH_BUDGET if name != AS_IN_ITS_SOURCE])
def test_recipes_for_gpus_save_early_and_keep_few(name: str) -> None:
    """A run that breaks off loses 20 steps at most, and its saves do not fill a disk."""
    values = parse_overrides(recipes.load(name).overrides)
    assert 1 <= int(values["trainer.save_freq"]) <= 20
    roles = ["actor", "critic"] if values["algorithm.adv_estimator"] == "gae" else ["actor"]
    assert all(1 <= int(values[f"trainer.max_{role}_ckpt_to_keep"]) <= 2 for role in roles)
