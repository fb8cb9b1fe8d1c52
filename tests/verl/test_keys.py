"""Which release has which of the keys that are filled in; the installed one has them all."""

import ast
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from cloudrl.verl import keys
from cloudrl.verl.command import SFT_CONFIG
from cloudrl.verl.composition import compose
from cloudrl.verl.keys import _SINCE, has_key, release_number
from cloudrl.verl.releases import RELEASE

PACKAGE = Path(keys.__file__).parents[1]
KEY = re.compile(
    r"(?<![\w.])(?:(?:actor_rollout_ref|algorithm|critic|ray_kwargs|reward|trainer|transfer_queue)\.(?!py\b)[a-z]\w*"
    r"|data\.(?:train|val|max)_\w+)"
)
BELOW = {
    "data/generic.py",
    "retriever/memory.py",
    "saves/names.py",
    "spec/hydra.py",
    "spec/job.py",
    "verl_cpu/plugin.py",
}
"""What cannot import `cloudrl.verl`: homes of keys that it takes from there, and sentences."""


@pytest.mark.parametrize(
    ("verl", "number"),
    [("0.9.1", (0, 9)), ("0.1", (0, 1)), ("0.3.0.post1", (0, 3)), ("1", (1,)), (None, (9999,)), ("main", (9999,))],
)
def test_the_number_of_a_release(verl: str | None, number: tuple[int, ...]) -> None:
    assert release_number(verl) == number


def test_the_installed_verl_has_them_all() -> None:
    spec = find_spec("verl")
    written = Path(spec.origin).parent / "trainer/config/ppo_trainer.yaml"
    config = yaml.safe_load(written.read_text())
    for key in _SINCE:
        group, name = key.split(".")
        assert name in config[group]
        assert has_key(version("verl"), key)


def written(path: Path) -> Iterator[str]:
    """The texts of a program, without its docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    of_people = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in of_people:
            yield node.value


def test_a_key_is_written_below_verl_and_nowhere_else() -> None:
    paths = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    found = {name for name, path in paths.items() if any(map(KEY.search, written(path)))}
    assert {name for name in found if not name.startswith("verl/")} == BELOW


def test_the_default_release_has_every_key_that_has_a_name() -> None:
    composed = compose(RELEASE.verl, ())
    assert composed.values is not None
    named = {key for name, key in vars(keys).items() if name.isupper() and isinstance(key, str) and "." in key}
    there = {key for key in named if _has(composed.values, key)}
    assert named - there == {keys.MAIN, keys.SEARCH_R1_URL, keys.FINE_TUNED, keys.FINE_TUNED_BEFORE}
    fine_tuning = compose(RELEASE.verl, (), SFT_CONFIG).values
    assert fine_tuning is not None
    assert _has(fine_tuning, keys.FINE_TUNED)
    assert _has(compose("0.7.0", (), "sft_trainer").values, keys.FINE_TUNED_BEFORE)
    assert len(there) > 30


def _has(values: object, key: str) -> bool:
    name, _, rest = key.partition(".")
    return isinstance(values, Mapping) and name in values and (not rest or _has(values[name], rest))
