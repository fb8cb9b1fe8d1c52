"""The merge on the head: what is sent runs under a Python that has numpy and nothing else."""

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from fake_clock import Clock
from fake_hub import FakeHub
from huggingface_hub import HfApi
from lora_step import write_lora_step
from megatron_files import expected, extracted
from running_head import Head
from shard_files import read_safetensors
from small_step import tree, write_step

from cloudrl.checkpoints.handle import CheckpointHandle, Checkpoints
from cloudrl.checkpoints.head_side import HeadSource
from cloudrl.checkpoints.publishing import Publication
from cloudrl.checkpoints.push import plan_push
from cloudrl.checkpoints.remote_merge import merge_on_head, push_on_head
from cloudrl.checkpoints.remote_merge_main import TOKEN, HeadMerge, _find, _send
from cloudrl.checkpoints.sources import ClusterSource, LocalSource
from cloudrl.errors import CheckpointError, ConnectionFailed, Interrupted, JobFailed
from cloudrl.options.merge import MergeOptions
from cloudrl.protocol.backoff import Backoff

pytestmark = pytest.mark.io


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    write_step(tmp_path / "whole" / "mine", 7)
    with Head(tmp_path) as head:
        head.hold_run(tmp_path / "whole" / "mine", tmp_path)
        yield head


def latest(head: Head, backoff: Backoff | None = None) -> CheckpointHandle:
    return Checkpoints(ClusterSource(head.connection(), backoff)).latest()


