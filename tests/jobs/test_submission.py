"""What is sent: variables, runtime environment, the command, and how it looks with secrets masked."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from patience import SLOWER
from planning import LEAST, cluster, job, overrides, plan, planned, typed

from cloudrl.errors import InputError
from cloudrl.jobs import Submission, SubmitOptions
from cloudrl.protocol.facts import ClusterFacts


class TestEnvironment:
    def test_recipe_file_and_command_line_in_this_order(self):
        env = planned(
            job(env={"A": "recipe", "B": "recipe", "C": "recipe"}),
            runtime_env={"env_vars": {"B": "file", "C": "file"}},
            env={"C": "line"},
        ).runtime_env["env_vars"]
        assert env == {"HF_HUB_OFFLINE": "1", "A": "recipe", "B": "file", "C": "line"}

    def test_the_hub_is_left_alone_unless_the_user_wants_it(self):
        assert planned().runtime_env == {"env_vars": {"HF_HUB_OFFLINE": "1"}}
        assert planned(env={"HF_HUB_OFFLINE": "0"}).runtime_env == {"env_vars": {"HF_HUB_OFFLINE": "0"}}

    def test_a_reward_model_of_the_hub_needs_the_hub(self):
        mine = planned(overrides=typed("reward.reward_model.model_path=Skywork/Reward-8B"))
        local = planned(overrides=typed("reward.reward_model.model_path=/models/reward"))
        assert "env_vars" not in mine.runtime_env
        assert local.runtime_env["env_vars"] == {"HF_HUB_OFFLINE": "1"}

    @pytest.mark.parametrize(("key", "logger"), [("k", "[console,wandb]"), ("", "[console]")])
    def test_a_key_for_wandb_switches_it_on(self, key: str, logger: str):
        assert overrides(planned(env={"WANDB_API_KEY": key}))["trainer.logger"] == logger

    def test_other_fields_are_passed_on_and_excludes_decide_what_is_packed(self, tmp_path: Path):
        config = {"setup_timeout_seconds": 60}
        for name in ("train.py", "big.bin"):
            (tmp_path / name).touch()
        submission = planned(runtime_env={"excludes": ["*.bin"], "working_dir": str(tmp_path), "config": config})
        [packed] = submission.package.entries if submission.package else ()
        assert packed.name == "train.py"
        sent = dict(submission.runtime_env)
        assert sent.pop("working_dir").startswith("gcs://_ray_pkg_")
        assert sent == {"config": config, "env_vars": {"HF_HUB_OFFLINE": "1"}}

    def test_a_working_directory_that_the_cluster_fetches(self):
        submission = planned(working_dir="s3://bucket/code.zip", runtime_env={"working_dir": "gcs://other.zip"})
        assert submission.runtime_env["working_dir"] == "s3://bucket/code.zip"
        assert submission.package is None

    def test_a_name_that_is_none(self):
        with pytest.raises(InputError, match="environment: 'A B' is not a variable name"):
            planned(env={"A B": "1"})


class TestRendering:
    SECRETS = ("hf_0123456789", "wandb-key-1", "pass-word", "s3cr3t-value", "deep-key-1")

    def secretive(self) -> Submission:
        return planned(
            env={"HF_TOKEN": "hf_0123456789", "WANDB_API_KEY": "wandb-key-1", "MY_SECRET": "s3cr3t-value"},
            runtime_env={"pip": ["--index-url=https://me:pass-word@pypi.test/simple"]},
            overrides=typed("+x.api_key=deep-key-1", "+y.copy='is hf_0123456789 here'", "data.prompt_key=prompt"),
        )

    def test_no_secret_is_shown(self):
        submission = self.secretive()
        shown = submission.render() + repr(submission.redacted_request())
        assert [secret for secret in self.SECRETS if secret in shown] == []
        assert "data.prompt_key=prompt" in shown
        assert "HF_TOKEN: '***'" in shown
        assert "s3cr3t-value" not in repr(submission)

    def test_secrets_are_sent(self):
        sent = json.dumps(self.secretive().request())
        assert [secret for secret in self.SECRETS if secret not in sent] == []

    def test_what_is_shown_is_what_is_sent(self):
        hostile = typed("+a.b='x y'", "+c='it\\'s'", "~d", "+e=a\nb", "+f=$(id) `id` ; \\")
        submission = planned(overrides=hostile, unchecked=True)
        shown, sent = yaml.safe_load(submission.render()), submission.request()
        assert words(shown.pop("entrypoint")) == words(sent.pop("entrypoint")) == list(submission.argv[3:])
        assert shown == sent == {key: value for key, value in submission.redacted_request().items() if key in sent}


class TestJournal:
    ENV = {"MY_API_TOKEN": "marker-0123456789", "COPY": "is marker-0123456789", "A": "1"}  # noqa: RUF012

    @pytest.mark.parametrize("view", [cluster(), cluster(secrets_dir="/dev/shm/x", ray_version="2.60.0")])
    def test_there_and_back(self, view: ClusterFacts, tmp_path: Path):
        """Whoever passes the secrets on, Ray or the agents: they are not part of it."""
        (tmp_path / "reward.py").write_text("def compute_score(): ...")
        options = SubmitOptions(reward="./reward.py", env=self.ENV, steps=3)
        submission = plan(job(), view, options, here=tmp_path)
        written = json.dumps(submission.to_json())
        read = Submission.from_json(json.loads(written))
        assert "marker" not in written
        assert json.dumps(read.to_json()) == written
        assert (read.argv, read.metadata, read.uploads) == (submission.argv, submission.metadata, submission.uploads)
        assert {"COPY", "MY_API_TOKEN"} >= set(read.absent) >= {"MY_API_TOKEN"}

    def test_without_secrets_it_is_the_same_at_once(self):
        assert Submission.from_json(json.loads(json.dumps(planned().to_json()))) == planned()

    @pytest.mark.parametrize(
        "options",
        [
            {"overrides": {"+x.api_key": "deep-key-1"}},
            {"runtime_env": {"pip": ["--index-url=https://me:pass-word@pypi.test/simple"]}},
        ],
    )
    def test_a_secret_that_cannot_be_taken_out(self, options: dict[str, Any]):
        with pytest.raises(InputError, match="has a secret in its command or runtime environment"):
            planned(**options).to_json()

    @pytest.mark.parametrize("value", [None, {}, {"version": 2}, {"version": 1}, []])
    def test_what_is_no_submission(self, value: Any):
        with pytest.raises(ValueError, match="submission"):
            Submission.from_json(value)


def words(entrypoint: str) -> list[str]:
    """The overrides as a program gets them from a shell."""
    show = shlex.join([sys.executable, "-c", "import json,sys; print(json.dumps(sys.argv[1:]))"])
    command = entrypoint.replace("python3 -m verl.trainer.main_ppo", show, 1)
    seen = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=True, timeout=30 * SLOWER)
    return list(json.loads(seen.stdout))


HOSTILE = [
    "it's", 'say "hi"', "$(id)", "`id`", "a\nb", "a;b", "a b", "\\", "*", "a=b", "{x}", "[1", "#", "é你", "!h", "~",
]  # fmt: skip


def test_shell_and_hydra_read_what_was_meant():
    """Hostile text in a path and in values arrives in the program as it was, and runs nothing."""
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser").OverridesParser.create()
    notes = {f"+note{number}": hostile for number, hostile in enumerate(HOSTILE)}
    folder = f"/ckpt/{' '.join(HOSTILE)}"
    recipe = job(overrides={**LEAST, **notes, "algorithm.adv_estimator": "grpo"})
    submission = planned(recipe, cluster(checkpoint_dir=folder, models={}))
    assert words(submission.entrypoint) == list(submission.argv[3:])
    assert submission.metadata["cloudrl_checkpoints"] == f"{folder}/{submission.name}"
    read = {each.key_or_group: each.value() for each in parser.parse_overrides(list(submission.argv[3:]))}
    assert {f"+{key}": value for key, value in read.items() if key.startswith("note")} == notes
    assert read["trainer.default_local_dir"] == f"{folder}/{submission.name}"
    assert (read["trainer.nnodes"], read["trainer.logger"]) == (2, ["console"])
