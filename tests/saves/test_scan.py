"""What a node says of its checkpoints."""

import json
import os
from pathlib import Path

import pytest

from cloudrl.saves.scan import folder_identity, scan, scan_working_dirs


def save(root: Path, run: str, step: int, *, rank: int = 0, world_size: int = 2, role: str = "actor") -> Path:
    folder = root / run / f"global_step_{step}" / role
    (folder / "huggingface").mkdir(parents=True, exist_ok=True)
    for kind in ("model", "optim", "extra_state"):
        (folder / f"{kind}_world_size_{world_size}_rank_{rank}.pt").write_bytes(b"x" * 10)
    return folder


def test_nothing(tmp_path: Path) -> None:
    assert scan(tmp_path) == []
    assert scan(tmp_path / "missing") == []


def test_runs_steps_roles_and_files(tmp_path: Path) -> None:
    actor = save(tmp_path, "run", 10)
    save(tmp_path, "run", 9)
    save(tmp_path, "run", 10, role="critic")
    save(tmp_path, "project/deep", 1)
    (actor / "huggingface" / "config.json").write_text("{}")
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text("10\n")
    (tmp_path / "run" / "global_step_10" / "data.pt").write_bytes(b"d")

    deep, run = scan(tmp_path)

    assert (deep["run"], run["run"]) == ("project/deep", "run")
    assert deep["tracker"] is None
    assert run["tracker"]["text"] == "10"
    nine, ten = run["steps"]
    assert (nine["step"], ten["step"]) == (9, 10)
    assert [file["path"] for file in ten["files"]] == ["data.pt"]
    assert [(role["role"], role["folder"]) for role in ten["roles"]] == [("actor", "actor"), ("critic", "critic")]
    files = {file["path"]: file["size_bytes"] for file in ten["roles"][0]["files"]}
    assert files["huggingface/config.json"] == 2
    assert files["model_world_size_2_rank_0.pt"] == 10


def test_the_folder_may_be_the_run_itself(tmp_path: Path) -> None:
    save(tmp_path, "run", 3)
    assert [run["run"] for run in scan(tmp_path / "run")] == ["."]


def test_a_step_without_roles(tmp_path: Path) -> None:
    """Of verl's SFT trainer, with FSDP and with Megatron: each node has some of its files."""
    files = {
        1: ["model_world_size_2_rank_1.pt"],
        2: ["huggingface/config.json", "fsdp_config.json"],
        3: ["ckpt_contents.json", "model/huggingface/model.safetensors", "optimizer/dist_ckpt/__0_0.distcp"],
        4: ["extra/dist_ckpt/__1_0.distcp", "dist_ckpt/.metadata"],
    }
    for step, names in files.items():
        for name in (*names, "data_0.pt"):
            path = tmp_path / "run" / f"global_step_{step}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
    (run,) = scan(tmp_path)
    for step in run["steps"]:
        (role,) = step["roles"]
        assert (role["role"], role["folder"]) == ("actor", "")
        assert sorted(file["path"] for file in role["files"]) == sorted(files[step["step"]])
        assert [file["path"] for file in step["files"]] == ["data_0.pt"]


def test_what_is_no_step_is_left_out(tmp_path: Path) -> None:
    for name in (
        "global_step_",
        "global_step_x",
        "global_step_007",
        "xglobal_step_1",
        ".cloudrl-pruned-global_step_1-ab",
    ):
        (tmp_path / "run" / name / "actor").mkdir(parents=True)
    assert scan(tmp_path) == []


def test_links_and_hidden_files_are_not_followed(tmp_path: Path) -> None:
    actor = save(tmp_path / "volume", "run", 3)
    (actor / ".part").write_text("x")
    (actor / "link.pt").symlink_to("/etc/passwd")
    (tmp_path / "volume" / "other").symlink_to(tmp_path / "volume" / "run")
    (run,) = scan(tmp_path / "volume")
    assert all(file["path"].endswith("rank_0.pt") for file in run["steps"][0]["roles"][0]["files"])


@pytest.mark.parametrize("text", ["", "\x00\xff", "not a number", "9" * 500])
def test_a_damaged_tracker_is_told_as_it_is(tmp_path: Path, text: str) -> None:
    save(tmp_path, "run", 3)
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text(text)
    (run,) = scan(tmp_path)
    assert run["tracker"]["text"] == text.strip()[:80]


def test_records_of_saves(tmp_path: Path) -> None:
    actor = save(tmp_path, "run", 3)
    record = {"step": 3, "rank": 0, "world_size": 2, "files": {}}
    (actor / "cloudrl_save_world_size_2_rank_0.json").write_text(json.dumps(record))
    (actor / "cloudrl_save_world_size_2_rank_1.json").write_text("{broken")
    (actor / "cloudrl_save_world_size_2_rank_2.json").write_text("[" * 100_000)
    (run,) = scan(tmp_path)
    assert run["steps"][0]["roles"][0]["saves"] == [record]


def test_what_jobs_left_in_their_working_directories(tmp_path: Path) -> None:
    package = "session_2025-05-28_15-53-09_958478_132003/runtime_resources/working_dir_files/_ray_pkg_c461f3378ff510ed"
    save(tmp_path, f"{package}/checkpoints/verl_grpo/qwen3", 7)
    save(tmp_path, f"{package}/other", 8)
    (tmp_path / "session_latest").symlink_to(tmp_path / package.partition("/")[0])

    (run,) = scan_working_dirs(tmp_path)

    assert run["run"] == f"{package}/checkpoints/verl_grpo/qwen3"
    assert [step["step"] for step in run["steps"]] == [7]
    assert scan_working_dirs(tmp_path / "missing") == []


def test_what_the_agents_keep_is_no_run(tmp_path: Path) -> None:
    save(tmp_path, "run", 3)
    save(tmp_path, ".cloudrl/archive/run-1", 4)
    assert [run["run"] for run in scan(tmp_path)] == ["run"]


def test_one_folder_has_one_identity(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert folder_identity(tmp_path / "a") == folder_identity(tmp_path / "link") != folder_identity(tmp_path / "b")
    assert folder_identity(tmp_path / "missing") == ""


def test_a_step_that_vanishes_meanwhile(tmp_path: Path) -> None:
    save(tmp_path, "run", 3)
    os.chmod(tmp_path / "run" / "global_step_3", 0)
    try:
        assert len(scan(tmp_path)) == 1
    finally:
        os.chmod(tmp_path / "run" / "global_step_3", 0o755)
