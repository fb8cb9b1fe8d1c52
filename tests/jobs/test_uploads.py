import hashlib
import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planning import planned_uploads

from cloudrl.errors import InputError
from cloudrl.jobs import SubmitOptions
from cloudrl.jobs.draft import JobDraft
from cloudrl.jobs.uploads import SMALL_BYTES
from cloudrl.jobs.working_dir import PackagePlan, zip_package
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.transport.ray_client import PACKAGE_LIMIT_BYTES

TRAIN, VAL = "data.train_files", "data.val_files"
MODEL, CRITIC = "actor_rollout_ref.model.path", "critic.model.path"
REWARD = "reward.custom_reward_function.path"
PLAIN = ClusterFacts("http://x", "", "", 2, gpu_nodes=2, gpus_per_node=8)
AGENTS = replace(PLAIN, name="lab", files_dir="/vol/data/user-files", provider="dstack")
LIMIT = PACKAGE_LIMIT_BYTES


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "reward.py").write_text("def compute_score(): ...\n")
    (tmp_path / "a b.parquet").write_bytes(b"a")
    (tmp_path / "model" / "sub").mkdir(parents=True)
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "sub" / "x").write_bytes(b"x")
    (tmp_path / "model" / ".git").mkdir()
    (tmp_path / "model" / ".git" / "junk").write_bytes(b"junk")
    return tmp_path


def large(path: Path, size_bytes: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size_bytes)
    return path


def planned(here: Path, cluster: ClusterFacts = AGENTS, working_dir: str | None = None, **overrides: Any) -> JobDraft:
    keys = {"train": TRAIN, "val": VAL, "model": MODEL, "critic": CRITIC, "reward": REWARD}
    named = {keys.get(key, key): value for key, value in overrides.items()}
    source = str(here / working_dir) if working_dir and "://" not in working_dir else working_dir
    return planned_uploads(cluster, SubmitOptions(overrides=named, working_dir=source), here=here)


def package(draft: JobDraft) -> PackagePlan:
    assert draft.package is not None
    return draft.package


def test_small_files_go_into_the_package(here: Path):
    draft = planned(here, reward="./reward.py", train="./a b.parquet", model="./model")
    given = draft.values
    by_text = {item.text: item for item in draft.uploads}
    assert given[REWARD] == by_text["./reward.py"].to
    assert draft.arguments[TRAIN] == f"'{by_text['./a b.parquet'].to}'"
    packed = zipfile.ZipFile(io.BytesIO(zip_package(package(draft))))
    found = {name.split("/", 2)[2]: packed.read(name) for name in packed.namelist()}
    assert found == {
        "reward.py": b"def compute_score(): ...\n",
        "a b.parquet": b"a",
        "model/config.json": b"{}",
        "model/sub/x": b"x",
    }
    assert all(name.startswith("cloudrl_files/") for name in packed.namelist())
    assert given[MODEL] + "/config.json" in packed.namelist()


def test_the_name_follows_the_content(here: Path):
    first = planned(here, train="./a b.parquet").uploads[0].to
    assert planned(here, train="./a b.parquet").uploads[0].to == first
    (here / "a b.parquet").write_bytes(b"b")
    assert planned(here, train="./a b.parquet").uploads[0].to != first


def test_large_ones_go_through_the_agents(here: Path):
    weights = large(here / "model" / "weights", SMALL_BYTES)
    draft = planned(here, model="./model", critic="./model", reward="./reward.py")
    model, reward = draft.uploads
    assert (model.by, reward.by) == ("agents", "package")
    assert model.to == f"/vol/data/user-files/{model.manifest.address}/model"
    assert draft.values[CRITIC] == draft.values[MODEL] == model.to
    part = model.manifest.by_path["model/weights"]
    assert (part.size_bytes, part.sha256) == (SMALL_BYTES, hashlib.sha256(weights.read_bytes()).hexdigest())
    assert [entry.name.split("/")[-1] for entry in package(draft).entries] == ["reward.py"]


