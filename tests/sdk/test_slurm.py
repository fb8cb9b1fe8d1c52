"""A job and its cluster as one script for sbatch."""

import json
import os
import re
from typing import Any

import pytest

from cloudrl.errors import InputError
from cloudrl.sdk.slurm import slurm_script

CLUSTER: dict[str, Any] = {"nodes": 2, "slurm": {"volumes": ["/shared/ckpt:/checkpoints"], "partition": "gpu"}}


def job_of(script: str) -> dict[str, Any]:
    return json.loads(re.findall(r"<<'JOB'\n(.*?)\nJOB\n", script, re.DOTALL)[0])


def test_the_run_has_its_name_in_the_script_and_each_task_of_an_array_one_of_its_own():
    job = job_of(slurm_script("grpo-tiny", {"data.seed": 7}, cluster=CLUSTER, name="adder"))
    assert job["submission_id"] == job["metadata"]["job_name"] == "adder__TASK__"
    assert "trainer.default_local_dir=/shared/ckpt/adder__TASK__" in job["argv"]
    assert {"trainer.resume_mode=auto", "trainer.nnodes=2", "data.seed=7"} <= set(job["argv"])
    nameless = job_of(slurm_script("grpo-tiny", cluster=CLUSTER))
    assert re.fullmatch(r"grpo-tiny-\d{8}-\d{6}__TASK__", nameless["submission_id"])


def test_the_agents_know_how_to_carry_it_through():
    script = slurm_script("grpo-tiny", {"trainer.save_freq": 5}, cluster=CLUSTER, name="adder", steps=20)
    job = job_of(script)
    plan = {"world_size": 2, "total_steps": 20, "saves": True, "chooses_step": False}
    no_mirror = {"keep_every": 0, "keep_best": "", "mirror": "", "mirror_rate": 0}
    assert job["durable"] == {**plan, "training_nodes": 0, "is_placed": False, "keep": 0, **no_mirror}
    assert "trainer.checkpoint_callback_class=cloudrl_save_hook.SaveCallback" in job["argv"]
    assert slurm_script("grpo-tiny", {"trainer.save_freq": 5}, cluster=CLUSTER, name="adder", steps=20, durable=True)


@pytest.mark.parametrize(
    "overrides", [{"trainer.default_local_dir": "/shared/mine"}, {"trainer.resume_mode": "disable"}]
)
def test_who_says_where_it_goes_on_has_it_so(overrides):
    job = job_of(slurm_script("grpo-tiny", overrides, cluster=CLUSTER, name="adder"))
    assert job["durable"]["chooses_step"] is True
    [(key, value)] = overrides.items()
    assert f"{key}={value}" in job["argv"]


def test_a_script_that_saves_nothing_says_so():
    told: list[str] = []
    slurm_script(
        "grpo-tiny", {"trainer.save_freq": -1}, cluster=CLUSTER, name="adder",
        on_progress=lambda update: told.append(update.text),
    )  # fmt: skip
    assert [line for line in told if line.startswith("warning: the job saves nothing")]


def _told(mirror: str, **section: Any) -> list[str]:
    told: list[str] = []
    cluster = {**CLUSTER, "slurm": {**CLUSTER["slurm"], **section}}
    slurm_script("grpo-tiny", cluster=cluster, mirror=mirror, on_progress=lambda update: told.append(update.text))
    return [line for line in told if "--mirror" in line and line.startswith("warning: ")]


def test_a_mirror_that_this_machine_sees_is_looked_at_when_the_script_is_written(tmp_path):
    (tmp_path / "file").write_text("")
    assert _told(f"{tmp_path}/mirror") == _told(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == [tmp_path / "file"], "the nodes make it"
    with pytest.raises(InputError, match="/file is a file"):
        _told(f"{tmp_path}/file")
    with pytest.raises(InputError, match="is neither an absolute path nor"):
        _told("runs")


@pytest.mark.parametrize("folder", ["absent", "absent/runs", "/mnt-of-the-nodes", "file/runs", "link", "link/runs"])
def test_a_mirror_that_is_not_here_is_the_nodes_to_judge(tmp_path, folder, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("/mnt-of-the-nodes/runs")
    real = os.access  # for root no folder is closed
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) not in ("/", str(tmp_path)) and real(path, mode))
    [warning] = _told(str(tmp_path / folder))
    assert f"whether {tmp_path / folder} can be a mirror; if not, the job ends at its start" in warning


