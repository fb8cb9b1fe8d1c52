"""Publishing: a card that says what is known, private unless asked otherwise, and a call that can be repeated."""

import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hf_xet
import pytest
import yaml
from fake_cluster import FakeCluster
from fake_hub import FakeHub
from huggingface_hub import HfApi
from megatron_files import extracted
from small_step import tree, write_step

from cloudrl.checkpoints.card import Provenance, model_card, provenance
from cloudrl.checkpoints.handle import CheckpointHandle, Checkpoints
from cloudrl.checkpoints.publishing import own_errors
from cloudrl.checkpoints.push import PushPlan, plan_push, push
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import CheckpointError, CloudrlError, ConnectionFailed, InputError
from cloudrl.options.merge import MergeOptions

pytestmark = pytest.mark.io


class Publisher:
    """Pushes the latest step of a run to a stand-in for the Hub."""

    def __init__(self, folder: Path, hub: FakeHub) -> None:
        self.run, self.staging, self.hub = folder / "run", folder / "push", hub
        self.api = HfApi(hub.url, "hf_x")
        write_step(self.run, 7)

    @property
    def latest(self) -> CheckpointHandle:
        return Checkpoints(LocalSource(self.run)).latest()

    def plan(self, repo: str = "me/tiny", **options: Any) -> PushPlan:
        return plan_push(self.latest, repo, self.staging, **options)

    def push(self, plan: PushPlan, **options: Any) -> str:
        return push(plan, api=self.api, **options)


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    with FakeHub() as hub:
        yield Publisher(tmp_path, hub)


def test_a_merged_model_with_its_card(publisher: Publisher, tmp_path: Path) -> None:
    plan = publisher.plan()
    assert publisher.push(plan) == f"{publisher.hub.url}/me/tiny"
    publisher.latest.merge(tmp_path / "model")
    merged = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    assert publisher.hub.contents() == {**merged, "README.md": plan.card.encode()}
    assert list(publisher.staging.iterdir()) == [], "nothing is left on this machine"


def test_megatrons_distributed_format_with_the_base_model(publisher: Publisher, tmp_path: Path) -> None:
    """Config and tokenizer are the base model's; with another one it is another upload."""
    extracted("qwen3-moe", tmp_path / "megatron")
    (tmp_path / "base").mkdir()
    (tmp_path / "megatron" / "config.json").rename(tmp_path / "base" / "config.json")
    (tmp_path / "base" / "tokenizer.json").write_text("{}")
    found, base = Checkpoints(LocalSource(tmp_path / "megatron")).latest(), str(tmp_path / "base")
    without = plan_push(found, "me/tiny", publisher.staging)
    with pytest.raises(CheckpointError, match="neither config nor tokenizer") as raised:
        publisher.push(without)
    assert ("--base MODEL" in str(raised.value.hint), publisher.hub.committed) == (True, [])
    plan = plan_push(found, "me/tiny", publisher.staging, options=MergeOptions(base=base))
    assert plan.staging != without.staging
    publisher.push(plan)
    found.merge(tmp_path / "model", base=base)
    assert publisher.hub.contents() == {**tree(tmp_path / "model"), "README.md": plan.card.encode()}
    assert "tokenizer.json" in publisher.hub.contents()


@pytest.mark.parametrize("private", [True, False])
def test_public_only_when_asked(publisher: Publisher, private: bool) -> None:
    plan = publisher.plan(private=private)
    assert ("private" if private else "PUBLIC") in plan.render()
    publisher.push(plan)
    assert publisher.hub.repos["me/tiny"] is private


