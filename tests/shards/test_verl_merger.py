"""Ours against verl's own merger, over checkpoints that verl's own manager wrote under real gloo."""

import json
import os
import shutil
import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from shard_files import edit, merge, merge_role, opened, read_safetensors, role_folder, shard_path
from small_step import as_sft
from verl_forks import Script
from verl_saves import CASES, LORA, STEPS

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.shards.architectures import COVERED
from cloudrl.shards.validate import verify
from cloudrl.shards.way_out import VERL_MERGES

pytestmark = pytest.mark.verl

QUICK = {
    "fsdp1", "fsdp1-replicas", "fsdp1-one-rank", "fsdp1-groups-of-one", "fsdp1-qwen3-moe", "fsdp2-three-ranks-tied",
    "fsdp2-replicas", "fsdp2-bf16", "fsdp2-critic", "fsdp2-one-rank", "fsdp2-gemma3",
    "fsdp1-lora", "fsdp1-lora-one-rank", "fsdp2-lora-moe", "fsdp2-lora-only",
}  # fmt: skip
"""One of each kind."""
ASKED = [name for name in CASES | LORA if name in QUICK or os.environ.get("CLOUDRL_SLOW") == "1"]


@pytest.fixture(scope="module")
def saves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each case: a step as verl saved it, and `merged` as verl merged it."""
    folder = tmp_path_factory.mktemp("saves")
    script = Path(__file__).with_name("verl_saves.py")
    Script(script, [folder, *ASKED], environ=os.environ | {"HF_HUB_OFFLINE": "1"}).end()
    return folder


@pytest.mark.parametrize("name", [name for name in ASKED if name in CASES])
def test_the_same_model_bit_for_bit_and_the_same_files_beside_it(saves: Path, name: str, tmp_path: Path) -> None:
    found = opened(role_folder(saves / name))
    report = verify(found)
    assert report.findings == ()
    assert (report.step, report.step_source) == (STEPS, "scheduler")
    assert report.shards == CASES[name].world_size // CASES[name].replicas
    ours, theirs = tmp_path / "ours", saves / name / "merged"
    assert merge_role(role_folder(saves / name), ours).warnings == ()
    model = read_safetensors(ours)
    assert model == read_safetensors(theirs)
    assert all(entry[0] == "BF16" for entry in model.values())
    expected = {path.name for path in theirs.iterdir()}
    if CASES[name].critic:  # it generates nothing
        expected -= {"generation_config.json"}
    assert expected <= {path.name for path in ours.iterdir()}
    config, other = (json.loads((folder / "config.json").read_text()) for folder in (ours, theirs))
    if CASES[name].critic:  # verl's says Qwen2ForCausalLM, which it is not
        other |= {"architectures": ["Qwen2ForTokenClassification"], "dtype": "bfloat16"}
    for each in (config, other):  # verl's names the type in the parts, too, as it loads the model in it
        for part in ("text_config", "vision_config"):
            each.get(part, {}).pop("dtype", None)
    assert config == other
    for name_ in ("tokenizer.json", "chat_template.jinja"):
        assert (ours / name_).read_bytes() == (theirs / name_).read_bytes()


@pytest.mark.parametrize("name", ["fsdp1-one-rank", "fsdp2-one-rank", "fsdp1-groups-of-one"])
def test_the_same_in_the_layout_of_verls_sft_trainer(saves: Path, name: str, tmp_path: Path) -> None:
    shutil.copytree(saves / name / "global_step_1", tmp_path / "global_step_1")
    as_sft(tmp_path / "global_step_1")
    found = Checkpoints(LocalSource(tmp_path)).latest()
    assert found.verify().ok
    found.merge(tmp_path / "ours")
    assert read_safetensors(tmp_path / "ours") == read_safetensors(saves / name / "merged")


@pytest.mark.parametrize("name", [name for name in ASKED if name in LORA])
def test_lora_as_peft_has_it(saves: Path, name: str, tmp_path: Path) -> None:
    """Experts are summed in another order: `test_peft.py` looks at them."""
    role = role_folder(saves / name)
    merge_role(role, tmp_path / "adapter", lora="adapter")
    assert read_safetensors(tmp_path / "adapter") == read_safetensors(saves / name / "adapter")
    if not LORA[name].lora_only:
        merge_role(role, tmp_path / "ours", dtype="fp32")
        ours, theirs = (read_safetensors(folder) for folder in (tmp_path / "ours", saves / name / "merged"))
        assert ours.keys() == theirs.keys()
        assert [each for each in ours if ours[each] != theirs[each] and ".experts." not in each] == []


@pytest.mark.parametrize("name", ["fsdp1-replicas", "fsdp2-replicas"])
@pytest.mark.parametrize("kept", [(0, 1), (2, 3), (1, 2), (0, 3)])
def test_any_complete_replica_will_do(saves: Path, name: str, kept: tuple[int, int], tmp_path: Path) -> None:
    found = opened(role_folder(saves / name))
    merge(replace(found, shards={rank: found.shards[rank] for rank in kept}), tmp_path / "ours")
    assert read_safetensors(tmp_path / "ours") == read_safetensors(saves / name / "merged")


@pytest.mark.parametrize("name", ["fsdp1", "fsdp2-critic"])
def test_an_optimizer_that_is_a_step_ahead_is_found(saves: Path, name: str, tmp_path: Path) -> None:
    actor = Path(shutil.copytree(role_folder(saves / name).parent, role_folder(tmp_path).parent)) / "actor"
    shard_path(actor, 0, 2, "extra_state").unlink()

    def change(content: dict[str, bytes]) -> None:
        assert content["data/0"] == struct.pack("<f", STEPS)  # Adam's `step` of the first parameter
        content["data/0"] = struct.pack("<f", STEPS + 1)

    edit(shard_path(actor, 1, 2, "optim"), change)
    (actor.parent / "data.pt").touch()  # a save writes it last, and these may be older than a minute
    found = opened(actor)
    report = verify(found)
    assert [finding.message for finding in report.findings] == [
        f"rank 1 is from another step: update (by its optimizer) {STEPS + 1}, and rank 0 from {STEPS}"
    ]


def test_transformers_loads_the_critic(saves: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForTokenClassification

    merge_role(role_folder(saves / "fsdp2-critic"), tmp_path / "ours")
    model = AutoModelForTokenClassification.from_pretrained(tmp_path / "ours")
    kept = read_safetensors(tmp_path / "ours")["score.weight"][2]
    assert model.score.weight.view(torch.uint8).numpy().tobytes() == kept


def test_others_that_are_sent_to_it_load(tmp_path: Path) -> None:
    """A hint never leads to random numbers."""
    assert not VERL_MERGES & COVERED
    script = Path(__file__).with_name("verl_others.py")
    environ = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    assert Script(script, [tmp_path, *sorted(VERL_MERGES)], environ=environ).end() == []
