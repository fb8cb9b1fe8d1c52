"""`cloudrl recipes`, as it is typed, and `--algorithm` in `cloudrl submit` and the SDK."""

import json

import pytest

import cloudrl
from cloudrl import recipes


def test_list_shows_recipes_and_algorithms(run):
    code, output, errors = run("recipes", "list")
    assert code == 0
    lines = output.splitlines()
    assert lines[0].split() == ["recipe", "made", "for", "summary"]
    assert [line.split()[0] for line in lines[1 : 1 + len(recipes.names())]] == recipes.names()
    assert "2 x 80GB..:8" in next(line for line in lines if line.startswith("grpo-qwen3-32b "))
    assert [line.split()[0] for line in lines[-len(recipes.algorithms()) :]] == recipes.algorithms()
    assert "cloudrl recipes show ppo --algorithm dapo" in errors


def test_list_for_programs(run):
    found = json.loads(run("recipes", "list", "--json")[1])
    by_name = {each["name"]: each for each in found["recipes"]}
    assert by_name["ppo-sglang-7b"] == {
        "name": "ppo-sglang-7b",
        "summary": "PPO with a critic and SGLang, Qwen2-7B-Instruct on gsm8k and MATH, 2 nodes of 8 GPUs",
        "source": recipes.load("ppo-sglang-7b").source,
        "verl": "0.9.1",
        "device": "gpu",
        "nodes": 2,
        "gpu": "80GB..:8",
        "rollout": "sglang",
        "data": ["gsm8k", "math"],
        "model": "Qwen/Qwen2-7B-Instruct",
    }
    assert [each["name"] for each in found["algorithms"]] == recipes.algorithms()


def test_show_prints_the_file_with_its_comments(run):
    code, output, errors = run("recipes", "show", "ppo")
    assert (code, output, errors) == (0, recipes.render_recipe("ppo"), "")
    assert "# PPO with a critic" in output


def test_show_by_another_algorithm_is_a_file_to_submit(run, tmp_path):
    mine = tmp_path / "mine.yml"
    mine.write_text(run("recipes", "show", "ppo", "--algorithm", "rloo")[1])
    assert recipes.load(mine) == recipes.with_algorithm(recipes.load("ppo"), "rloo")


def test_show_for_programs(run):
    found = json.loads(run("recipes", "show", "grpo-tiny", "--json")[1])
    assert found["overrides"]["trainer.device"] == "cpu"
    assert found["env"]["OMP_NUM_THREADS"] == "1"
    assert found["entrypoint"] == ["python3", "-m", "verl.trainer.main_ppo"]
    changed = json.loads(run("recipes", "show", "ppo", "--algorithm", "rloo", "--json")[1])
    assert changed["name"] == "ppo-rloo"
    assert changed["overrides"]["algorithm.adv_estimator"] == "rloo"
    assert not any(key.startswith("critic.") for key in changed["overrides"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["recipes", "show", "gpro"], "error: there is no recipe 'gpro'; did you mean 'grpo'?"),
        (["recipes", "show", "grpo", "--algorithm", "dap"], "error: there is no algorithm 'dap'; did you mean 'dapo'?"),
        (["submit", "grpo", "--algorithm", "dap"], "error: there is no algorithm 'dap'; did you mean 'dapo'?"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_else(run, arguments, message):
    code, output, errors = run(*arguments)
    assert (code, output) == (2, "")
    assert errors.splitlines()[0] == message


def test_the_sdk_takes_an_algorithm_and_changes_win_over_it():
    job = cloudrl.recipe("ppo", algorithm="gspo", overrides={"actor_rollout_ref.rollout.n": 4})
    assert job.name == "ppo-gspo"
    assert job.override("actor_rollout_ref.rollout.n") == "4"
    assert job.override("actor_rollout_ref.actor.policy_loss.loss_mode") == "gspo"
