"""What is read of a release of verl: a small one with the forms that verl uses, and the installed one."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from cloudrl.errors import InputError
from cloudrl.verl.release_files import SHIPPED, source_of
from cloudrl.verl.releases import RELEASE
from cloudrl.verl.source.reader import read_files, read_source
from cloudrl.verl.source.shapes import FILE_NAME, Field, Source, from_text, to_text

FILES = {
    "version/version": "9.9.9\n",
    "trainer/main_ppo.py": "import torch_that_is_not_here\n",
    "trainer/config/ppo_trainer.yaml": "a:\n  _target_: verl.workers.config.Actor\nb:\n  _target_: my.own.Thing\n",
    "workers/config/__init__.py": "from .actor import *\nfrom verl.base import Base\n",
    "base.py": "from dataclasses import dataclass\n@dataclass\nclass Base:\n    _target_: str = ''\n    _hidden = 3\n",
    "workers/config/actor.py": '''
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Optional
from verl.base import Base
KINDS = ("one", "two")

@dataclass
class Inner(Base):
    size: int = 3

@dataclass
class Actor(Base):
    """Its documentation."""
    strategy: str = MISSING
    rate: float
    micro: Optional[int] = None
    either: int | None = 4
    kind: Literal["one", "two"] = "one"
    betas: tuple[float, float] = (0.9, 0.999)
    names: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    shared: ClassVar[int] = 3
    unknown: "Elsewhere" = None

    def __post_init__(self):
        """Checks."""
        assert self.kind in KINDS

    def helper(self):
        return 1
''',
    "trainer/algos.py": """
class Estimator(str, Enum):
    GAE = "gae"

@register_estimator(Estimator.GAE)
def one(): ...

@register_estimator("mine")
def two(config): return config.lr, config.get("free_key"), other.not_a_key

@register(dispatch_mode=1)
def three(): ...
""",
    "managers/naive.py": "from verl.managers.registry import register as register_it\n@register_it('naive')\n"
    "class N: ...\n",
    "managers/registry.py": "def register(name): ...\n",
    "broken.py": "def (:\n",
    "utils/tracking.py": "class Tracking:\n    supported_backend = ['wandb', 'console']\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def small() -> Source:
    return read_source(FILES)


def test_fields_and_their_types(small: Source) -> None:
    shape = small.shape("verl.workers.config.Actor")
    assert shape is not None
    assert (shape.name, shape.at, shape.bases) == (
        "verl.workers.config.actor.Actor", "workers/config/actor.py", ("verl.base.Base",)
    )  # fmt: skip
    assert dict(shape.fields) == {
        "_target_": Field("str", default=""), "strategy": Field("str", default="???"),
        "rate": Field("float", is_required=True), "micro": Field("int", optional=True),
        "either": Field("int", optional=True, default=4), "kind": Field("str", default="one"),
        "betas": Field("list", default=[0.9, 0.999]), "names": Field("list", is_made=True),
        "options": Field("dict", is_made=True), "inner": Field("verl.workers.config.actor.Inner", is_made=True),
        "unknown": Field("any", optional=True),
    }  # fmt: skip


def test_checks_are_kept_and_nothing_else(small: Source) -> None:
    shape = small.shape("verl.workers.config.Actor")
    assert shape is not None
    assert dict(shape.methods) == {"__post_init__": "def __post_init__(self):\n    assert self.kind in KINDS"}
    assert small.constants == {"workers/config/actor.py": {"KINDS": ["one", "two"]}}


def test_what_is_no_class_of_verls(small: Source) -> None:
    assert small.shape("my.own.Thing") is None
    assert set(small.targets) == {"verl.workers.config.Actor"}


def test_names_that_are_registered(small: Source) -> None:
    assert small.names == {
        "register_estimator": ("gae", "mine"), "register@managers": ("naive",), "loggers": ("console", "wandb"),
    }  # fmt: skip


def test_keys_that_are_read(small: Source) -> None:
    assert {"lr", "free_key"} <= small.reads
    assert "not_a_key" not in small.reads


def test_it_is_kept_as_text(small: Source) -> None:
    assert from_text(to_text(small)) == small


def test_a_wheel_and_a_folder_say_the_same(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "verl.whl", "w") as wheel:
        for name, text in FILES.items():
            wheel.writestr(f"verl/{name}", text)
            path = tmp_path / "checkout" / "verl" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    assert read_files(tmp_path / "verl.whl") == FILES
    assert read_files(tmp_path / "checkout") == read_files(tmp_path / "checkout" / "verl") == FILES


@pytest.mark.parametrize("name", ["empty", "none", "text.whl"])
def test_what_is_no_verl(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.whl").write_text("no wheel")
    with pytest.raises(InputError):
        read_files(tmp_path / name)


def test_what_is_shipped_is_what_the_installed_verl_says() -> None:
    spec = find_spec("verl")
    if spec is None or spec.origin is None:
        pytest.skip("verl is not installed")
    theirs = read_source(read_files(Path(spec.origin).parent))
    assert to_text(theirs) == (SHIPPED / RELEASE.verl / FILE_NAME).read_text()


@pytest.mark.parametrize("release", sorted(path.name for path in SHIPPED.iterdir() if path.is_dir()))
def test_each_release_that_ships_can_be_read(release: str) -> None:
    source = source_of(release)
    assert source is not None
    assert source.version == release
    shape = source.shape("verl.workers.config.FSDPActorConfig")
    assert shape is not None
    assert "__post_init__" in shape.methods
    assert {"gae", "grpo"} <= set(source.names["register_adv_est"])
