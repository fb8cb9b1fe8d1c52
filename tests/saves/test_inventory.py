"""What nodes say, put together."""

from pathlib import Path

import pytest
from node_inventories import files, node, run, step
from small_step import write_names

from cloudrl.errors import CheckpointError, InputError
from cloudrl.saves.aggregate import aggregate, local_inventory
from cloudrl.saves.places import nodes_text, places_text
from cloudrl.saves.records import SaveRecord


def test_ranks_on_two_nodes_make_one_checkpoint() -> None:
    found = aggregate(
        [
            node(0, run("r", step(10, (0, 1), 4, data=False))),
            node(1, run("r", step(10, (2, 3), 4, config=False), tracker="10")),
        ]
    )
    (checkpoint,) = found.checkpoints
    assert (checkpoint.run, checkpoint.step, checkpoint.role, checkpoint.world_size) == ("r", 10, "actor", 4)
    assert checkpoint.ranks == (0, 1, 2, 3)
    assert {place.label: ranks for place, ranks in checkpoint.locations.items()} == {
        "node 0 (10.0.0.1)": (0, 1), "node 1 (10.0.0.2)": (2, 3),
    }  # fmt: skip
    assert checkpoint.complete
    assert checkpoint.resumes
    assert checkpoint.size_bytes == 12 * 10 + 10
    assert checkpoint.shards("model")[3].label == (
        "node 1 (10.0.0.2): /checkpoints/r/global_step_10/actor/model_world_size_4_rank_3.pt"
    )
    assert found.notes == ()


def test_a_step_without_roles() -> None:
    """verl's SFT trainer puts the shards into the folder of the step."""
    said = [step(10, (rank,), config=not rank, data=not rank) for rank in (0, 1)]
    for each in said:
        each["roles"][0]["folder"] = ""
    said[0]["files"][0]["path"] = "data_0.pt"
    (found,) = aggregate([node(rank, run("r", said[rank])) for rank in (0, 1)]).checkpoints
    assert (found.role, found.ranks, found.missing) == ("actor", (0, 1), ())
    assert found.shards("model")[1].path == "r/global_step_10/model_world_size_2_rank_1.pt"


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        (step(1, (0,), 2), ("rank 1",)),
        (step(1, (1,), 2), ("rank 0",)),
        (step(1, (0, 3, 5), 8), ("ranks 1-2, 4, 6-7",)),
        (step(1, (0, 3, 9), 6), ("ranks 1-2, 4-5",)),
        (step(1, (5,), 999_999_999), ("ranks 0-4, 6-999999998",)),  # a name may say any number
        (step(1, config=False), ("huggingface/config.json",)),
        (step(1, data=False), ("the end of its saving",)),
        (step(1, kinds=("model",)), ()),
        (step(1, kinds=("optim",)), ("ranks 0-1", "huggingface/config.json")[:1]),
    ],
)
def test_what_is_missing(said: dict[str, object], missing: tuple[str, ...]) -> None:
    (checkpoint,) = aggregate([node(0, run("r", said))]).checkpoints
    assert checkpoint.missing == missing
    assert checkpoint.complete == (not missing)


def test_an_optimizer_that_one_rank_has_not_saved() -> None:
    said = step(1)
    said["roles"][0]["files"] = [
        file for file in said["roles"][0]["files"] if file["path"] != "optim_world_size_2_rank_1.pt"
    ]
    (checkpoint,) = aggregate([node(0, run("r", said))]).checkpoints
    assert checkpoint.missing == ("optimizer of rank 1",)


def test_a_step_that_the_tracker_has_passed_is_finished_without_its_data() -> None:
    five, six = aggregate([node(0, run("r", step(5, data=False), step(6, data=False), tracker="5"))]).checkpoints
    assert five.finished
    assert not six.finished


