"""Composed configurations are kept for the next call: the same values, for this user alone, a bounded number."""

import json
import shutil
from pathlib import Path

import pytest

from cloudrl.user_cache import cache_folder
from cloudrl.verl import base_config, composed_cache, composition
from cloudrl.verl.composition import compose
from cloudrl.verl.release_files import SHIPPED
from cloudrl.verl.releases import RELEASE

FOLDER = SHIPPED / RELEASE.verl
WORDS = ("trainer.nnodes=3", "+trainer.mine=1")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    return tmp_path / "cloudrl" / "composed"


def forget() -> None:
    """What this process still knows."""
    for kept in (compose, base_config.base, base_config.plain):
        kept.cache_clear()


def test_the_second_call_composes_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compose(RELEASE.verl, WORDS)
    forget()
    monkeypatch.setattr(composition, "_composed", None)
    assert compose(RELEASE.verl, WORDS) == first
    assert first.values is not None
    assert first.values["trainer"]["nnodes"] == 3
    assert {path.stat().st_mode & 0o777 for path in cache.iterdir()} == {0o600}
    assert cache.stat().st_mode & 0o777 == 0o700


def test_other_overrides_start_from_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = compose(RELEASE.verl, ("trainer.nnodes=5", "hydra.run.dir=x"))
    compose(RELEASE.verl, WORDS)
    forget()
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", None)
    assert compose(RELEASE.verl, ("trainer.nnodes=5",)) == fresh
    [problem] = compose(RELEASE.verl, ("trainer.nnode=5",)).problems
    assert problem.hint == "trainer.nnodes=5"


def test_secrets_and_faults_are_not_kept(cache: Path) -> None:
    compose(RELEASE.verl, ("+trainer.wandb_api_key=x",))
    compose(RELEASE.verl, ("trainer.nnode=5",))
    assert not cache.exists()


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"values": 1'])
def test_a_file_that_cannot_be_read_is_made_again(cache: Path, text: str) -> None:
    first = compose(RELEASE.verl, WORDS)
    for path in cache.iterdir():
        path.write_text(text)
    forget()
    assert compose(RELEASE.verl, WORDS) == first


def test_the_number_is_bounded(cache: Path) -> None:
    for index in range(70):
        composed_cache.keep(f"key{index}", {"values": index})
    assert len(list(cache.iterdir())) == 64
    assert composed_cache.read("key69") == {"values": 69}


def test_what_json_would_change_is_not_kept(cache: Path) -> None:
    composed_cache.keep("key", {"values": {3: 4}})
    composed_cache.keep("other", {"values": object()})
    assert not cache.exists()


def test_without_a_cache_it_works(cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file")
    assert compose(RELEASE.verl, WORDS).values is not None


def test_another_file_of_the_release_is_another_key(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: 1")
    first = composed_cache.key_of(tmp_path, "ppo_trainer", ())
    (tmp_path / "a.yaml").write_text("a: 22")
    assert composed_cache.key_of(tmp_path, "ppo_trainer", ()) != first != composed_cache.key_of(tmp_path, "x", ())
    assert len(json.loads(f'["{first}"]')[0]) == 64


def test_a_run_of_another_time_is_composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def words(run: str) -> tuple[str, ...]:
        return (f"trainer.experiment_name={run}", f"trainer.default_local_dir=/c/{run}", "trainer.nnodes=2")

    fresh = compose(RELEASE.verl, words("mine-20261127-101112"))
    forget()
    shutil.rmtree(cache_folder("composed"))
    compose(RELEASE.verl, words("mine-20261126-053545"))
    forget()
    monkeypatch.setattr(composition, "_composed", None)
    kept = compose(RELEASE.verl, words("mine-20261127-101112"))
    assert kept == fresh
    assert kept.values is not None
    assert kept.values["trainer"]["default_local_dir"] == "/c/mine-20261127-101112"
