"""`cloudrl check`: before anything costs money."""

import json

import pytest
from typed_command import Run

import cloudrl

H100 = ("--gpu", "H100:8", "--on", "dstack")


def test_a_recipe_that_can_run(run: Run) -> None:
    done = run("check", "grpo", "--nodes", "2", *H100).ended(0)
    *memory, answer = done.out.splitlines()
    assert answer == "nothing found that would stop grpo on 2 nodes with H100:8 on dstack; nothing was started"
    assert memory[0] == "GiB of each GPU (H100 of 80 GB, 79 GiB) for Qwen/Qwen2.5-7B-Instruct (7.62 B parameters):"
    assert memory[-1] == "memory: fits"
    assert "note: you may need other batch sizes: recipe 'grpo' was tuned for 1 node with 8 GPUs" in done.err
    answer = run("check", "grpo", "--gpu", "80GB..", "--on", "dstack").out.splitlines()[-1]
    assert answer.startswith("nothing found that would stop grpo on 1 node with 80GB.., taken as 8 GPUs, on dstack;")
    seen = json.loads(run("check", "grpo-tiny", "--json").out)
    assert seen == {
        "ok": True,
        "cluster": "1 node on local",
        "notes": [],
        "warnings": [],
        "not_checked": [],
        "memory": None,
    }


def test_a_recipe_that_has_too_little_memory(run: Run) -> None:
    asked = ("check", "grpo", "--gpu", "24GB:4", "--on", "dstack")
    done = run(*asked).ended(0)  # a warning: an estimate refuses nothing
    assert "memory does not fit: update" in done.err
    assert "It fits with: " in done.err
    assert done.out.splitlines()[-1].endswith(", but it does not fit in memory; nothing was started")
    memory = json.loads(run(*asked, "--json").out)["memory"]
    assert (memory["verdict"], memory["likely_fits"]) == ("does not fit", False)
    fixed = [f"{key}={value}" for key, value in memory["overrides"].items()]
    fixed += [word for option in memory["options"] for word in option.split()]
    assert json.loads(run(*asked, *fixed, "--json").out)["memory"]["likely_fits"]


def test_what_is_wrong_and_too_little_memory_are_reported_together(run: Run) -> None:
    asked = ("check", "grpo", "--gpu", "24GB:4", "--on", "dstack", "actor_rollout_ref.actor.ppo_mini_batch_size=101")
    done = run(*asked).ended(2)
    assert "warning: memory does not fit" in done.err
    assert "cannot be divided" in done.err
    [warning] = [each for each in json.loads(run(*asked, "--json").out)["warnings"] if "memory" in each]
    assert "It fits with: " in warning


def test_what_is_not_known_of_memory_is_said(run: Run) -> None:
    asked = ("check", "grpo", "--model", "me/unheard-of", *H100)
    assert (
        "not checked before the job starts: memory and heads (config.json of me/unheard-of unknown)" in run(*asked).err
    )
    assert "memory (card unknown)" in run("check", "grpo", "--gpu", "8", "--on", "dstack").err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["data.train_batchsize=512"],
            ["data.train_batchsize: verl 0.9.1 has no such key", "data.train_batch_size=512"],
        ),
        (["--nodes", "9"], ["cannot be divided over 72 data-parallel ranks"]),
        (["--data", "./none.parquet"], ["none.parquet"]),
        (["--set", "verl=0.1"], ["0.1"]),
    ],
)
def test_what_cannot_work_ends_with_2(run: Run, words: list[str], said: list[str]) -> None:
    run("check", "grpo", *H100, *words).ended(2, *said)


def test_the_corrected_command(run: Run) -> None:
    typed = ("check", "grpo", *H100, "+trainer.val_before_train=False")
    corrected = "cloudrl check grpo --gpu H100:8 --on dstack trainer.val_before_train=False"
    run(*typed).ended(2, f"Corrected: {corrected}")
    done = run(*typed, "--fix").ended(0)
    assert done.out == f"{corrected}\n"
    assert run(*done.out.split()[1:], "--fix").ended(0).out == done.out, "it has nothing to correct"
    done = run(*typed, "algorithm.mine.enable=True", "--fix").ended(
        2, "algorithm.mine.enable: verl 0.9.1 has no such key"
    )
    assert done.out == f"{corrected} algorithm.mine.enable=True\n"
    run(*typed, "algorithm.mine.enable=True").ended(2, "Corrected, but for what no override settles: ")


def test_a_program_reads_why_not(run: Run) -> None:
    done = run("check", "grpo", "--nodes", "9", *H100, "--json").ended(2)
    seen = json.loads(done.out)
    assert (seen["ok"], seen["cluster"]) == (False, "9 nodes with H100:8 on dstack")
    assert "cannot be divided over 72 data-parallel ranks" in seen["error"]
    [finding] = seen["findings"]
    assert finding["set_by"] == "recipe 'grpo'"
    assert "actor_rollout_ref.actor.ppo_mini_batch_size=216" in finding["fix"]
    assert seen["corrected"].startswith("cloudrl check grpo --nodes 9 --gpu H100:8 --on dstack ")


def test_the_same_in_python() -> None:
    assert cloudrl.check("grpo-tiny", on="local") == ()
    with pytest.raises(cloudrl.InputError, match=r"trainer\.nnode: verl 0\.9\.1 has no such key"):
        cloudrl.check("grpo-tiny", {"trainer.nnode": 2}, on="local")
    [note] = cloudrl.check("grpo-tiny", {"trainer.nnode": 2}, on="local", unchecked=True)
    assert "no such key" in note
