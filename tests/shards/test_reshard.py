"""Shards of real FSDP, cut anew and loaded by verl's own manager over another number of ranks, which trains on."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from crafted import InMemory, archived, changed, changes, places
from fsdp_runs import STEP, STEPS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shard_files import members
from small_step import as_sft, smallest_zip
from verl_forks import Script

from cloudrl.checkpoints.handle import CheckpointHandle, Checkpoints
from cloudrl.checkpoints.reshard import Resharded
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import CheckpointError, InputError
from cloudrl.shards.pickle_writer import write_pickle
from cloudrl.shards.reshard import plan_reshard, write_shards
from cloudrl.shards.shard import read_records
from cloudrl.shards.source import LocalShard, MergeInputs, Sidecars
from cloudrl.shards.torch_zip import open_archive

pytestmark = pytest.mark.verl

SLOW = os.environ.get("CLOUDRL_SLOW") == "1"
SIZES = (1, 2, 3, 4, 8)
QUICK = [
    ("fsdp1", 2, 3), ("fsdp1", 2, 1), ("fsdp1", 1, 2), ("fsdp1-tied", 3, 2), ("fsdp1-lora", 2, 3),
    ("fsdp2", 2, 1), ("fsdp2-tied-bf16", 3, 4),
]  # fmt: skip
MORE = [
    *((case, old, new) for case in ("fsdp1", "fsdp2") for old in SIZES for new in SIZES if old != new),
    *((case, old, new) for case in ("fsdp1-tied", "fsdp2-tied-bf16", "fsdp1-lora") for old, new in ((2, 8), (4, 1))),
    ("fsdp2-lora", 4, 3), ("fsdp1-moe", 2, 3), ("fsdp2-moe", 3, 2), ("fsdp1-vision", 2, 3), ("fsdp1-tied", 1, 4),
]  # fmt: skip
PAIRS = sorted({*QUICK, *MORE}) if SLOW else QUICK
REFUSED = [("fsdp1-orig", 2), ("fsdp1-replicas", 4), ("fsdp2-replicas", 4)]
TORCH = "2.13.0+cpu"


def train(jobs: list[dict[str, Any]], folder: Path) -> None:
    (folder / "jobs.json").write_text(json.dumps(jobs))
    script = Path(__file__).with_name("fsdp_runs.py")
    Script(script, [folder / "jobs.json"], environ=os.environ | {"HF_HUB_OFFLINE": "1"}).end()


@pytest.fixture(scope="module")
def saves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CASE-RANKS: a run that was saved, with its state and what it did next."""
    folder = tmp_path_factory.mktemp("saves")
    runs = sorted({(case, old) for case, old, _ in PAIRS} | set(REFUSED))
    train([{"case": case, "ranks": old, "folder": str(folder / f"{case}-{old}")} for case, old in runs], folder)
    for case, old in runs:
        (folder / f"{case}-{old}" / STEP / "data.pt").write_bytes(smallest_zip())
    return folder


@pytest.fixture(scope="module")
def resharded(saves: Path) -> Path:
    """CASE-OLD-NEW: the same cut anew, and loaded."""
    for case, old, new in PAIRS:
        reshard(saves / f"{case}-{old}", saves / f"{case}-{old}-{new}", new)
    names = {pair: str(saves / "-".join(map(str, pair))) for pair in PAIRS}
    train([{"case": pair[0], "ranks": pair[2], "folder": name, "load": True} for pair, name in names.items()], saves)
    return saves


def step_of(folder: Path) -> CheckpointHandle:
    return Checkpoints(LocalSource(folder)).select(STEPS)


def reshard(source: Path, target: Path, world_size: int) -> Resharded:
    return step_of(source).reshard(target, world_size, torch=TORCH)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from leaves(item, f"{path}/{key}")
    else:
        yield path, value


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(map(str, pair)))
def test_another_number_of_ranks_goes_on_where_the_run_was(resharded: Path, pair: tuple[str, int, int]) -> None:
    import torch

    old, new = resharded / f"{pair[0]}-{pair[1]}", resharded / "-".join(map(str, pair))
    saved, loaded = (dict(leaves(torch.load(folder / "state.pt", weights_only=False))) for folder in (old, new))
    assert saved.keys() == loaded.keys()
    assert any("exp_avg_sq" in name for name in saved)
    for name, value in saved.items():
        same = torch.equal(value, loaded[name]) if isinstance(value, torch.Tensor) else value == loaded[name]
        assert same, name
    undisturbed, went_on = (json.loads((folder / "loss.json").read_text()) for folder in (old, new))
    assert undisturbed[0] == went_on[0] == STEPS + 2
    assert went_on[1:] == pytest.approx(undisturbed[1:], rel=1e-2 if "bf16" in pair[0] else 1e-4)


