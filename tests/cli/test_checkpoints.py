"""`cloudrl checkpoints`, as it is typed: on a folder, and on a cluster of two nodes."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_hub import FakeHub
from fake_local import FakeLocal
from megatron_files import expected, extracted
from shard_files import read_safetensors
from small_step import tree, write_step
from typed_command import Run

from cloudrl.cli._terminal import Terminal
from cloudrl.protocol.durable_jobs import Attempt, DurableJob, Outcome, Result, Score, Verdict
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import BudgetStatus, ClusterStatus
from cloudrl.sdk.callbacks import Transfer
from cloudrl.sdk.costs import counted_dollars
from cloudrl.sdk.progress_lines import TransferPace
from cloudrl.units import size_text

pytestmark = pytest.mark.io

SHARD = "actor/model_world_size_2_rank_1.pt"


@pytest.fixture
def folder(home: Path) -> Path:
    """A folder of this machine with steps 1 and 2 of a run; `./ck` for whoever types."""
    folder = home.parent / "here" / "ck"
    for number in (1, 2):
        write_step(folder / "mine", number)
    return folder


@pytest.fixture
def lab(home: Path, tmp_path: Path) -> Iterator[FakeLocal]:
    """A cluster with the same two steps, each rank on the disk of its node."""
    for number in (1, 2):
        write_step(tmp_path / "whole" / "mine", number)
    with FakeLocal("lab") as fake:
        fake.cluster.hold_run(tmp_path / "whole" / "mine", tmp_path, driver=1)
        yield fake


# -- list --------------------------------------------------------------------------------------------------------


def test_list_a_folder(run: Run, folder: Path) -> None:
    listed = run("checkpoints", "list", "--dir", "./ck").ended(0)
    head, one, two = listed.out.splitlines()
    assert head.split() == ["run", "step", "role", "ranks", "where", "size", "age", "state"]
    assert one.split()[:7] == ["mine", "1", "actor", "2", "of", "2", "0-1"]
    assert one.endswith("complete")
    assert two.endswith("complete; resume point")


@pytest.mark.parametrize("keep", [0, 5000])
def test_a_shard_that_is_cut(run: Run, folder: Path, keep: int) -> None:
    shard = folder / "mine" / "global_step_2" / SHARD
    date = shard.stat()
    os.truncate(shard, keep)
    os.utime(shard, ns=(date.st_atime_ns, date.st_mtime_ns))
    why = "is cut: its end is missing after 5.0 kB, and another rank's has 11.5 kB" if keep else "is empty"
    listed = run("checkpoints", "list", "--dir", "./ck").ended(0)
    assert listed.out.splitlines()[1].endswith("complete")
    assert listed.out.splitlines()[2].endswith(f"{shard.name} {why}; resume point")
    assert f"note: mine, step 2, actor is not whole, and verl's tracker names it: {shard.name} {why}. " in listed.err
    assert "step 1 is complete" in listed.err
    two = json.loads(run("checkpoints", "list", "--dir", "./ck", "--json").out)["checkpoints"][1]
    assert (two["complete"], two["missing"], two["damaged"]) == (False, [], {shard.name: why})
    pruned = run("checkpoints", "prune", "--dir", "./ck", "--keep-last", "1", "--yes").ended(0)
    assert pruned.out == "removed 0 steps, 0 B\n"
    assert f"step 2 does not count as kept: of its actor {shard.name} {why}" in pruned.err
    assert "step 1 of run mine" in run("checkpoints", "merge", "--dir", "./ck", "--to", "model").ended(0).out
    run("checkpoints", "merge", "2", "--dir", "./ck", "--to", "other").ended(6)
    run("checkpoints", "pull", "2", "--dir", "./ck", "--to", "other").ended(6, "Is a job saving it? Wait for it")


def test_a_name_does_not_steer_the_terminal(run: Run, folder: Path) -> None:
    """Of a run, which anybody may have named who shares the disk."""
    evil = "\x1b[2J\x1b]0;owned\x07\nerror: all is lost\u202e"
    (folder / "mine").rename(folder / evil)
    shutil.rmtree(folder / evil / "global_step_1")
    (folder / evil / "global_step_2" / "data.pt").unlink()
    (folder / evil / "latest_checkpointed_iteration.txt").unlink()
    said = [run("checkpoints", "list", "--dir", "./ck").ended(0)]
    said.append(run("checkpoints", "merge", "2", "--dir", "./ck", "--to", "out").ended(0))
    said.append(run("checkpoints", "verify", "2", "--dir", "./ck").ended(0))
    (folder / evil / "global_step_2" / SHARD).write_bytes(b"x")
    said.append(run("checkpoints", "verify", "2", "--dir", "./ck").ended(6))
    for each in said:
        assert r"\x1b[2J\x1b]0;owned\x07" in each.out + each.err
        assert not any(code in each.out + each.err for code in "\x1b\x07\u202e")
        assert not any(line.startswith("error: all is lost") for line in (each.out + each.err).splitlines())


def test_megatrons_need_the_base_model(run: Run, home: Path) -> None:
    here = home.parent / "here"
    extracted("qwen2-tied-stages", here / "ck")
    listed = run("checkpoints", "list", "--dir", "ck").ended(0)
    assert listed.out.splitlines()[1].split()[:5] == [".", "1", "actor", "Megatron", "0-1"]
    run("checkpoints", "verify", "--dir", "ck").ended(0)
    refused = run("checkpoints", "merge", "--dir", "ck", "--to", "model").ended(6)
    assert "--base MODEL" in refused.err
    run("checkpoints", "merge", "--dir", "ck", "--to", "model", "--base", "ck", "--dtype", "keep").ended(0)
    assert read_safetensors(here / "model") == expected(here / "ck")


def test_list_a_cluster(run: Run, lab: FakeLocal) -> None:
    for words in ((), ("-c", "lab")):
        listed = run("checkpoints", "list", *words)
        assert "0 on node 0; 1 on node 1" in listed.out.splitlines()[2]
        assert "complete; resume point" in listed.out


def test_of_several_clusters_one_has_to_be_named_to_remove_steps(run: Run, lab: FakeLocal) -> None:
    with FakeLocal("a1"):
        words = ("checkpoints", "prune", "--keep-last", "1", "-y")
        run(*words).ended(2, "there are several clusters: a1, lab", "Choose one: --cluster a1\n")
        assert "complete; resume point" in run("checkpoints", "list", "-c", "lab").out


def test_an_unsound_step_of_a_cluster_hints_at_the_others_there(run: Run, lab: FakeLocal) -> None:
    (lab.cluster.disks[1] / "mine/global_step_2" / SHARD).write_bytes(b"x")
    run("checkpoints", "verify", "2", "--cluster", "lab").ended(
        6, "Other steps: cloudrl checkpoints list --cluster lab\n"
    )


def test_list_as_json(run: Run, lab: FakeLocal) -> None:
    said = json.loads(run("checkpoints", "list", "--json").out)
    one, two = said["checkpoints"]
    assert (one["step"], one["ranks"], one["complete"], one["resumes"]) == (1, [0, 1], True, False)
    assert two["places"] == {
        f"node {rank} (10.0.0.{rank + 1})": {
            "folder": str(lab.cluster.disks[rank]), "nodes": [rank], "ranks": [rank]
        }
        for rank in range(2)
    }  # fmt: skip
    assert (two["resumes"], said["notes"]) == (True, [])


def test_a_node_that_says_nothing(run: Run, lab: FakeLocal) -> None:
    del lab.cluster.disks[1]
    listed = run("checkpoints", "list")
    assert "note: node 1 (10.0.0.2) says nothing of its checkpoints" in listed.err
    assert "missing: rank 1" in listed.out
    merged = run("checkpoints", "merge", "--to", "out").ended(5)  # node 1 may have a later step
    assert merged.err.count("node 1 (10.0.0.2) says nothing of its checkpoints") == 1
    run("checkpoints", "merge", "2", "--to", "out").ended(6, "note: node 1 (10.0.0.2) says nothing of its checkpoints")
    run("checkpoints", "prune", "--keep-last", "1", "-y").ended(5, "half-removed")
    assert (lab.cluster.disks[0] / "mine/global_step_1").exists()


def test_nothing_there(run: Run, home: Path) -> None:
    os.mkdir("empty")
    assert "There are no checkpoints in empty" in run("checkpoints", "list", "--dir", "empty").err
    missing = run("checkpoints", "list", "--dir", "./missing")
    assert (missing.code, "missing cannot be read: No such file" in missing.err) == (2, True)
    run("checkpoints", "list").ended(2, "Or use a folder: --dir DIR")


# -- verify and merge --------------------------------------------------------------------------------------------


def test_verify(run: Run, folder: Path) -> None:
    sound = run("checkpoints", "verify", "2", "--dir", "./ck").ended(0)
    assert "intact      yes" in sound.out

    shard = folder / "mine" / "global_step_2" / SHARD
    content = bytearray(shard.read_bytes())
    content[content.index(b"data/0") + 120] ^= 1
    shard.write_bytes(content)
    rotten = run("checkpoints", "verify", "--dir", "./ck", "--json").ended(6)
    said = json.loads(rotten.out)
    assert not said["ok"]
    assert any(finding["fatal"] and finding["rank"] == 1 for finding in said["findings"])
    assert "Other steps: cloudrl checkpoints list --dir ck\n" in rotten.err
    assert run("checkpoints", "merge", "--dir", "./ck", "--to", "out").code == 6
    assert not os.path.exists("out")


def test_nodes_give_what_the_folder_gives(run: Run, lab: FakeLocal, tmp_path: Path) -> None:
    assert run("checkpoints", "merge", "2", "--dir", str(tmp_path / "whole"), "--to", "from-folder").code == 0
    merged = run("checkpoints", "merge", "--to", "from-nodes", "--json").ended(0)
    again = run("checkpoints", "merge", "--to", "once-more")
    assert again.out.endswith("step 2 of run mine\n")
    assert tree(tmp_path / "here" / "from-nodes") == tree(tmp_path / "here" / "from-folder")
    said = json.loads(merged.out)
    assert (said["step"], said["run"], said["dtype"]) == (2, "mine", "bf16")
    assert said["path"] == str(tmp_path / "here" / "from-nodes")
    assert "merging step 2: " in merged.err
    assert run("checkpoints", "verify").code == 0


def test_merge_waits_for_the_disk_if_asked(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    assert run("checkpoints", "merge", "--dir", "./ck", "--to", "out").code == 0
    assert synced == []
    assert run("checkpoints", "merge", "--dir", "./ck", "--to", "again", "--sync").code == 0
    assert len(synced) > 3


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--to", "ck"], 2, "exists already"),
        (["--to", "x", "--dtype", "int4"], 2, "int4"),
        (["9", "--to", "x"], 6, "there is no step 9 of the actor; its steps: 1, 2"),
        (["--to", "x", "--role", "critic"], 6, "no checkpoint of the critic"),
        (["--to", "x", "--name", "other"], 6, "of run 'other'; runs: mine"),
    ],
)
def test_bad_input_to_merge(run: Run, folder: Path, words: list[str], code: int, said: str) -> None:
    step = [words[0]] if words[0].isdecimal() else []
    run("checkpoints", "merge", *step, "--dir", "./ck", *words[len(step) :]).ended(code, said)
    assert not os.path.exists("x")


def test_merge_on_the_head_is_for_clusters_and_absolute_paths(run: Run, lab: FakeLocal, folder: Path) -> None:
    for words, said in (
        (("--dir", "./ck", "--to", "/x"), "there is no head"),
        (("-c", "lab", "--to", "x"), "is relative"),
        (("-c", "lab", "--to", "/x"), "no place where secrets of jobs can be"),
    ):
        assert said in run("checkpoints", "merge", *words, "--on-head").err
    assert lab.cluster.jobs == {}


# -- pull, prune, push -------------------------------------------------------------------------------------------


def test_pull(run: Run, lab: FakeLocal, tmp_path: Path) -> None:
    pulled = run("checkpoints", "pull", "--to", "here").ended(0)
    assert "here/global_step_2: 5 files, " in pulled.out
    shutil.rmtree(tmp_path / "whole" / "mine" / "global_step_1")
    assert tree(tmp_path / "here" / "here") == tree(tmp_path / "whole" / "mine")


def test_reshard(run: Run, lab: FakeLocal, folder: Path, tmp_path: Path) -> None:
    words = ("checkpoints", "reshard", "--world-size", "3", "--to")
    from_nodes = json.loads(run(*words, "nodes", "--cluster", "lab", "--json").ended(0).out)
    assert (from_nodes["step"], from_nodes["was"], from_nodes["world_size"]) == (2, 2, 3)
    done = run(*words, "folder", "--dir", str(folder)).ended(0)
    assert "folder/global_step_2: 6 files, " in done.out
    assert "from 2 to 3 ranks" in done.out
    assert tree(tmp_path / "here" / "folder") == tree(tmp_path / "here" / "nodes")
    again = run(*words, "folder", "--dir", str(folder)).ended(2)
    assert "exists already, and a reshard never writes into what is there" in again.err
    run("checkpoints", "verify", "--dir", "folder").ended(0)


def test_prune_asks(run: Run, folder: Path) -> None:
    run("checkpoints", "prune", "--keep-last", "1", "--dir", "./ck").ended(
        2, "mine: step 1, ", "Remove 1 step, ", "from folder ck?"
    )
    assert (folder / "mine" / "global_step_1").exists()


def test_prune_on_all_nodes(run: Run, lab: FakeLocal) -> None:
    done = run("checkpoints", "prune", "--keep-last", "1", "-y", "--json").ended(0)
    assert [(each["run"], each["step"]) for each in json.loads(done.out)["removed"]] == [("mine", 1)]
    left = {path.name for disk in lab.cluster.disks.values() for path in (disk / "mine").glob("global_step_*")}
    assert left == {"global_step_2"}
    assert "removed 0 steps" in run("checkpoints", "prune", "--keep-last", "1", "-y").out


def test_what_a_durable_job_keeps_for_good_is_listed_and_stays(run: Run, lab: FakeLocal) -> None:
    scores = (Score(1, 0.9375, 1), Score(2, 0.5, 2))
    kept = DurableJob("job", "mine", "", {}, 0.0, keep=1, keep_best="critic/score/mean", scores=scores)
    lab.cluster.durable_jobs["job"] = kept

    rows = run("checkpoints", "list").ended(0).out.splitlines()
    assert [("kept: best critic/score/mean 0.9375" in row) for row in rows if " actor " in row] == [True, False]
    assert json.loads(run("checkpoints", "list", "--json").out)["checkpoints"][0]["kept"]
    done = run("checkpoints", "prune", "--keep-last", "1", "-y").ended(0)
    assert "mine: step 1 stays: it is kept for good: best critic/score/mean 0.9375" in done.err
    assert "removed 0 steps" in done.out
    assert "removed 0 steps" in run("checkpoints", "prune", "--keep-last", "1", "--keep-every", "1", "-y").out
    best = run("checkpoints", "prune", "--keep-last", "1", "--keep-best", "critic/score/mean", "-y").ended(0)
    assert "removed 0 steps" in best.out
    unknown = run("checkpoints", "prune", "--keep-last", "1", "--keep-best", "val/loss", "-y").ended(2)
    assert "no durable job has recorded values of val/loss" in unknown.err
    assert "--keep-best critic/score/mean" in unknown.err
    assert "removed 1 step" in run("checkpoints", "prune", "--keep-last", "1", "--keep-every", "0", "-y").out


def test_a_later_job_of_the_run_takes_no_kept_step_away(run: Run, lab: FakeLocal) -> None:
    """Neither one that waits, nor one that has run with other options, here or on an earlier cluster."""
    scores = (Score(1, 0.9375, 1), Score(2, 0.5, 2))
    first = DurableJob("first", "mine", "", {}, 0.0, keep=1, keep_best="critic/score/mean", scores=scores)
    began = replace(first, attempts=(Attempt(1, "first", "c", 0, 0.0),))
    lab.cluster.durable_jobs["first"] = began
    lab.cluster.durable_jobs["next"] = replace(first, job_id="next", keep_best="min:critic/loss", scores=())
    for _ in range(2):
        shown = run("checkpoints", "prune", "--keep-last", "1", "-y").ended(0)
        assert "step 1 stays: it is kept for good: best critic/score/mean 0.9375" in shown.err
        again = replace(first, job_id="next", keep_best="", scores=(), attempts=(Attempt(1, "next", "c", 2, 9.0),))
        lab.cluster.durable_jobs["next"] = again


def test_the_story_of_a_job_of_an_earlier_cluster_on_the_same_volumes(run: Run, lab: FakeLocal) -> None:
    lost = Attempt(1, "night-1", "c", 0, 0.0, 60.0, Verdict.INFRASTRUCTURE, "the cluster was lost", saved_step=1)
    job = DurableJob("night-1", "mine", "another", {"metadata": {}}, 0.0, world_size=2, attempts=(lost,))
    lab.cluster.durable_jobs["night-1"] = left = replace(
        job, attempts=(lost, Attempt(2, "night-1-2", "c", 1, 70.0, step=2))
    )

    shown = run("jobs", "status", "night-1").ended(0)
    said = ("left with another cluster", "step 2 is whole", "infrastructure: the cluster was lost")
    assert all(text in shown.out for text in (*said, "unknown: its end is not recorded here")), shown.out
    assert "it goes on here: cloudrl jobs resume night-1 --cluster lab\n" in shown.err
    as_json = json.loads(run("jobs", "status", "night-1-2", "--json").ended(0).out)
    assert (as_json["submission_id"], as_json["step"], len(as_json["attempts"])) == ("night-1-2", 2, 2)
    assert run("jobs", "status", "night-2").ended(2).out == "", "no volume remembers it"

    ended = replace(left, run="gone", mirror="/mnt/runs", outcome=Outcome(Result.FAILED, "ValueError: mine", 90.0))
    lab.cluster.durable_jobs["night-1"] = ended
    failed = run("jobs", "status", "night-1").ended(4)
    assert "job night-1 failed: ValueError: mine" in failed.err
    assert "cloudrl jobs resume night-1 --cluster lab --mirror /mnt/runs" in failed.err
    lab.cluster.durable_jobs["night-1"] = replace(ended, outcome=Outcome(Result.SUCCEEDED, "", 90.0))
    assert "resume" not in run("jobs", "status", "night-1").ended(0).err


def test_a_durable_job_between_two_attempts_has_not_failed(run: Run, lab: FakeLocal) -> None:
    cluster = lab.cluster
    cluster.add("night", status="FAILED")
    lost = Attempt(1, "night", "c", 0, 0.0, 60.0, Verdict.INFRASTRUCTURE, "its driver was killed")
    waits_for = "attempt 1 ended: its driver was killed"
    job = DurableJob("night", "mine", "", {"metadata": {}}, 0.0, attempts=(lost,), waits_for=waits_for)
    cluster.durable_jobs["night"] = job
    assert f"its next attempt waits: {waits_for}" in run("jobs", "status", "night").ended(0).err
    cluster.durable_jobs["night"] = replace(job, outcome=Outcome(Result.FAILED, "no step in three attempts", 90.0))
    run("jobs", "status", "night").ended(4, "job night failed")


def test_what_a_running_job_resumes_from_stays(run: Run, lab: FakeLocal) -> None:
    folder = lab.cluster.disks[0] / "mine" / "global_step_1"
    lab.cluster.add("job", entrypoint=f"python3 -m verl trainer.resume_from_path={folder}")
    done = run("checkpoints", "prune", "--keep-last", "1", "-y")
    assert "step 1 stays: a job that has not ended names it" in done.err
    assert folder.exists()
    lab.cluster.end("job")
    run("checkpoints", "prune", "--keep-last", "1", "-y")
    assert not folder.exists()


def test_push_shows_its_card(run: Run, lab: FakeLocal, home: Path) -> None:
    lab.cluster.add("job", metadata={"job_name": "mine", "cloudrl_recipe": "grpo"})
    shown = run("checkpoints", "push", "--to", "me/tiny", "--dry-run").ended(0)
    assert "me/tiny (private, bf16)" in shown.out
    assert "| Recipe | grpo |" in shown.out
    assert not (home / "push").exists()


def test_megatrons_are_pushed_with_the_base_model(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import HfApi

    extracted("qwen2-tied-stages", home.parent / "here" / "ck")
    words = ("checkpoints", "push", "--dir", "ck", "--to", "me/tiny", "--base", "ck")
    assert "with config and tokenizer of ck\n" in run(*words, "--dry-run").ended(0).out
    with FakeHub() as hub:
        monkeypatch.setattr("huggingface_hub.HfApi", lambda: HfApi(hub.url, "hf_x"))
        assert run(*words).ended(0).out == f"{hub.url}/me/tiny\n"
        assert {"model.safetensors", "config.json", "README.md"} <= hub.contents().keys()


def test_a_cluster_that_is_down_has_left_a_folder(run: Run, home: Path) -> None:
    with FakeLocal("gone"):
        pass
    write_step(home / "clusters" / "gone" / "checkpoints" / "mine", 3)
    for name in ("gone", "local/gone"):
        assert "complete; resume point" in run("checkpoints", "list", "-c", name).out


# -- words and numbers -------------------------------------------------------------------------------------------


def test_pace() -> None:
    now = [0.0]
    pace = TransferPace(0.0, lambda: now[0])

    def said(done_bytes: int, dollars: float | None = None) -> str:
        return pace.describe(Transfer("merging", done_bytes, 10**9, dollars))

    assert said(0) == "0 B of 1.0 GB"
    now[0] = 1.0
    assert said(10**8, 41.2) == "100 MB of 1.0 GB, 100 MB/s, 9 s left, $41.20 so far"
    for second in range(2, 30):
        now[0] = float(second)
        text = said(10**8 + second * 10**7)
    assert text == "390 MB of 1.0 GB, 10.0 MB/s, 1 min 01 s left"
    now[0] = 30.0
    assert re.fullmatch(r"1\.0 GB, .*/s, \$42\.00 so far", said(10**9, 42.0))


@pytest.mark.parametrize(
    ("cost", "per_hour", "dollars"), [(40.0, 100.0, 65.0), (None, 100.0, None), (None, None, None)]
)
def test_dollars_are_counted_on_from_one_look(
    cost: float | None, per_hour: float | None, dollars: float | None
) -> None:
    now = [0.0]
    budget = BudgetStatus(cost=cost, price_per_hour=per_hour)
    status = ClusterStatus(ClusterFacts("gone", "id", "local", 2), Phase.READY, budget=budget)
    agent = SimpleNamespace(status=lambda: status)
    connection: Any = SimpleNamespace(name="gone", agent=lambda: agent)
    counted = counted_dollars(connection, clock=lambda: now[0])
    now[0] = 900.0
    assert counted() == dollars


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_500_000, "1.5 MB"), (15 * 10**12, "15.0 TB")]
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


def test_the_end_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal() as terminal:
        for done in (1, 5, 10, 10):
            terminal(Transfer("copying", done, 10))
    assert capsys.readouterr().err.splitlines() == ["copying: 10 B"]