@pytest.mark.parametrize(
    ("repo", "there", "hint"),
    [("me/open", "is PUBLIC", "--public"), ("me/closed", "is private", "hf repos settings me/closed --public")],
)
def test_a_repository_stays_as_visible_as_it_is(publisher: Publisher, repo: str, there: str, hint: str) -> None:
    hub = publisher.hub
    is_private = hub.repos[repo]
    plan = publisher.plan(repo, private=not is_private)
    with pytest.raises(InputError, match=f"{repo} exists and {there}") as raised:
        publisher.push(plan)
    assert hint in str(raised.value.hint)
    assert (hub.committed, plan.staging.exists()) == ([], False)
    publisher.push(publisher.plan(repo, private=is_private))
    assert "model.safetensors" in hub.contents()
    assert hub.repos[repo] is is_private


def test_a_home_that_cannot_be_written(publisher: Publisher) -> None:
    publisher.staging.write_text("")
    with pytest.raises(InputError, match="push cannot be written: File exists") as raised:
        publisher.push(publisher.plan())
    assert "CLOUDRL_HOME" in str(raised.value.hint)
    publisher.staging.unlink()
    plan = publisher.plan()
    (plan.staging / "README.md").mkdir(parents=True)
    with pytest.raises(InputError, match=r"README\.md cannot be written: Is a directory"):
        publisher.push(plan)


def test_what_cannot_be_removed_is_said_with_where_the_model_is(publisher: Publisher) -> None:
    plan = publisher.plan()
    publisher.hub.on_commit = lambda: shutil.rmtree(plan.staging)
    with pytest.raises(InputError, match=r"the model is at http.*/me/tiny, and .* cannot be removed"):
        publisher.push(plan)


def test_what_an_interrupted_removal_has_left_goes_and_is_not_uploaded(publisher: Publisher) -> None:
    plan = publisher.plan()
    left = plan.staging.with_name(f".{plan.staging.name}.gone")
    left.mkdir(parents=True)
    (left / "half").write_text("")
    publisher.push(plan)
    assert "model.safetensors" in publisher.hub.contents()
    assert "half" not in publisher.hub.contents()
    assert list(publisher.staging.iterdir()) == []


def test_a_repeated_call_does_not_merge_again(publisher: Publisher) -> None:
    def break_off() -> None:
        raise ConnectionError

    publisher.hub.on_commit = break_off
    plan = publisher.plan()
    with pytest.raises(ConnectionFailed, match="the Hub does not answer for me/tiny"):
        publisher.push(plan)
    assert (plan.staging / "model.safetensors").exists()

    publisher.hub.on_commit = lambda: None
    seen: list[tuple[int, int]] = []
    publisher.push(publisher.plan(), on_progress=lambda *done: seen.append(done))
    assert seen == []
    assert not plan.staging.exists()


def test_another_save_is_another_upload(publisher: Publisher) -> None:
    plan = publisher.plan()
    assert publisher.plan(options=MergeOptions("fp32")).staging != plan.staging
    record = publisher.run / "global_step_7/actor/cloudrl_save_world_size_2_rank_0.json"
    record.write_text("{}")
    os.utime(record, (2e9, 2e9))
    assert publisher.plan().staging == plan.staging, "what the agents write down later is no other save"
    write_step(publisher.run, 8)
    assert publisher.plan().staging != plan.staging


@pytest.mark.parametrize("repo", ["tiny", "/tiny", "me/", "a/b/c", ""])
def test_what_is_no_repository(publisher: Publisher, repo: str) -> None:
    with pytest.raises(InputError, match="is not a repository"):
        publisher.plan(repo)


# -- the card ----------------------------------------------------------------------------------------------------

KNOWN = Provenance(
    recipe="grpo",
    command="python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo 'x=a b' data.train_batch_size=512",
    base_model="Qwen/Qwen2.5-0.5B",
    data=("gsm8k", "math"),
    total_steps=100,
    metrics={"critic/score/mean": 0.123456, "val-core/gsm8k/acc": 0.7},
    metrics_step=60,
)