# -- shared folders ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["kernel", "marker"])
def test_a_shared_folder_counts_once(how: str) -> None:
    if how == "kernel":
        known = [{"identity": "boot:1:2"}, {"identity": "boot:1:2"}]
    else:
        known = [{"marker": word, "markers": ("a", "b")} for word in "ab"]
    said = run("r", step(1), tracker="1")
    (checkpoint,) = aggregate([node(rank, said, **known[rank]) for rank in range(2)]).checkpoints
    (place,) = checkpoint.locations
    assert (place.ranks, place.short) == ((0, 1), "nodes 0-1")
    assert checkpoint.size_bytes == 70


@pytest.mark.parametrize(
    "known",
    [
        [{"marker": "a", "markers": ("a",)}, {"marker": "b", "markers": ("b",)}],
        [{"marker": "a", "markers": ("a",)}, {"marker": "b", "markers": ("a", "b")}],  # a copy of the other's folder
        [{"identity": ""}, {"identity": ""}],
        [{}, {}],
    ],
)
def test_other_folders_stay_apart(known: list[dict[str, object]]) -> None:
    (checkpoint,) = aggregate([node(rank, run("r", step(1)), **known[rank]) for rank in range(2)]).checkpoints
    assert all(len(copies) == 2 for copies in checkpoint.files.values())
    assert checkpoint.size_bytes == 70


@pytest.mark.parametrize("is_shared", [True, False])
def test_many_nodes_are_one_short_text(is_shared: bool) -> None:
    words = tuple(f"m{rank}" for rank in range(256))
    said = [
        node(
            rank,
            run("r", step(1, range(2048) if is_shared else range(8 * rank, 8 * rank + 8), 2048), tracker=str(rank % 9)),
            **({"marker": words[rank], "markers": words} if is_shared else {}),
        )
        for rank in range(256)
    ]
    found = aggregate(said)
    (checkpoint,) = found.checkpoints
    assert places_text(checkpoint.locations) == "0-2047 on nodes 0-255"
    assert nodes_text(checkpoint.locations) == "nodes 0-255"
    assert all(len(note) < 600 for note in found.notes)


def test_few_places_are_told_one_by_one() -> None:
    said = [node(rank, run("r", step(1, (2 * rank, 2 * rank + 1), 6))) for rank in range(3)]
    (checkpoint,) = aggregate(said).checkpoints
    assert places_text(checkpoint.locations) == "0-1 on node 0; 2-3 on node 1; 4-5 on node 2"


def test_gaps_of_many_ranks_are_counted() -> None:
    (checkpoint,) = aggregate([node(0, run("r", step(1, range(0, 2048, 2), 2048)))]).checkpoints
    assert checkpoint.missing[0].startswith("ranks 1, 3, 5, ")
    assert checkpoint.missing[0].endswith(" more")
    assert len(checkpoint.missing[0]) < 250


def test_of_two_copies_the_newer_one_counts() -> None:
    said = [node(0, run("r", step(1, at=5.0))), node(1, run("r", step(1, at=9.0)))]
    (checkpoint,) = aggregate(said).checkpoints
    assert [place.ranks for place in checkpoint.locations] == [(1,)]


# -- runs, roles, sizes ------------------------------------------------------------------------------------------


def test_roles_and_world_sizes_are_apart() -> None:
    actor, critic = step(3), step(3, role="critic")
    actor["roles"] += critic["roles"]
    actor["roles"][0]["files"] += files((0, 1, 2), 4)
    found = aggregate([node(0, run("r", actor))]).checkpoints
    assert [(each.role, each.world_size, each.ranks) for each in found] == [
        ("actor", 2, (0, 1)), ("actor", 4, (0, 1, 2)), ("critic", 2, (0, 1)),
    ]  # fmt: skip
    assert all("huggingface/config.json" in each.files for each in found)


def test_records_of_saves_belong_to_their_world_size() -> None:
    mine, other = SaveRecord(3, "actor", 1, 2, 1.0), SaveRecord(3, "actor", 0, 8, 1.0)
    saves = [mine.to_json(), other.to_json(), {"rank": "x", "world_size": 2}]
    (checkpoint,) = aggregate([node(0, run("r", step(3, saves=saves)))]).checkpoints
    assert checkpoint.records == {1: mine}


