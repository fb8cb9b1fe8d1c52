from pathlib import Path
from typing import Any

import pytest
from planning import cluster, settled

from cloudrl import recipes
from cloudrl.errors import InputError
from cloudrl.jobs import SubmitOptions
from cloudrl.jobs.aliases import expand_aliases
from cloudrl.jobs.defaults import take_cluster_defaults
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.local_files import LocalFiles, inspect_files
from cloudrl.spec import Job

TRAIN, VAL = "data.train_files", "data.val_files"
MODEL, CRITIC = "actor_rollout_ref.model.path", "critic.model.path"
PATH, NAME = "reward.custom_reward_function.path", "reward.custom_reward_function.name"
CLUSTER = cluster(
    gpus_per_node=1, device="cpu", models={"tiny-adder": "/vol/tiny", "Qwen/Q": "/vol/q"},
    data={each: {"train": f"/vol/{each}/train.parquet", "test": f"/vol/{each}/test.parquet"} for each in ("a", "b")},
)  # fmt: skip
JOB = recipes.load("grpo-tiny").replace(data=("a",))


@pytest.fixture
def here(tmp_path: Path) -> Path:
    files = ("mine/train.parquet", "mine/test.parquet", "half/train.parquet", "x.parquet", "model/config.json")
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def plain(here: Path, job: Job = JOB, overrides: dict[str, Any] | None = None, **options: Any) -> dict[str, str]:
    """The overrides that verl would get if every path were one of the nodes."""
    draft = expanded(here, job, overrides=overrides or {}, **options)
    return settled(take_cluster_defaults(draft, Snapshot(CLUSTER, LocalFiles(here)))).arguments


def expanded(here: Path, job: Job = JOB, **options: Any) -> JobDraft:
    asked = SubmitOptions(**options)
    draft = JobDraft(job=job, options=asked, cluster=CLUSTER, overrides=asked.overrides, name="run")
    return settled(expand_aliases(draft, Snapshot(CLUSTER, inspect_files(job, asked, here=here))))


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("Qwen/Q", "/vol/q"), ("tiny-adder", "/vol/tiny"), ("Qwen/Other-1.5B", "Qwen/Other-1.5B"),
        ("/models/m", "/models/m"), ("./model", "./model"), ("model", "model"),
    ],
)  # fmt: skip
def test_models(here: Path, model: str, path: str):
    assert plain(here, model=model)[MODEL].strip("'") == path


def test_the_critic_follows_unless_the_recipe_has_another(here: Path):
    ppo = recipes.load("ppo-tiny").replace(data=("a",))
    assert plain(here, ppo, model="./model")[CRITIC].strip("'") == "./model"
    same = ppo.with_overrides({MODEL: "old/one", CRITIC: "old/one"})
    given = plain(here, same, model="Qwen/Q")
    assert (given[MODEL], given[CRITIC]) == ("/vol/q", "/vol/q")
    other = ppo.with_overrides({MODEL: "old/one", CRITIC: "old/critic"})
    given = plain(here, other, model="Qwen/Q")
    assert (given[MODEL], given[CRITIC]) == ("/vol/q", "old/critic")


@pytest.mark.parametrize(
    ("data", "train", "val"),
    [
        (("b",), "/vol/b/train.parquet", "/vol/b/test.parquet"),
        (("a", "b"), "[/vol/a/train.parquet,/vol/b/train.parquet]", "[/vol/a/test.parquet,/vol/b/test.parquet]"),
        (("./mine",), "./mine/train.parquet", "./mine/test.parquet"),
        (("mine/",), "mine/train.parquet", "mine/test.parquet"),
        (("./x.parquet",), "./x.parquet", "./x.parquet"),
        (("/data/set",), "/data/set/train.parquet", "/data/set/test.parquet"),
        (("/data/x.parquet",), "/data/x.parquet", "/data/x.parquet"),
        (("a", "./mine"), "[/vol/a/train.parquet,./mine/train.parquet]", "[/vol/a/test.parquet,./mine/test.parquet]"),
    ],
)  # fmt: skip
def test_data(here: Path, data: tuple[str, ...], train: str, val: str):
    job = JOB.with_overrides({TRAIN: "/recipe/train.parquet", VAL: "/recipe/test.parquet"})
    given = plain(here, job, data=data)
    assert (given[TRAIN], given[VAL]) == (train, val)


def test_one_file_validates_too_and_a_note_says_so(here: Path):
    assert expanded(here, data=("./x.parquet",)).notes == (
        "validation reads ./x.parquet, too: data.val_files=... names another file for it",
    )
    given = plain(here, data=("./x.parquet",), overrides={VAL: "/v.parquet"})
    assert (given[TRAIN], given[VAL]) == ("./x.parquet", "/v.parquet")


@pytest.mark.parametrize(
    ("text", "path", "name"),
    [
        ("./reward.py", "./reward.py", "compute_score"),
        ("./reward.py:mine", "./reward.py", "mine"),
        ("pkg://some.module", "pkg://some.module", "compute_score"),
        ("pkg://some.module:mine", "pkg://some.module", "mine"),
        ("/nodes/a:b/reward.py", "/nodes/a:b/reward.py", "compute_score"),
    ],
)
def test_rewards(here: Path, text: str, path: str, name: str):
    given = plain(here, reward=text)
    assert (given[PATH].strip("'"), given[NAME]) == (path, name)


def test_the_reward_takes_the_place_of_an_older_spelling(here: Path):
    old = JOB.with_overrides({"custom_reward_function.path": "/old.py", "custom_reward_function.name": "old"})
    given = plain(here, old, reward="/new.py", overrides={NAME: "new"})
    assert "custom_reward_function.path" not in given
    assert (given[PATH], given[NAME]) == ("/new.py", "new")


@pytest.mark.parametrize(
    ("options", "overrides", "message"),
    [
        ({"model": "Qwen/Q"}, {MODEL: "/m"}, r"--model Qwen/Q and actor_rollout_ref\.model\.path=/m say the same"),
        ({"data": ("a",)}, {TRAIN: "/t"}, r"--data a and data\.train_files=/t say the same"),
        ({"reward": "./r.py"}, {PATH: "/r"}, r"--reward \./r\.py and .*=/r say the same"),
        ({"reward": "./r.py:f"}, {NAME: "g"}, r"--reward \./r\.py:f and .*name=g say the same"),
        ({"data": ("aa",)}, {}, r"--data aa is neither a data set nor a file or folder here; did you mean 'a'\?"),
        ({"data": ("./mien",)}, {}, r"does not exist; did you mean 'mine'\?"),
        ({"data": ("./half",)}, {}, r"--data \./half has no test\.parquet \(it has: train\.parquet\)"),
        ({"model": "a b"}, {}, r"'a b' is neither a model on the Hugging Face Hub nor an absolute path"),
    ],
)  # fmt: skip
def test_what_cannot_be(here: Path, options: dict[str, Any], overrides: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        plain(here, overrides=overrides, **options)
