"""From a job, a cluster and options to a submission: names, steps, refusals, notes."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning import LEAST, NOW, cluster, job, overrides, plan, planned, typed

from cloudrl.errors import InputError
from cloudrl.jobs import SubmitOptions, pipeline
from cloudrl.jobs.draft import Snapshot
from cloudrl.jobs.local_files import inspect_files
from cloudrl.spec import HydraText


class TestNames:
    def test_a_second_submit_by_accident_is_another_run(self):
        later = NOW.replace(second=10)
        assert planned().name != plan(job(), cluster(), now=later).name

    def test_a_name_of_ones_own_continues_the_run(self):
        submission = planned(name="my-run")
        assert submission.metadata["cloudrl_checkpoints"] == "/checkpoints/my-run"
        assert submission.submission_id == "my-run-20261121-100509"
        assert submission.notes == (
            "run 'my-run' continues from the newest checkpoint in /checkpoints/my-run, if there is one",
        )

    def test_a_name_without_resuming(self):
        assert planned(name="my-run", durable=False, overrides=typed("trainer.resume_mode=disable")).notes == ()

    def test_an_id_of_ones_own(self):
        submission = planned(submission_id="raysubmit_1")
        assert (submission.submission_id, submission.name) == ("raysubmit_1", "grpo-20261121-100509")

    @pytest.mark.parametrize("option", ["name", "submission_id"])
    @pytest.mark.parametrize(
        "hostile", ["", ".", "..", "../x", "a/b", "a b", "-x", "$(rm)", "a'b", "a\nb", "a" * 101, "é", "a\0"]
    )
    def test_a_name_that_is_no_file_name(self, option: str, hostile: str):
        with pytest.raises(InputError, match=r"^--(name|submission-id) .* cannot be the name of a folder"):
            planned(**{option: hostile})

    def test_a_recipe_with_a_very_long_name(self):
        assert len(planned(job(name="r" * 100)).submission_id) <= 100
        assert len(planned(name="r" * 100).submission_id) <= 100


class TestSteps:
    def test_epochs_do_not_end_the_run_before_its_steps(self):
        filled = overrides(planned(job(overrides={**LEAST, "trainer.total_epochs": 1}), steps=100))
        assert filled["trainer.total_training_steps"] == "100"
        assert filled["trainer.total_epochs"] == "100"

    @pytest.mark.parametrize(
        ("options", "steps"),
        [
            ({"steps": 100}, "100"),
            ({"overrides": typed("+trainer.total_training_steps=7")}, "7"),
            ({}, None),
            ({"overrides": typed("trainer.total_training_steps=${oc.env:STEPS}")}, None),
        ],
    )
    def test_they_are_known_to_those_who_follow(self, options: dict[str, Any], steps: str | None):
        assert planned(**options).metadata.get("cloudrl_total_steps") == steps

    def test_epochs_that_the_user_types_stay(self):
        filled = overrides(planned(steps=100, overrides=typed("trainer.total_epochs=2")))
        assert filled["trainer.total_epochs"] == "2"

    def test_the_same_twice_is_no_contradiction(self):
        planned(steps=5, overrides=typed("trainer.total_training_steps=5"))
        with pytest.raises(InputError, match=r"--steps 5 and .*_steps=6 differ"):
            planned(steps=5, overrides=typed("trainer.total_training_steps=6"))


def test_the_job_keeps_what_was_asked_for_as_one_types_it():
    asked = planned(
        steps=5, track=("tensorboard",), overrides=typed("data.seed=1", "a.b.api_key=sk-12345678"), unchecked=True
    )
    assert asked.metadata["cloudrl_overrides"] == "--steps=5 --track=tensorboard data.seed=1 'a.b.api_key=***'"


def test_every_alias_of_overrides_is_kept():
    asked = planned(model="/m", data=("gsm8k",), asynchronous=True, name="run", unchecked=True)
    assert asked.metadata["cloudrl_overrides"] == "--model=/m --data=gsm8k --async"


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["trainer.nnodes=3"], r"trainer\.nnodes=3, but cluster 'lab' has 2 nodes:"),
            (["++trainer.nnodes=3"], r"trainer\.nnodes=3, but cluster 'lab' has 2 nodes:"),
            (["trainer.n_gpus_per_node=16"], r"n_gpus_per_node=16, but cluster 'lab' has 8 GPUs a node:"),
            (["trainer.nnodes=0"], r"trainer\.nnodes=0 is less than 1"),
            (["trainer.nnodes=-1"], r"trainer\.nnodes=-1 is less than 1"),
            (["trainer.nnodes=two"], r"trainer\.nnodes=two is not a whole number"),
            (["trainer.default_local_dir=checkpoints/x"], "is relative: checkpoints would land in"),
            (["trainer.default_local_dir='ckpt'"], "is relative"),
            (["trainer.default_local_dir=hdfs://x/y"], "is relative"),
        ],
    )
    def test_of_options(self, arguments: list[str], says: str):
        with pytest.raises(InputError, match=says) as caught:
            planned(overrides=typed(*arguments))
        assert caught.value.hint

    @pytest.mark.parametrize(
        ("of_job", "of_cluster", "says", "hint"),
        [
            ({"overrides": {"trainer.nnodes": 2}}, {"nodes": 1}, "=2, but cluster 'lab' has 1 node:", "--nodes 2"),
            ({"data": ["gsm8"]}, {}, r"reads data set 'gsm8', .* \(it has: gsm8k; did you mean 'gsm8k'", "--data gsm8"),
            ({"model": "tiny-adder"}, {}, "model 'tiny-adder' is made by cloudrl", ""),
            ({}, {"device": "cpu"}, "computes on GPUs, and cluster 'lab' on CPUs", ""),
            ({}, {"nodes": 0, "gpus_per_node": 0}, "no node of cluster 'lab' offers a GPU to Ray", ""),
            ({}, {"verl_version": "0.8.0"}, r"for verl 0\.9\.1, and cluster 'lab' has 0\.8\.0", ""),
            ({"data": []}, {"data": {}}, "neither recipe 'grpo' nor cluster 'lab' says: ", ""),
        ],
    )  # fmt: skip
    def test_of_job_and_cluster(self, of_job: dict[str, Any], of_cluster: dict[str, Any], says: str, hint: str):
        with pytest.raises(InputError, match=says) as caught:
            planned(job(**of_job), cluster(**of_cluster))
        assert hint in str(caught.value)


class TestNotes:
    @pytest.mark.parametrize("every", ["-1", "0"])
    def test_a_run_that_never_saves_may_be_meant(self, every: str):
        submission = planned(overrides=typed(f"trainer.save_freq={every}"))
        assert f"trainer.save_freq={every}" in submission.argv
        [warning] = submission.warnings
        assert warning.startswith(f"trainer.save_freq={every} never saves")

    def test_on_a_cpu_recipe_on_a_gpu_cluster(self):
        submission = planned(job(device="cpu"))
        assert "trainer.device=cpu" in submission.argv
        assert submission.notes == ("recipe 'grpo' computes on the CPU; the GPUs of cluster 'lab' stay idle",)

    def test_on_a_model_that_everybody_fetches(self):
        submission = planned(job(model="other/model"))
        assert "every worker downloads it" in submission.notes[0]
        assert "HF_HUB_OFFLINE" not in submission.runtime_env.get("env_vars", {})

    def test_on_another_patch_of_verl(self):
        assert "has 0.9.2" in planned(view=cluster(verl_version="0.9.2")).notes[0]

    def test_on_checkpoints_elsewhere(self):
        notes = planned(durable=False, overrides=typed("trainer.default_local_dir=/checkpoints-2/x")).notes
        assert notes == ("/checkpoints-2/x is outside /checkpoints: cloudrl can neither list nor merge it",)

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"overrides": typed("trainer.logger=[wandb]")}, "no progress can be shown"),
            ({"overrides": typed("+x.api_key=abc")}, "--env hides it"),
            ({"env": {"P": "a$HOME"}}, "Ray expands"),
        ],
    )
    def test_on_options(self, options: dict[str, Any], says: str):
        assert says in planned(**options).notes[0]


class TestPasses:
    def test_their_order_is_documented(self):
        said = re.findall(r"`(\w+)`", str(pipeline.__doc__).partition("Validating")[0])
        assert said == [each.__name__ for each in pipeline.PASSES]

    def test_the_same_snapshot_gives_the_same_submission(self, tmp_path: Path):
        (tmp_path / "reward.py").write_text("def compute_score(): ...")
        options = SubmitOptions(reward="./reward.py", env={"MY_TOKEN": "x" * 9}, steps=3)
        snapshot = Snapshot(cluster(), inspect_files(job(), options, here=tmp_path), now=NOW)
        first = pipeline.plan_job(job(), options, snapshot)
        (tmp_path / "reward.py").unlink()
        assert pipeline.plan_job(job(), options, snapshot) == first, "a pass looks at nothing but the snapshot"


@given(st.text(max_size=30))
def test_any_typed_value_is_planned_or_refused(value: str):
    try:
        submission = planned(overrides={"trainer.nnodes": HydraText(value), "+x": HydraText(value)})
    except InputError:
        return
    assert shlex.split(submission.entrypoint) == list(submission.argv)