def test_a_card_with_all_that_is_known() -> None:
    card = model_card("my-model", 60, "bf16", KNOWN)
    header = yaml.safe_load(card.split("---")[1])
    assert header["base_model"] == "Qwen/Qwen2.5-0.5B"
    assert header["library_name"] == "transformers"
    for text in ("# my-model", "| Step | 60 of 100 |", "| Recipe | grpo |", "| Data | gsm8k, math |",
                 "## Metrics at step 60", "| `critic/score/mean` | 0.1235 |", "  'x=a b' \\"):  # fmt: skip
        assert text in card


def test_a_card_with_less() -> None:
    card = model_card("m", 3, "fp32", Provenance())
    assert "| Step | 3 |" in card
    assert not [word for word in ("base_model", "Metrics", "Recipe") if word in card]
    card = model_card("m", 3, "bf16", dataclasses.replace(KNOWN, base_model="tiny-qwen2"))
    assert "base_model:" not in card, "a folder's model does not belong to the Hub"
    assert "| Base model | tiny-qwen2 |" in card


def test_a_command_that_no_shell_can_read_is_left_out() -> None:
    known = dataclasses.replace(KNOWN, command="python t.py --api-key hunter2 # don't")
    assert "t.py" not in model_card("m", 3, "bf16", known)


@pytest.mark.parametrize(
    "given",
    [
        "wandb_token=hunter2",
        "--wandb-api-key hunter2",
        "'++env_vars={WANDB_API_KEY: hunter2}'",
        '\'{"api_key": "hunter2"}\'',
        "-c 'HF_TOKEN=hunter2 python t.py'",
        "HF_TOKEN=hunter2 # don't",
    ],
)
def test_no_secret_of_a_job_is_published(given: str) -> None:
    with FakeCluster() as cluster:
        cluster.add("x", b"", "SUCCEEDED", entrypoint=f"python3 t.py {given}", metadata={"job_name": "mine"})
        known = provenance(cluster.connection(), "mine", 3)
    assert "t.py" in (known.command or "")
    assert "hunter2" not in model_card("m", 3, "bf16", known)


LOG = b"""\
(TaskRunner pid=1) step:1 - critic/score/mean:0.1 - val-core/gsm8k/acc:0.2 - timing_s/step:2.0
(TaskRunner pid=1) step:2 - critic/score/mean:0.5 - perf/throughput:7.0 - timing_s/step:2.0
(TaskRunner pid=1) step:3 - critic/score/mean:0.9 - timing_s/step:2.0
"""


def test_what_the_cluster_says_of_a_step() -> None:
    with FakeCluster() as cluster:
        metadata = {"job_name": "mine", "cloudrl_recipe": "grpo", "cloudrl_total_steps": "3"}
        entrypoint = (
            "python3 -m verl actor_rollout_ref.model.path=/root/models/Qwen2.5 wandb_token=hunter2 "
            "data.train_files='[/root/data/gsm8k/train.parquet,/root/data/math/train.parquet]'"
        )
        cluster.add("old", b"", entrypoint="python3 -m other", metadata={"job_name": "mine"})
        cluster.add("new", LOG, "SUCCEEDED", entrypoint=entrypoint, metadata=metadata)
        cluster.add("other", b"", metadata={"job_name": "another"})
        known = provenance(cluster.connection(), "mine", 2)
        assert provenance(cluster.connection(), "unknown", 2) == Provenance()
    assert (known.recipe, known.base_model, known.data) == ("grpo", "Qwen2.5", ("gsm8k", "math"))
    assert (known.total_steps, known.metrics_step) == (3, 2)
    assert known.metrics == {"critic/score/mean": 0.5, "val-core/gsm8k/acc": 0.2}
    assert "hunter2" not in (known.command or "")


# -- the real client against a server of ours -----------------------------------------------------------------------