def test_the_same_model_as_here(head: Head, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    done = merge_on_head(latest(head), str(tmp_path / "out"), on_progress=lambda *at: seen.append(at))
    Checkpoints(LocalSource(tmp_path / "whole")).latest().merge(tmp_path / "here")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    assert done.path == tmp_path / "out"
    assert done.parameters > 100
    assert seen[-1][0] == seen[-1][1] > 0


def test_ctrl_c_says_which_job_goes_on(head: Head, tmp_path: Path) -> None:
    def press(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"the merge goes on as job merge-7-\w+") as caught:
        merge_on_head(latest(head), str(tmp_path / "out"), on_progress=press)
    [job] = head.jobs
    assert (caught.value.hint or "").splitlines()[1].endswith(f"/{job}")


def test_it_waits_for_the_disk_if_asked(head: Head, tmp_path: Path) -> None:
    merge_on_head(latest(head), str(tmp_path / "out"), MergeOptions(sync=True))
    merge_on_head(latest(head), str(tmp_path / "again"))
    one, other = (json.loads(shlex.split(job.body["entrypoint"])[-1]) for job in head.jobs.values())
    assert (one["path"], one["options"]) == (f"{tmp_path}/out", asdict(MergeOptions(sync=True)))
    assert (other["world_size"], other["path"], other["options"]["sync"]) == (2, f"{tmp_path}/again", False)
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_what_is_made_of_an_adapter_is_said_there(head: Head, tmp_path: Path) -> None:
    """The image's numpy adds it, as ours does here."""
    write_lora_step(tmp_path / "lora", 3)
    head.hold_run(tmp_path / "lora", tmp_path)
    for lora in ("merge", "adapter"):
        merge_on_head(latest(head), str(tmp_path / lora), MergeOptions(lora=lora))
        Checkpoints(LocalSource(tmp_path / "lora")).latest().merge(tmp_path / f"{lora}-here", lora=lora)
        assert tree(tmp_path / lora) == tree(tmp_path / f"{lora}-here")


def test_its_own_shards_are_read_from_its_own_disk(head: Head, tmp_path: Path) -> None:
    checkpoint = latest(head)
    head.requests.clear()
    merge_on_head(checkpoint, str(tmp_path / "out"))
    read = {path for _, path in head.requests if path.endswith(".pt")}
    assert read == {"/v1/nodes/1/checkpoints/mine/global_step_7/actor/model_world_size_2_rank_1.pt"}


def test_megatrons_with_a_base_of_the_head(tmp_path: Path) -> None:
    run = tmp_path / "whole" / "mine"
    extracted("qwen2-tied-stages", run)
    with Head(tmp_path) as head:
        head.hold_run(run, tmp_path)
        merge_on_head(latest(head), str(tmp_path / "out"), MergeOptions("keep", base=str(run)))
        with pytest.raises(CheckpointError, match=r"on the head: .*/missing is not a folder"):
            merge_on_head(latest(head), str(tmp_path / "other"), MergeOptions(base=str(tmp_path / "missing")))
    assert read_safetensors(tmp_path / "out") == expected(run)


def test_the_token_is_a_secret(head: Head, tmp_path: Path) -> None:
    merge_on_head(latest(head), str(tmp_path / "out"))
    ((submission_id, job),) = head.jobs.items()
    assert head.secrets == {submission_id: {TOKEN: head.token}}
    assert str(head.token) not in str(job.body)
    assert all(str(head.token).encode() not in content for content in head.packages.values())


def test_what_fails_there_is_told_here(head: Head, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match=r"on the head: .*exists already"):
        merge_on_head(latest(head), str(tmp_path / "out"))


def test_a_job_that_dies(head: Head, tmp_path: Path) -> None:
    head.on_submit = lambda submission_id: head.end(submission_id, "FAILED", "killed")
    with pytest.raises(JobFailed, match="killed"):
        merge_on_head(latest(head), str(tmp_path / "out"))
    head.on_submit = head.end
    with pytest.raises(JobFailed, match="says nothing of its result"):
        merge_on_head(latest(head), str(tmp_path / "out"))


def test_a_step_that_has_gone_meanwhile(head: Head, tmp_path: Path) -> None:
    checkpoint = latest(head)
    for disk in head.disks.values():
        shutil.rmtree(disk / "mine")
    with pytest.raises(CheckpointError, match="on the head: step 7 of mine is not there any more"):
        merge_on_head(checkpoint, str(tmp_path / "out"))


WANTED = HeadMerge("", "mine", 7, "actor", 2, "/out", MergeOptions("bf16"), give_up_s=60.0)


def test_a_node_that_is_silent_for_a_moment_is_waited_for(head: Head, clock: Clock) -> None:
    """Else an older copy on another node would be merged in its place."""
    source, away = HeadSource(head.agent_url, head.token, 600.0, sleep=clock.sleep), head.disks.pop(1)
    clock.on_sleep = lambda: head.disks.update({1: away}) if len(clock.slept) == 2 else None
    assert _find(source, WANTED).ranks == (0, 1)
    assert len(clock.slept) == 2


def test_a_node_that_stays_silent_is_not_passed_over(head: Head) -> None:
    del head.disks[1]
    with pytest.raises(ConnectionFailed, match="it may have newer files of this step"):
        _find(HeadSource(head.agent_url, head.token, 0.0), WANTED)


def test_the_head_waits_as_long_as_was_asked_for(head: Head, tmp_path: Path) -> None:
    checkpoint = latest(head, Backoff(give_up_s=0.0))
    del head.disks[1]
    with pytest.raises(CheckpointError, match=r"on the head: .* it may have newer files of this step"):
        merge_on_head(checkpoint, str(tmp_path / "out"))


class Publishing(Head):
    """A head whose image has huggingface_hub, towards a stand-in for the Hub."""

    packages_of_the_image = tuple(path for path in sys.path if path.endswith("site-packages"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


class TestPublishing:
    @pytest.fixture
    def publisher(self, tmp_path: Path) -> Iterator[Publishing]:
        write_step(tmp_path / "whole" / "mine", 7)
        with Publishing(tmp_path) as head:
            head.hold_run(tmp_path / "whole" / "mine", tmp_path)
            head.status["facts"]["checkpoint_dir"] = str(tmp_path / "volume")
            yield head

    def test_the_model_leaves_from_the_head(self, publisher: Publishing, hub: FakeHub, tmp_path: Path) -> None:
        plan = plan_push(latest(publisher), "me/tiny", tmp_path / "here")
        said: list[str] = []
        merged_bytes, sent_bytes = list[tuple[int, int]](), list[tuple[int, int]]()
        url = push_on_head(
            plan, token="hf_x", on_note=said.append,
            on_progress=lambda *at: merged_bytes.append(at), on_upload=lambda *at: sent_bytes.append(at),
        )  # fmt: skip
        assert url == f"{hub.url}/me/tiny"
        plan.checkpoint.merge(tmp_path / "model")
        merged = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
        assert hub.contents() == {**merged, "README.md": plan.card.encode()}
        assert not (tmp_path / "here").exists(), "nothing comes to this machine"
        assert list((tmp_path / "volume/.cloudrl/push").iterdir()) == []
        assert said[0].startswith("uploading ")
        assert merged_bytes[-1][0] == merged_bytes[-1][1] > 0
        size_bytes = sum(map(len, hub.contents().values()))
        assert sent_bytes[-1] == (size_bytes, size_bytes)
        [job] = publisher.jobs.values()
        assert "hf_x" not in json.dumps(job.body)
        assert job.body["metadata"]["cloudrl_recipe"] == "push"

    def test_the_token_goes_to_its_own_hub(
        self, publisher: Publishing, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A cluster may download from a mirror, or not at all."""
        publisher.variables_of_the_cluster = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}
        monkeypatch.delenv("HF_ENDPOINT")
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        plan = plan_push(latest(publisher), "me/tiny", tmp_path / "here")
        assert push_on_head(plan, token="hf_x") == f"{hub.url}/me/tiny"

    def test_what_was_merged_is_uploaded_as_it_is(self, publisher: Publishing, hub: FakeHub, tmp_path: Path) -> None:
        plan = plan_push(latest(publisher), "me/tiny", tmp_path / "here")
        staging = tmp_path / "volume/.cloudrl/push" / plan.staging.name
        staging.mkdir(parents=True)
        (staging / "config.json").write_text("{}")
        push_on_head(plan, token="hf_x")
        assert hub.contents() == {"config.json": b"{}", "README.md": plan.card.encode()}

    @pytest.mark.parametrize("failures", [2, 9])
    def test_a_hub_that_is_away_for_a_moment_is_waited_for(
        self, hub: FakeHub, tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str], failures: int
    ) -> None:
        """At the end of a run at night no user types the command again."""
        left = [ConnectionError("no")] * failures

        def refuse() -> None:
            if left:
                raise left.pop()

        hub.on_commit = refuse
        (tmp_path / "config.json").write_text("{}")
        wanted = Publication("me/tiny", private=True, card="", message="step 7"), tmp_path, HfApi(hub.url, "hf_x")
        if failures == 2:
            _send(*wanted, sleep=clock.sleep)
            assert hub.contents() == {"config.json": b"{}"}
        else:
            with pytest.raises(ConnectionFailed, match="the Hub does not answer"):
                _send(*wanted, sleep=clock.sleep)
            assert f"the merged model stays in {tmp_path} of the head" in capsys.readouterr().out
        assert clock.slept == [10, 30, 60, 120][:failures]

    def test_a_job_that_is_at_work_is_followed(self, publisher: Publishing, hub: FakeHub, tmp_path: Path) -> None:
        plan = plan_push(latest(publisher), "me/tiny", tmp_path / "here")
        push_on_head(plan, token="hf_x")
        [job] = publisher.jobs.values()
        publisher.add("push-7-other", status="RUNNING", metadata=job.body["metadata"])
        publisher.write("push-7-other", b'cloudrl-merge {"published": "https://hub/me/tiny"}\n')
        said: list[str] = []

        def note(sentence: str) -> None:
            said.append(sentence)
            publisher.end("push-7-other", "SUCCEEDED", "")

        before = len(publisher.jobs)
        assert push_on_head(plan, token="hf_x", on_note=note) == "https://hub/me/tiny"
        assert len(publisher.jobs) == before
        assert said == ["job push-7-other is publishing it already"]

    def test_the_hub_refuses_before_anything_is_merged(
        self, publisher: Publishing, hub: FakeHub, tmp_path: Path
    ) -> None:
        plan = plan_push(latest(publisher), "me/open", tmp_path / "here")
        with pytest.raises((CheckpointError, JobFailed), match="exists and is PUBLIC"):
            push_on_head(plan, token="hf_x")
        assert not (tmp_path / "volume").exists()
