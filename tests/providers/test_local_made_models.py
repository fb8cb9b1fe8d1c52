"""Tiny models that one cluster of this machine has made are there for the next."""

from pathlib import Path

import pytest

from cloudrl.providers.local import made_models
from cloudrl.providers.local.made_models import bring_models, keep_models
from cloudrl.providers.local.state import LocalState
from cloudrl.user_cache import cache_folder


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def cluster(name: str) -> LocalState:
    return LocalState(name, name, 1, "127.0.0.1", 1, 2, 3, (4,), "/nowhere")


def model(name: str, *, kind: str = "tiny-adder") -> Path:
    return cluster(name).data / "models" / kind


def make(name: str, weights: str, *, kind: str = "tiny-adder") -> None:
    model(name, kind=kind).mkdir(parents=True)
    (model(name, kind=kind) / "model.safetensors").write_text(weights)


def test_the_next_cluster_has_it(tmp_path: Path) -> None:
    bring_models(cluster("first"))
    assert not model("first").exists()
    make("first", "trained")
    make("first", "from the Hub", kind="Qwen")
    keep_models(cluster("first"))
    bring_models(cluster("second"))
    assert (model("second") / "model.safetensors").read_text() == "trained"
    assert [path.name for path in model("second").parent.iterdir()] == ["tiny-adder"]
    assert (tmp_path / "cache" / "cloudrl" / "models").stat().st_mode & 0o777 == 0o700


def test_what_a_cluster_has_already_stays(tmp_path: Path) -> None:
    make("first", "trained")
    keep_models(cluster("first"))
    make("second", "by hand")
    bring_models(cluster("second"))
    keep_models(cluster("second"))
    assert (model("second") / "model.safetensors").read_text() == "by hand"
    bring_models(cluster("third"))
    assert (model("third") / "model.safetensors").read_text() == "trained"
    assert not list(tmp_path.rglob(".tiny*"))


def test_other_sources_or_another_torch_make_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    make("first", "trained")
    keep_models(cluster("first"))
    made_models._key.cache_clear()
    monkeypatch.setattr(made_models, "version", lambda _: "0.1")
    bring_models(cluster("second"))
    made_models._key.cache_clear()
    assert not model("second").exists()


def test_a_cache_that_cannot_be_written_costs_nothing_but_time() -> None:
    cache_folder("models").parent.parent.mkdir()
    cache_folder("models").parent.write_text("a file")
    make("first", "trained")
    keep_models(cluster("first"))
    bring_models(cluster("second"))
    assert not model("second").exists()
