"""`cloudrl check`: before anything costs money."""

import json

import pytest
from typed_command import Run

import cloudrl

H100 = ("--gpu", "H100:8", "--on", "dstack")


def test_a_recipe_that_can_run(run: Run) -> None:
    done = run("check", "grpo", "--nodes", "2", *H100).ended(0)
    assert done.out == "grpo can run on 2 nodes with H100:8 on dstack; nothing was started\n"
    assert "note: you may need other batch sizes: recipe 'grpo' was tuned for 1 node with 8 GPUs" in done.err
    assert run("check", "grpo", "--gpu", "80GB..", "--on", "dstack").out.startswith(
        "grpo can run on 1 node with 80GB.., taken as 8 GPUs, on dstack;"
    )
    seen = json.loads(run("check", "grpo-tiny", "--json").out)
    assert seen == {"ok": True, "cluster": "1 node on local", "notes": []}


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


def test_a_program_reads_why_not(run: Run) -> None:
    done = run("check", "grpo", "--nodes", "9", *H100, "--json").ended(2)
    seen = json.loads(done.out)
    assert (seen["ok"], seen["cluster"]) == (False, "9 nodes with H100:8 on dstack")
    assert "cannot be divided over 72 data-parallel ranks" in seen["error"]
    assert "ppo_mini_batch_size=216" in seen["hint"]


def test_the_same_in_python() -> None:
    assert cloudrl.check("grpo-tiny", on="local") == ()
    with pytest.raises(cloudrl.InputError, match=r"trainer\.nnode: verl 0\.9\.1 has no such key"):
        cloudrl.check("grpo-tiny", {"trainer.nnode": 2}, on="local")
    [note] = cloudrl.check("grpo-tiny", {"trainer.nnode": 2}, on="local", unchecked=True)
    assert "no such key" in note
