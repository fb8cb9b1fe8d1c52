import pytest

from cloudrl.errors import SpecError
from cloudrl.spec import HydraText, Job


def test_overrides_are_kept_as_hydra_text_in_their_order():
    job = Job(
        name="grpo",
        overrides={
            "trainer.logger": ["console"],
            "actor_rollout_ref.actor.optim.lr": 1e-6,
            "trainer.val_before_train": False,
            "trainer.default_hdfs_dir": None,
            "+a.b": "x, y",
            "c": HydraText("[1, 2]"),
        },
    )
    assert list(job.overrides.items()) == [
        ("trainer.logger", "[console]"),
        ("actor_rollout_ref.actor.optim.lr", "1e-06"),
        ("trainer.val_before_train", "False"),
        ("trainer.default_hdfs_dir", "null"),
        ("+a.b", "'x, y'"),
        ("c", "[1, 2]"),
    ]
    assert all(isinstance(text, HydraText) for text in job.overrides.values())


def test_defaults():
    job = Job(name="grpo")
    assert job.entrypoint == ("python3", "-m", "verl.trainer.main_ppo")
    assert (job.device, job.model, job.verl, job.data) == ("gpu", None, None, ())


def test_with_overrides_sets_and_adds():
    job = Job(name="grpo", overrides={"a": 1, "b": "1e-6"})
    more = job.with_overrides({"b": HydraText("2"), "c": "x y"})
    assert list(more.overrides.items()) == [("a", "1"), ("b", "2"), ("c", "'x y'")]
    assert list(job.overrides.items()) == [("a", "1"), ("b", "'1e-6'")]


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ("+a.b", "a.b", "+a.b"), ("++a.b", "a.b", "++a.b"), ("a.b", "+a.b", "+a.b"), ("+a.b", "++a.b", "++a.b"),
        ("~a.b", "a.b", "a.b"), ("~a.b", "~a.b", "~a.b"),
    ],
)  # fmt: skip
def test_a_key_stands_once_and_keeps_its_plus(old, new, kept):
    job = Job(name="grpo", overrides={"x": 0, old: 1, "y": 2}).with_overrides({new: 3})
    assert list(job.overrides.items()) == [("x", "0"), (kept, "3"), ("y", "2")]


@pytest.mark.parametrize("old", ["a.b", "+a.b", "++a.b"])
def test_a_key_that_is_deleted_is_taken_out_of_the_job(old):
    job = Job(name="grpo", overrides={"x": 0, old: 1})
    assert job.with_overrides({"~a.b": HydraText("")}).overrides == {"x": "0"}
    assert job.with_overrides({"~y": HydraText("")}).overrides == {"x": "0", old: "1", "~y": ""}, "Hydra's own"


def test_a_key_twice_under_two_spellings_stands_once():
    assert Job(name="grpo", overrides={"a": 1, "++a": 2}).overrides == {"++a": "2"}


def test_a_value_is_found_whatever_its_prefix():
    job = Job(name="one", overrides={"+a.b": 1})
    assert job.override("a.b") == "1"
    assert job.override("a") is None


def test_device_and_trainer_device_agree():
    assert Job(name="one", device="cpu", overrides={"trainer.device": "cpu"})
    assert Job(name="one", overrides={"trainer.device": "cuda"})
    with pytest.raises(SpecError, match=r"device is 'gpu' but trainer\.device is 'cpu'"):
        Job(name="one").with_overrides({"trainer.device": HydraText("cpu")})


@pytest.mark.parametrize(
    ("given", "engine"), [("sglang", "sglang"), (HydraText("'vllm'"), "vllm"), ("${x.engine}", None)]
)
def test_the_rollout_engine_is_read_from_the_overrides(given, engine):
    assert Job(name="one", overrides={"actor_rollout_ref.rollout.name": given}).rollout == engine
    assert Job(name="one").rollout is None


def test_overrides_in_the_entry_point_are_the_jobs_as_well() -> None:
    entrypoint = ("python3", "-m", "verl.trainer.main_ppo", "a.b=1", "+a.c='x'", "--config-name=mine", "a.d=0", "a.d=2")
    job = Job(name="mine", entrypoint=entrypoint, overrides={"a.b": 3})
    assert job.values == {"a.b": "3", "a.c": "x", "a.d": "2"}
    assert (job.override("a.b"), job.override("a.d"), job.override("a.e")) == ("3", "2", None)