# -- what a resume would take ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tracker", "said"),
    [
        (None, "a resume would start from scratch"),
        ("4", "a resume would look for step 4, which is not there"),
        *((text, f"holds {text!r}, no step: a resume would fail") for text in ("", "x", "-1", "9" * 30)),
    ],
)
def test_a_tracker_that_names_no_step_that_is_there(tracker: str | None, said: str) -> None:
    found = aggregate([node(0, run("r", step(3), tracker=tracker))])
    assert said in found.notes[0]
    assert not found.checkpoints[0].resumes


def test_trackers_that_differ() -> None:
    nodes = [
        node(0, run("r", step(3, (0,)), step(6, (0,)), tracker="3", at=1.0)),
        node(1, run("r", step(3, (1,)), step(6, (1,)), tracker="6", at=2.0)),
    ]
    found = aggregate(nodes)
    assert [each.resumes for each in found.checkpoints] == [False, True]
    assert [each.tracked for each in found.checkpoints] == [True, True]
    assert "trackers differ: 6 on node 1 (10.0.0.2), 3 on node 0 (10.0.0.1)" in found.notes[0]


# -- selection ---------------------------------------------------------------------------------------------------


def test_the_latest_is_the_newest_complete_one_of_the_newest_run() -> None:
    found = aggregate(
        [node(0, run("new", step(2, at=50.0), step(4, at=60.0), step(6, (0,), at=70.0)), run("old", step(99, at=9.0)))]
    )
    assert (found.select().run, found.select().step) == ("new", 4)
    assert found.select(run="old").step == 99
    assert found.select("6").step == found.select(6).step == 6


def test_nothing_is_complete() -> None:
    found = aggregate([node(0, run("r", step(2, (0,)), step(4, (1,))))])
    with pytest.raises(CheckpointError, match="no checkpoint is complete; r, step 4, actor lacks rank 0"):
        found.select()


def test_what_is_not_there_is_told() -> None:
    found = aggregate([node(0, run("r", step(2), step(4)))])
    with pytest.raises(CheckpointError, match="there is no step 3 of the actor; its steps: 2, 4"):
        found.select(3)
    with pytest.raises(CheckpointError, match="no checkpoint of the critic; runs: r"):
        found.select(2, role="critic")
    with pytest.raises(CheckpointError, match="of run 'x'; runs: r"):
        found.select(run="x")
    with pytest.raises(CheckpointError, match="runs: none"):
        aggregate([node(0)]).select()


def test_a_step_of_several_runs() -> None:
    found = aggregate([node(0, run("a", step(2)), run("b", step(2)))])
    with pytest.raises(InputError, match="several runs have step 2: a, b") as raised:
        found.select(2)
    assert raised.value.hint == "Choose one: --name a"
    assert found.select(2, run="b").run == "b"


# -- a folder of this machine ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "project", "project/r", "project/r/global_step_3"])
def test_a_folder_at_any_depth(tmp_path: Path, name: str) -> None:
    for number in (3, 4):
        write_names(tmp_path / "project/r", number)
    found = local_inventory(tmp_path / name)
    assert [each.step for each in found.checkpoints] == ([3] if name.endswith("_3") else [3, 4])
    shard = found.checkpoints[0].shards("model")[0]
    assert shard.label == f"this machine: {tmp_path}/project/r/global_step_3/actor/model_world_size_1_rank_0.pt"


def test_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file cannot be read: Not a directory"):
        local_inventory(tmp_path / "file")
    with pytest.raises(InputError, match="x cannot be read: No such file or directory"):
        local_inventory(tmp_path / "x")
    with pytest.raises(InputError, match="x cannot be read: File name too long"):
        local_inventory(tmp_path / ("x" * 300))