def test_older_weights_go_and_new_ones_are_spared(publisher: Publisher) -> None:
    hub = publisher.hub
    hub.files = [
        "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
        "pytorch_model.bin", "README.md", "picture.png", "adapter_config.json",
    ]  # fmt: skip
    publisher.push(publisher.plan("me/closed"))
    gone = {
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "adapter_config.json",
    }
    assert hub.paths("deletedFile").keys() == gone
    assert {"model.safetensors", "README.md"} <= hub.contents().keys()


def test_a_hub_that_refuses_is_told_before_anything_is_merged(publisher: Publisher) -> None:
    publisher.hub.is_read_only = True
    plan = publisher.plan()
    with pytest.raises(InputError, match="the Hub refuses me/tiny") as raised:
        publisher.push(plan)
    assert "hf auth login" in str(raised.value.hint)
    assert not plan.staging.exists()


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        (hf_xet.XetAuthenticationError("the token is expired"), InputError, "hf auth login"),
        (RuntimeError("Data processing error: the server hangs up"), ConnectionFailed, "the same command again"),
        (ConnectionResetError(104, "Connection reset by peer"), ConnectionFailed, "the same command again"),
    ],
)
def test_what_stops_an_upload_on_its_way(error: Exception, kind: type[CloudrlError], hint: str) -> None:
    """Also what hf_xet 1.8 raises: a kind of its own for a token, RuntimeError for the rest."""
    with pytest.raises(kind, match=re.escape(str(error))) as raised, own_errors("me/tiny"):
        raise error
    assert hint in str(raised.value.hint)


def test_a_file_of_ours_that_stops_an_upload() -> None:
    """huggingface_hub wraps what happens to one of several files."""
    with pytest.raises(InputError, match=r"^/s/model\.safetensors: Permission denied$"), own_errors("me/tiny"):
        raise RuntimeError("Error while uploading") from PermissionError(
            13, "Permission denied", "/s/model.safetensors"
        )


def test_a_hub_that_is_not_there(publisher: Publisher) -> None:
    publisher.api = HfApi("http://127.0.0.1:9", "hf_x")
    with pytest.raises(ConnectionFailed, match="the Hub does not answer for me/tiny"):
        publisher.push(publisher.plan())


# -- weights that a Hub wants as LFS objects ------------------------------------------------------------------------

PUSH = """
import sys
from pathlib import Path
from huggingface_hub import HfApi
from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.publishing import own_errors
from cloudrl.checkpoints.push import plan_push, push
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import CloudrlError
_, url, run, staging = sys.argv
try:
    plan = plan_push(Checkpoints(LocalSource(Path(run))).latest(), "me/closed", Path(staging))
    push(plan, api=HfApi(url, "hf_x"))
except CloudrlError as error:
    sys.exit(error.message)
"""


def pushed(publisher: Publisher) -> subprocess.CompletedProcess[str]:
    """In a Python of its own, without Xet, whose storage has no open protocol; the Hub takes LFS as well."""
    return subprocess.run(
        [sys.executable, "-c", PUSH, publisher.hub.url, publisher.run, publisher.staging],
        env={**os.environ, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_what_has_arrived_is_not_sent_again(publisher: Publisher, tmp_path: Path) -> None:
    server = publisher.hub
    publisher.latest.merge(tmp_path / "model")
    names = ("model.safetensors", "tokenizer.json")
    model, arrived = (hashlib.sha256((tmp_path / "model" / name).read_bytes()).hexdigest() for name in names)

    server.refuses, server.lfs = {model}, set(names)
    failed = pushed(publisher)
    assert (failed.returncode, server.committed) == (1, []), failed.stderr
    assert "the Hub refuses me/closed" in failed.stderr

    server.refuses = set()
    assert server.objects.keys() == {arrived}
    server.sent.clear()
    done = pushed(publisher)
    assert done.returncode == 0, done.stderr
    assert server.sent == [model]
    assert server.paths("lfsFile") == {"model.safetensors": model, "tokenizer.json": arrived}
    assert server.contents().keys() == {"README.md", "config.json"}