def test_many_small_ones_leave_room_for_the_working_directory(here: Path):
    (here / "proj").mkdir()
    large(here / "proj" / "big", 85 * 2**20)
    names = [large(here / f"{size}.parquet", size * 2**20).name for size in (7, 9, 8)]
    draft = planned(here, working_dir="proj", train=[f"./{name}" for name in names])
    assert {item.text: item.by for item in draft.uploads} == {
        "./7.parquet": "package", "./8.parquet": "package", "./9.parquet": "agents",
    }  # fmt: skip
    assert package(draft).size_bytes <= LIMIT


def test_a_plain_ray_takes_what_fits(here: Path):
    large(here / "model" / "weights", 60 * 2**20)
    assert {item.by for item in planned(here, PLAIN, model="./model").uploads} == {"package"}
    large(here / "model" / "weights", LIMIT + 1)
    with pytest.raises(InputError) as caught:
        planned(here, PLAIN, model="./model")
    assert caught.value.message == (
        f"{MODEL}=./model has 105 MB; Ray's package has room for 105 MB of the job's own files, and what answers "
        "at 'http://x' is a plain Ray cluster without agents that could take it"
    )
    assert "Copy it to the same place on every node" in str(caught.value.hint)


def test_a_working_directory_from_a_url(here: Path):
    [item] = planned(here, working_dir="s3://bucket/code.zip", train="./a b.parquet").uploads
    assert item.by == "agents"
    with pytest.raises(InputError, match="the working directory is a URL, to which nothing can be added"):
        planned(here, PLAIN, working_dir="s3://bucket/code.zip", train="./a b.parquet")


def test_what_lies_in_the_working_directory_travels_with_it(here: Path):
    (here / "proj" / "data").mkdir(parents=True)
    (here / "proj" / "helper.py").touch()
    (here / "proj" / "reward.py").write_text("import helper\ndef compute_score(): ...\n")
    for name in ("data/x.parquet", "data/excluded.parquet"):
        (here / "proj" / name).write_bytes(b"x")
    (here / "proj" / ".gitignore").write_text("excluded.parquet\n")
    draft = planned(
        here, working_dir="proj", reward="./proj/reward.py", train=["data/x.parquet", "data/excluded.parquet"]
    )
    assert [item.text for item in draft.uploads] == ["data/excluded.parquet"]
    given = draft.values
    assert given[REWARD] == "reward.py"
    assert given[TRAIN] == f"[data/x.parquet,{draft.uploads[0].to}]"


def test_code_is_looked_at(here: Path):
    with pytest.raises(InputError, match="defines no 'compute_scor'; did you mean 'compute_score'"):
        planned(here, reward="./reward.py", **{"reward.custom_reward_function.name": "compute_scor"})
    (here / "sampler.py").write_text("class Mine: ...")
    key = "trainer.v1.sampler.custom_sampler"
    assert planned(here, **{f"{key}.path": "./sampler.py", f"{key}.name": "Mine"}).uploads
    with pytest.raises(InputError, match=r"sampler\.py defines no 'Yours'"):
        planned(here, **{f"{key}.path": "./sampler.py", f"{key}.name": "Yours"})


def test_a_folder_with_nothing_in_it(here: Path):
    (here / "adapter").mkdir()
    with pytest.raises(InputError, match="adapter is an empty folder"):
        planned(here, **{"actor_rollout_ref.model.lora_adapter_path": "./adapter"})


def test_a_link_keeps_the_name_that_the_user_gave(here: Path):
    (here / "link.parquet").symlink_to("a b.parquet")
    [item] = planned(here, train="./link.parquet").uploads
    assert item.to.endswith("/link.parquet")
    assert item.size_bytes == 1


def test_a_job_without_own_files(here: Path):
    assert planned(here, train="/data/x.parquet", model="Qwen/Q").uploads == ()