@pytest.mark.parametrize("pair", PAIRS[:4], ids=lambda pair: "-".join(map(str, pair)))
def test_what_is_written_is_a_save_like_any_other(saves: Path, pair: tuple[str, int, int], tmp_path: Path) -> None:
    case, old, new = pair
    source = saves / f"{case}-{old}"
    done = reshard(source, tmp_path / "run", new)
    assert (done.world_size, done.was, done.notes) == (new, old, ())
    assert (tmp_path / "run" / "latest_checkpointed_iteration.txt").read_text() == str(STEPS)
    found = step_of(tmp_path / "run")
    assert (found.complete, found.info.world_size, found.info.resumes) == (True, new, True)
    report = found.verify()
    assert report.findings == ()
    assert (report.step, report.shards) == (STEPS, new)
    actor = done.path / "actor"
    assert json.loads((actor / "fsdp_config.json").read_text()) == {
        "FSDP_version": int(case[4]), "world_size": new
    }  # fmt: skip
    assert (actor / "huggingface" / "config.json").read_bytes() == (
        source / STEP / "actor" / "huggingface" / "config.json"
    ).read_bytes()
    for rank in range(new):
        mine = members(actor / f"extra_state_world_size_{new}_rank_{rank}.pt")
        theirs = members(source / STEP / "actor" / f"extra_state_world_size_{old}_rank_{rank % old}.pt")
        assert mine == {name: data for name, data in theirs.items() if name != ".data/serialization_id"}


@pytest.mark.parametrize("pair", [("fsdp1", 2, 1), ("fsdp1", 1, 2), ("fsdp2-tied-bf16", 3, 4)])
def test_there_and_back_again(saves: Path, pair: tuple[str, int, int], tmp_path: Path) -> None:
    """The bytes of all tensors are those of the first save."""
    case, old, new = pair
    source = saves / f"{case}-{old}"
    reshard(source, tmp_path / "there", new)
    reshard(tmp_path / "there", tmp_path / "back", old)
    for rank in range(old):
        for kind in ("model", "optim"):
            name = f"{kind}_world_size_{old}_rank_{rank}.pt"
            first, last = (loaded(folder / STEP / "actor" / name) for folder in (source, tmp_path / "back"))
            assert first == last


