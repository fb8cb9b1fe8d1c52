"""Which release has which of the keys that are filled in; the installed one has them all."""

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from cloudrl.verl.keys import _SINCE, has_key, release_number


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
