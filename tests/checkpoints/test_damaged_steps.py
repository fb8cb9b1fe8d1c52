"""A step with a damaged file is not a complete one: for `list`, `latest`, `prune` and a resume, here and on nodes."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from megatron_files import extracted
from node_inventories import KINDS
from small_step import as_sft, smallest_zip, write_step

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import CheckpointError
from cloudrl.node.save_recorder import SaveRecorder
from cloudrl.protocol.report import NodeReport
from cloudrl.saves.aggregate import aggregate
from cloudrl.saves.inventory import Inventory
from cloudrl.saves.prune import plan_prune
from cloudrl.saves.resume import Ranks, plan_resume
from cloudrl.saves.scan import scan
from cloudrl.saves.wholeness import Inspector

ACTOR = "global_step_20/actor"
RANK_1 = "model_world_size_2_rank_1.pt"
Change = Callable[[Path], None]


def write_run(run: Path, *steps: int) -> Path:
    """Steps of real shards, with optimizers that end as torch files do; the tracker names the last."""
    for step in steps:
        actor = write_step(run, step) / "actor"
        for kind in KINDS[1:]:
            for rank in range(2):
                (actor / f"{kind}_world_size_2_rank_{rank}.pt").write_bytes(smallest_zip())
        (actor / "fsdp_config.json").write_text("{}")
    return run


def cut(name: str, keep: float = 0.5) -> Change:
    """Keep so much of a file, and its date, as a node does that loses power soon after a save."""

    def change(run: Path) -> None:
        path = run / name
        info = path.stat()
        os.truncate(path, int(info.st_size * keep))
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))

    return change


def all_of(*changes: Change) -> Change:
    def change(run: Path) -> None:
        for each in changes:
            each(run)

    return change


def with_critic(damage: Change = lambda _: None) -> Change:
    def change(run: Path) -> None:
        for step in (10, 20):
            shutil.copytree(run / f"global_step_{step}/actor", run / f"global_step_{step}/critic")
        damage(run)

    return change


def with_leftover(run: Path) -> None:
    """Of an attempt with four ranks, cut; the step of two ranks is whole."""
    for rank in range(4):
        (run / ACTOR / f"model_world_size_4_rank_{rank}.pt").write_bytes(b"")


def tracker(text: str) -> Change:
    def change(run: Path) -> None:
        (run / "latest_checkpointed_iteration.txt").write_text(text)

    return change


def as_links(run: Path) -> None:
    """The files of step 20 are links into another folder, as in a Hub cache."""
    blobs = run.parent / "blobs"
    blobs.mkdir()
    for file in (run / ACTOR).glob("*.pt"):
        file.rename(blobs / file.name)
        file.symlink_to(blobs / file.name)


def foreign(run: Path) -> None:
    for name in ("notes.json", "mine.pt", "backup/model_world_size_2_rank_0.pt"):
        (run / ACTOR / name).parent.mkdir(exist_ok=True)
        (run / ACTOR / name).write_bytes(b"")


BROKEN: dict[str, tuple[Change, str]] = {
    "an empty model shard": (cut(f"{ACTOR}/{RANK_1}", 0), f"{RANK_1} is empty"),
    "a model shard that is cut": (
        cut(f"{ACTOR}/{RANK_1}"),
        f"{RANK_1} is cut: its end is missing after 5.8 kB, and another rank's has 11.5 kB",
    ),
    "a model shard without its last byte": (cut(f"{ACTOR}/{RANK_1}", 0.9999), f"{RANK_1} is cut"),
    "all shards empty": (
        all_of(*(cut(f"{ACTOR}/{kind}_world_size_2_rank_{rank}.pt", 0) for kind in KINDS for rank in (0, 1))),
        "rank_1.pt is empty; model_world_size_2_rank_0.pt is empty; 3 more files are damaged",
    ),
    "an empty optimizer": (cut(f"{ACTOR}/optim_world_size_2_rank_0.pt", 0), "optim_world_size_2_rank_0.pt is empty"),
    "a cut optimizer": (cut(f"{ACTOR}/optim_world_size_2_rank_0.pt"), "optim_world_size_2_rank_0.pt is cut"),
    "a cut extra state": (cut(f"{ACTOR}/extra_state_world_size_2_rank_1.pt"), "extra_state_world_size_2_rank_1.pt is"),
    "an empty config": (cut(f"{ACTOR}/huggingface/config.json", 0), "huggingface/config.json is empty"),
    "a cut config": (cut(f"{ACTOR}/huggingface/config.json"), "huggingface/config.json is not a JSON object"),
    "an empty tokenizer": (cut(f"{ACTOR}/huggingface/tokenizer.json", 0), "huggingface/tokenizer.json is empty"),
    "an empty data.pt": (cut("global_step_20/data.pt", 0), "data.pt is empty"),
    "a damaged critic": (with_critic(cut(f"global_step_20/critic/{RANK_1}")), f"{RANK_1} is cut"),
    "an empty shard and no tracker": (
        all_of(cut(f"{ACTOR}/{RANK_1}", 0), lambda run: (run / "latest_checkpointed_iteration.txt").unlink()),
        f"{RANK_1} is empty",
    ),
    "an empty shard, tracker behind": (all_of(cut(f"{ACTOR}/{RANK_1}", 0), tracker("10")), f"{RANK_1} is empty"),
    "an empty shard, tracker ahead": (all_of(cut(f"{ACTOR}/{RANK_1}", 0), tracker("30")), f"{RANK_1} is empty"),
    "an empty shard and an empty tracker": (all_of(cut(f"{ACTOR}/{RANK_1}", 0), tracker("")), f"{RANK_1} is empty"),
    "a cut shard behind a link": (all_of(as_links, cut(f"{ACTOR}/{RANK_1}")), f"{RANK_1} is cut"),
    "leftovers of another world size, empty": (with_leftover, "model_world_size_4_rank_0.pt is empty"),
}
WHOLE: dict[str, Change] = {
    "nothing": lambda _: None,
    "with a critic": with_critic(),
    "behind links": as_links,
    "empty files of the user": foreign,
    "a later attempt that is cut": all_of(
        lambda run: write_run(run, 30) and None, cut("global_step_30/actor/" + RANK_1, 0), tracker("20")
    ),
    "tracker behind": tracker("10"),
}


def check(found: Inventory, expected: int, said: str) -> None:
    """The step that `latest`, a resume and `prune` take."""
    chosen = found.select()
    assert chosen.step == expected
    if said:
        twentieth = [each for each in found.checkpoints if each.step == 20]
        assert not all(each.complete for each in twentieth)
        assert said in "; ".join(each.shortfall for each in twentieth)
        assert any("step 20" in note and said in note and "step 10 is complete" in note for note in found.notes)


OF_RL = ("critic", "link", "data.pt")
LAYOUTS = [(case, layout) for case in BROKEN for layout in ("rl", "sft")]


@pytest.mark.parametrize(
    ("case", "layout"), [each for each in LAYOUTS if each[1] == "rl" or not any(word in each[0] for word in OF_RL)]
)
def test_a_damaged_step_is_not_the_one_that_stays(tmp_path: Path, case: str, layout: str) -> None:
    change, said = BROKEN[case]
    run = write_run(tmp_path / "run", 10, 20)
    change(run)
    if layout == "sft":
        for step in (10, 20):
            as_sft(run / f"global_step_{step}")
    source = LocalSource(run)
    found = source.inventory()
    if "critic" not in case and "world size" not in case:
        check(found, 10, said)
    pruning = plan_prune(found, 1)
    assert pruning.removals == ()
    assert any(said in note and "step 20 does not count" in note for note in pruning.notes)
    model = Checkpoints(source).select(10).merge(tmp_path / "model")
    assert model.tensors > 0


@pytest.mark.parametrize("case", WHOLE)
def test_a_whole_step_stays(tmp_path: Path, case: str) -> None:
    run = write_run(tmp_path / "run", 5, 10, 20)
    WHOLE[case](run)
    found = LocalSource(run).inventory()
    gone = [each.step for each in plan_prune(found, 1).removals]
    assert gone == ([5] if case == "tracker behind" else [5, 10])
    assert all(each.complete for each in found.checkpoints if each.step == 20)


def test_without_any_whole_step_nothing_goes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 10, 20)
    for step in (10, 20):
        cut(f"global_step_{step}/actor/{RANK_1}")(run)
    found = LocalSource(run).inventory()
    assert plan_prune(found, 1).removals == ()
    with pytest.raises(CheckpointError, match=f"no checkpoint is complete; step 20, actor: {RANK_1} is cut"):
        found.select()
    assert any("no step of the run is complete" in note for note in found.notes)


def test_the_step_from_which_a_resumed_run_goes_on_stays(tmp_path: Path) -> None:
    """Steps 10, 20 and 30 of an attempt; the next one went on from 10, and its step 20 is cut."""
    run = write_run(tmp_path / "run", 10, 30, 20)
    for step, at in ((10, 1000.0), (30, 3000.0), (20, 5000.0)):
        for path in (run / f"global_step_{step}").rglob("*"):
            os.utime(path, (at, at))
    os.utime(run / "latest_checkpointed_iteration.txt", (5001.0, 5001.0))
    found = LocalSource(run).inventory()
    assert (found.select().step, [each.step for each in plan_prune(found, 1).removals]) == (20, [10])
    cut(f"{ACTOR}/{RANK_1}")(run)
    found = LocalSource(run).inventory()
    assert (found.select().step, resumed(on_a_node(tmp_path, Inspector()))[0]) == (10, 10)
    pruning = plan_prune(found, 1)
    assert [each.step for each in pruning.removals] == []
    assert any("step 10 stays: a job would go on from it" in note for note in pruning.notes)


def test_a_step_that_is_being_saved_is_not_called_damaged(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 10, 20)
    tracker("10")(run)
    (run / "global_step_20" / "data.pt").unlink()
    cut(f"{ACTOR}/{RANK_1}")(run)
    found = LocalSource(run).inventory()
    assert found.checkpoints[-1].shortfall == "lacks the end of its saving"
    assert found.notes == plan_prune(found, 1).notes == ()
    assert found.select().step == 10


def test_leftovers_of_another_world_size_keep_no_job_waiting(tmp_path: Path) -> None:
    with_leftover(write_run(tmp_path / "run", 10, 20))
    assert resumed(on_a_node(tmp_path, Inspector()))[0] == 20


def on_a_node(disk: Path, inspector: Inspector | None) -> Inventory:
    place = {"root": "checkpoints", "folder": "/checkpoints", "identity": "", "markers": [], "marker": ""}
    return aggregate([(NodeReport(0, "10.0.0.1"), {"locations": [{**place, "runs": scan(disk, inspector=inspector)}]})])


def resumed(found: Inventory) -> tuple[int, tuple[str, ...]]:
    plan = plan_resume(found, "run", ranks=Ranks(2, 1, {0: "10.0.0.1"}), checkpoint_dir="/checkpoints", cluster="lab")
    assert plan is not None
    return plan.step, plan.notes


@pytest.mark.parametrize("case", [case for case in BROKEN if "link" not in case and "leftovers" not in case])
def test_a_job_goes_on_from_a_whole_step(tmp_path: Path, case: str) -> None:
    change, _ = BROKEN[case]
    run = write_run(tmp_path / "run", 10, 20)
    change(run)
    if case == "an empty shard, tracker behind":
        tracker("20")(run)
    step, notes = resumed(on_a_node(tmp_path, Inspector()))
    assert step == 10
    if "tracker" not in case:
        assert any(note.startswith("step 20: ") and note.endswith("so it was not taken") for note in notes)


def test_the_only_step_is_taken_with_a_damaged_config(tmp_path: Path) -> None:
    """A resume does not read it."""
    run = write_run(tmp_path / "run", 20)
    cut(f"{ACTOR}/huggingface/config.json", 0)(run)
    step, notes = resumed(on_a_node(tmp_path, Inspector()))
    assert (step, notes) == (
        20, ("step 20: huggingface/config.json of the actor is empty, which a resume does not need",)
    )  # fmt: skip
    cut(f"{ACTOR}/{RANK_1}", 0)(run)
    with pytest.raises(CheckpointError, match=f"run 'run' cannot go on: step 20: {RANK_1} of the actor is empty"):
        resumed(on_a_node(tmp_path, Inspector()))


def test_agents_of_earlier_releases_look_into_no_file(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 10, 20)
    cut(f"{ACTOR}/{RANK_1}")(run)
    found = on_a_node(tmp_path, None)
    assert found.select().step == 20
    assert [each.step for each in plan_prune(found, 1).removals] == [10]


def recorded(disk: Path) -> SaveRecorder:
    recorder = SaveRecorder(disk, timer=lambda: 0.0)
    for _ in range(2):
        recorder.scan_once()
    return recorder


def test_the_size_is_that_of_the_record(tmp_path: Path) -> None:
    """Also where the agent does not look into files, as of an earlier release."""
    run = write_run(tmp_path / "run", 10, 20)
    recorded(tmp_path)
    cut(f"{ACTOR}/{RANK_1}")(run)
    found = on_a_node(tmp_path, None)
    assert found.checkpoints[-1].damaged == {RANK_1: "is cut: 5.8 of 11.5 kB"}
    assert (found.select().step, plan_prune(found, 1).removals, resumed(found)[0]) == (10, (), 10)


def test_a_record_that_was_withdrawn_is_a_doubt(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 10, 20)
    recorder = recorded(tmp_path)
    whole = (run / ACTOR / RANK_1).read_bytes()
    (run / ACTOR / RANK_1).write_bytes(smallest_zip())  # that ends as it should
    recorder.scan_once()
    found = on_a_node(tmp_path, Inspector())
    assert found.checkpoints[-1].missing == ("the record of rank 1, whose files changed after they were saved",)
    assert (found.select().step, plan_prune(found, 1).removals, resumed(found)[0]) == (10, (), 10)
    (run / ACTOR / RANK_1).write_bytes(whole)
    for _ in range(2):
        recorder.scan_once()
    found = on_a_node(tmp_path, Inspector())
    assert found.select().step == 20
    assert sorted(found.checkpoints[-1].records) == [0, 1]
    assert not list(run.rglob("cloudrl_withdrawn*"))


def test_a_cut_save_has_no_record_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 10, 20)
    recorder = recorded(tmp_path)
    cut(f"{ACTOR}/{RANK_1}")(run)
    for _ in range(3):
        recorder.scan_once()
    (name,) = [path.name for path in run.rglob("cloudrl_withdrawn*")]
    assert name == "cloudrl_withdrawn_world_size_2_rank_1"
    assert on_a_node(tmp_path, None).select().step == 10, "an agent of an earlier release lists the mark, too"


def test_of_two_copies_of_a_save_the_whole_one_counts(tmp_path: Path) -> None:
    for disk in ("a", "b"):
        write_run(tmp_path / disk / "run", 20)
    cut(f"{ACTOR}/{RANK_1}")(tmp_path / "a" / "run")
    for disk, at in (("a", 1005.0), ("b", 1000.0)):
        for path in (tmp_path / disk).rglob("*.*"):
            os.utime(path, (at, at))
    answers = []
    for rank, disk in enumerate(("a", "b")):
        place = {"root": "checkpoints", "folder": "/checkpoints", "identity": disk, "markers": [], "marker": ""}
        runs = scan(tmp_path / disk, inspector=Inspector())
        answers.append((NodeReport(rank, f"10.0.0.{rank}"), {"locations": [{**place, "runs": runs}]}))
    chosen = aggregate(answers).select()
    assert chosen.complete
    assert chosen.shards("model")[1].location.ranks == (1,)


MEGATRON = {
    "an empty part": (cut("model/dist_ckpt/__0_0.distcp", 0), "model/dist_ckpt/__0_0.distcp is empty"),
    "a cut part": (cut("model/dist_ckpt/__2_1.distcp"), "model/dist_ckpt/__2_1.distcp is cut"),
    "a part of another node": (
        lambda role: (role / "model/dist_ckpt/__3_0.distcp").unlink(), "lacks model/dist_ckpt/__3_0.distcp"
    ),
    "its metadata": (cut("model/dist_ckpt/.metadata"), "model/dist_ckpt/.metadata is cut"),
    "common.pt": (cut("model/dist_ckpt/common.pt"), "model/dist_ckpt/common.pt is cut"),
    "the manifest": (cut("ckpt_contents.json", 0), "ckpt_contents.json is empty"),
}  # fmt: skip


@pytest.mark.parametrize("case", MEGATRON)
def test_megatrons_distributed_format(tmp_path: Path, case: str) -> None:
    change, said = MEGATRON[case]
    role = extracted("qwen3-moe", tmp_path / "run")
    (role / "model/dist_ckpt/__9_0.distcp").touch()  # of a rank that had nothing to write
    shutil.copytree(tmp_path / "run/global_step_1", tmp_path / "run/global_step_2")
    tracker("2")(tmp_path / "run")
    found = on_a_node(tmp_path, Inspector())
    assert [each.complete for each in found.checkpoints] == [True, True]
    change(tmp_path / "run/global_step_2" / role.name)
    found = on_a_node(tmp_path, Inspector())
    assert (found.select().step, plan_prune(found, 1).removals) == (1, ())
    assert said in found.checkpoints[-1].shortfall
    if found.checkpoints[-1].damaged:
        assert resumed(found)[0] == 1


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_whole_model_of_megatrons(tmp_path: Path, name: str) -> None:
    role = extracted("qwen2-default", tmp_path / "run")
    shutil.copytree(tmp_path / "run/global_step_1", tmp_path / "run/global_step_2")
    assert on_a_node(tmp_path, Inspector()).select().step == 2
    cut(f"global_step_2/{role.name}/model/huggingface/{name}")(tmp_path / "run")
    found = on_a_node(tmp_path, Inspector())
    assert (found.select().step, plan_prune(found, 1).removals) == (1, ())