def loaded(path: Path) -> dict[str, Any]:
    """The part of each tensor that a rank has, and all other values."""
    import torch

    content = torch.load(path, weights_only=False)
    return {
        name: (value.to_local() if hasattr(value, "to_local") else value).flatten().view(torch.uint8).tolist()
        if isinstance(value, torch.Tensor)
        else value
        for name, value in leaves(content)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("case", "ranks", "said"),
    [
        ("fsdp1-orig", 2, "use_orig_params"),
        ("fsdp1-replicas", 4, r"with replicas \(HSDP\)"),
        ("fsdp2-replicas", 4, r"with replicas \(HSDP\)"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_what_to_do(
    saves: Path, case: str, ranks: int, said: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=said) as caught:
        reshard(saves / f"{case}-{ranks}", tmp_path / "run", 3)
    assert "the same number of GPUs" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def run(saves: Path, tmp_path: Path) -> Path:
    """A run of two ranks, to be changed at will."""
    return Path(shutil.copytree(saves / "fsdp1-2", tmp_path / "old"))


def flip(path: Path) -> None:
    """One bit in the largest tensor; the date stays, as when a disk rots."""
    info = path.stat()
    members = open_archive(LocalShard(path)).members
    largest = max((members[name] for name in members if "data/" in name), key=lambda member: member.size_bytes)
    data = bytearray(path.read_bytes())
    data[largest.offset + largest.size_bytes // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, (info.st_atime, info.st_mtime))


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit of a weight": (lambda actor: flip(actor / "model_world_size_2_rank_1.pt"), "is damaged"),
    "a bit of the optimizer": (lambda actor: flip(actor / "optim_world_size_2_rank_1.pt"), "is damaged"),
    "an optimizer of another rank": (
        lambda actor: shutil.copy2(actor / "optim_world_size_2_rank_0.pt", actor / "optim_world_size_2_rank_1.pt"),
        "not the optim file of rank 1",
    ),
    "a rank without optimizer": (lambda actor: (actor / "optim_world_size_2_rank_1.pt").unlink(), "is incomplete"),
    "a rank without model": (lambda actor: (actor / "model_world_size_2_rank_0.pt").unlink(), "is incomplete"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_broken_step_leaves_nothing(run: Path, name: str, tmp_path: Path) -> None:
    spoil, said = SPOILT[name]
    spoil(run / STEP / "actor")
    with pytest.raises(CheckpointError, match=said):
        reshard(run, tmp_path / "new", 3)
    assert not (tmp_path / "new").exists() or list((tmp_path / "new").iterdir()) == []


def test_wrong_questions(run: Path, tmp_path: Path) -> None:
    for world_size, said in ((2, "a save of 2 ranks already"), (0, "is not possible"), (5000, "is not possible")):
        with pytest.raises(InputError, match=said):
            reshard(run, tmp_path / "new", world_size)
    reshard(run, tmp_path / "new", 1)
    with pytest.raises(InputError, match="exists already, and a reshard never writes"):
        reshard(run, tmp_path / "new", 1)
    one = step_of(tmp_path / "new")
    with pytest.raises(InputError, match="saves whole tensors") as caught:
        one.reshard(tmp_path / "two", 2)
    assert "--torch" in str(caught.value.hint)
    for torch, said in (("1.9", "are not known; 2.4 to"), ("new", "is not a version of torch")):
        with pytest.raises(InputError, match=said):
            one.reshard(tmp_path / "two", 2, torch=torch)


def test_all_roles_and_what_is_beside_them(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / STEP / "actor", run / STEP / "critic")
    (run / STEP / "actor" / "cloudrl_withdrawn_world_size_9_rank_0").write_text("")
    done = reshard(run, tmp_path / "new", 3)
    assert {path.name for path in done.path.iterdir()} == {"actor", "critic", "data.pt"}
    assert not list(done.path.rglob("cloudrl_*"))
    for role in ("actor", "critic"):
        assert len(list((done.path / role).glob("*_world_size_3_rank_*.pt"))) == 9


def test_a_save_of_verls_sft_trainer(run: Path, tmp_path: Path) -> None:
    as_sft(run / STEP)
    (run / STEP / "data_1.pt").write_bytes(smallest_zip())
    done = reshard(run, tmp_path / "new", 3)
    assert (done.path / "model_world_size_3_rank_2.pt").is_file()
    assert not list(done.path.glob("data_*.pt"))
    assert "the epoch begins anew" in done.notes[0]
    assert step_of(tmp_path / "new").complete


@settings(max_examples=2000 if SLOW else 40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["fsdp1-2", "fsdp2-tied-bf16-3"]), st.sampled_from(["model", "optim"]), st.integers(0), changes()
)
def test_a_crafted_pickle_never_ends_in_a_traceback(
    saves: Path, name: str, kind: str, number: int, change: Callable[[Any], Any]
) -> None:
    world_size, actor = int(name[-1]), saves / name / STEP / "actor"
    opened = {
        (each, rank): LocalShard(actor / f"{each}_world_size_{world_size}_rank_{rank}.pt")
        for each in ("model", "optim", "extra_state") for rank in range(world_size)
    }  # fmt: skip
    for rank in range(world_size):
        path = opened[kind, rank].path
        records = read_records(open_archive(opened[kind, rank]))
        found = [place for place in places(records) if len(place) < 12]
        records = changed(records, found[number % len(found)], change)
        content = {**members(path), "data.pkl": write_pickle(records, lambda storage: storage, "x.pt")}
        opened[kind, rank] = InMemory(archived(content, path.stem), str(path))
    beside = {rank: Sidecars(opened["optim", rank], opened["extra_state", rank]) for rank in range(world_size)}
    inputs = MergeInputs({rank: opened["model", rank] for rank in range(world_size)}, sidecars=beside)
    with TemporaryDirectory() as folder, suppress(CheckpointError, InputError):
        write_shards(plan_reshard(inputs, 4), Path(folder))