def test_a_machine_with_another_login_node_judges_no_mirror(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file", tmp_path / "mirror"):
        [warning] = _told(str(path), login="me@cluster")
        assert "this machine cannot tell" in warning


def test_a_mirror_that_cannot_be_written_here_may_be_written_by_the_nodes(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda _, mode: mode == os.F_OK)  # as scratch that login nodes mount read-only
    [warning] = _told(str(tmp_path))
    assert f"you cannot write {tmp_path} on this machine" in warning


def test_a_mirror_in_a_container_has_to_be_on_a_volume(tmp_path):
    (tmp_path / "file").write_text("")
    docker = {"container": "docker", "volumes": ["/shared/ckpt:/checkpoints", f"{tmp_path}:/mirror"]}
    assert _told("/mirror/runs", **docker) == []
    with pytest.raises(InputError, match=rf"{tmp_path}/file is a file"):
        _told("/mirror/file", **docker)
    with pytest.raises(InputError, match="on none of the volumes") as error:
        _told("/elsewhere", **docker)
    assert "'/SHARED/elsewhere:/elsewhere'" in str(error.value.hint)
    assert _told("/elsewhere", **docker, container_options=["--volume=/a:/elsewhere"]) == []


def test_a_recipe_brings_its_cluster():
    section = {"container": "docker", "volumes": ["/shared/ckpt:/checkpoints"]}
    script = slurm_script("ppo-rocm-0.5b", cluster={"slurm": section})
    assert "#SBATCH --job-name=ppo-rocm-0-5b\n#SBATCH --nodes=2\n" in script
    assert "#SBATCH --gpus-per-node=8\n" in script
    assert "IMAGE=verlai/verl:rocm" in script
    assert "--model=Qwen/Qwen2.5-0.5B-Instruct" in script


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reward": "./mine.py"}, "mine.py is a file of this machine"),
        ({"working_dir": "."}, "a working directory cannot go along"),
        ({"env": {"WANDB_API_KEY": "abc123"}}, "the value of WANDB_API_KEY would stand in the script"),
    ],
)
def test_what_this_machine_alone_has_is_refused(options, words, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return len(solution_str)\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words) as error:
        slurm_script("grpo-tiny", cluster=CLUSTER, **options)
    assert "abc123" not in str(error.value)


def test_a_file_that_comes_with_cloudrl_is_named_so_that_it_can_be_copied():
    cluster = {"slurm": {**CLUSTER["slurm"], "container": "docker"}}
    with pytest.raises(InputError, match=r"cloudrl://tools/search\.py is a file of this machine") as error:
        slurm_script("search-grpo", cluster=cluster)
    assert "cloudrl/tools/search.py where all nodes see it" in str(error.value.hint)


def test_secrets_of_this_shell_stay_out_of_the_script(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_of_this_shell")
    assert "hf_of_this_shell" not in slurm_script(
        "grpo", cluster={**CLUSTER, "slurm": {**CLUSTER["slurm"], "container": "bare"}}
    )


def test_notes_have_the_name_that_the_user_knows():
    notes: list[str] = []
    slurm_script("grpo-tiny", cluster=CLUSTER, name="adder", on_progress=lambda each: notes.append(each.text))
    assert notes
    assert "__TASK__" not in " ".join(notes)


def test_a_secret_of_the_cluster_is_the_key_of_a_logger():
    notes: list[str] = []
    overrides = {"trainer.logger": ["console", "wandb"]}
    for cluster in (CLUSTER, {**CLUSTER, "secrets": ["WANDB_API_KEY"]}):
        slurm_script("grpo-tiny", overrides, cluster=cluster, on_progress=lambda each: notes.append(each.text))
    assert len([each for each in notes if "WANDB_API_KEY" in each]) == 1, "only where it is not a secret of the cluster"


def test_the_queue_of_verl_fits_the_cpus_that_slurm_gives():
    """One GPU and its 8 CPUs: 3 are the worker's and 1 the queue's. Before, verl waited for 12 without end."""
    section = {**CLUSTER["slurm"], "container": "bare"}
    for cpu, units in ((None, ["4"]), ("12", [])):
        words = {"nodes": 1, "gpu": "H100:1", "slurm": section, **({"cpu": cpu} if cpu else {})}
        argv = job_of(slurm_script("ppo", cluster=words))["argv"]
        found = [word.partition("=")[2] for word in argv if "num_data_storage_units" in word]
        assert found == units


def test_the_command_prints_it(run):
    done = run("slurm", "script", "grpo-tiny", "--name", "adder", "--set", "slurm.volumes=[/shared/ckpt:/checkpoints]")
    assert done.out.startswith("#!/bin/bash\n# Training adder on Slurm")
