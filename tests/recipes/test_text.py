"""A recipe as text: the file as it is, or one that loads as the recipe by another algorithm."""

from pathlib import Path

import pytest

from cloudrl import recipes
from cloudrl.recipes.files import read_mapping
from cloudrl.spec.yaml_core import dump_mapping
from cloudrl.verl.releases import RELEASE

pytestmark = pytest.mark.io

MINE = """\
# mine
name: mine
env: {A: "1e3", B: "on", C: "0.9"}
overrides:
  data.train_batch_size: 8
  +a.text: "1e-6"
  +a.number: 1e-6
  +a.word: "null"
  +a.nothing: null
  +a.list: [x, "2", 2, {y: "${data.z}"}]
  critic.optim.lr: 1
"""


def test_a_recipe_is_shown_as_it_is_written_and_with_the_release_of_verl_that_it_inherits(tmp_path):
    for name in recipes.names():
        written = Path(recipes.__file__).with_name(f"{name}.yml").read_text("utf-8").splitlines()
        shown = recipes.render_recipe(name)
        if not any(line.startswith("extends:") for line in written):  # else it is shown whole
            assert [line for line in shown.splitlines() if line not in written] in ([], [f'verl: "{RELEASE.verl}"'])
        copy = tmp_path / "mine.yml"
        copy.write_text(shown, encoding="utf-8")
        assert recipes.load(copy) == recipes.load(name)


def test_a_file_of_the_users_own_inherits_no_release_of_verl(tmp_path):
    path = tmp_path / "mine.yml"
    path.write_text("name: mine\n")
    assert recipes.load(path).verl is None


def test_what_is_shown_loads_as_the_same_job(tmp_path):
    for name in (each for each in recipes.names() if recipes.load(each).verl == RELEASE.verl):
        for algorithm in recipes.algorithms():
            shown = tmp_path / f"{name}.yml"
            shown.write_text(recipes.render_recipe(name, algorithm))
            assert recipes.load(shown) == recipes.with_algorithm(recipes.load(name), algorithm)


def test_so_does_a_file_of_the_users_own(tmp_path):
    path = tmp_path / "mine.yml"
    path.write_text(MINE)
    assert recipes.render_recipe(path) == MINE
    shown = tmp_path / "shown.yml"
    shown.write_text(recipes.render_recipe(path, "rloo"))
    assert shown.read_text().startswith(f"# {path} by the algorithm rloo: RLOO, ")
    assert recipes.load(shown) == recipes.with_algorithm(recipes.load(path), "rloo")
    assert recipes.load(shown).override("critic.optim.lr") is None


@pytest.mark.parametrize(
    "value",
    ["1e-6", "0.9", "0.9.1", "on", "no", "null", "~", "", "1_000", "010", "1:30", "a: b", "# a", "é", "x\ny",
     1e-7, 3, None, [1, "1"]],
)  # fmt: skip
def test_values_are_read_as_they_were_written(tmp_path, value):
    path = tmp_path / "values.yml"
    path.write_text(dump_mapping({"key": value}))
    assert read_mapping(path, "values.yml") == {"key": value}
