"""A recipe that extends another: what it takes over, what it changes, and what is said of a wrong one."""

from pathlib import Path

import pytest

from cloudrl import recipes
from cloudrl.errors import SpecError

MINE = """extends: grpo-tiny
data: [./questions.jsonl]
env: {OMP_NUM_THREADS: "2", MY_FLAG: "1"}
overrides:
  reward.custom_reward_function.path: ./reward.py
  data.max_response_length: 8
  ~data.seed:
  trainer.project_name: mine
  actor_rollout_ref.model.override_config.attn_implementation: eager
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_has_what_the_other_says_and_its_own_in_place(here: Path) -> None:
    (here / "mine.yml").write_text(MINE)
    base, mine = recipes.load("grpo-tiny"), recipes.load("mine.yml")
    assert (mine.name, mine.data, mine.model, mine.device) == ("mine", ("./questions.jsonl",), "tiny-adder", "cpu")
    assert mine.verl == base.verl
    assert mine.env == {**base.env, "OMP_NUM_THREADS": "2", "MY_FLAG": "1"}
    assert mine.override("data.max_response_length") == "8"
    assert mine.override("trainer.project_name") == "mine"
    assert mine.override("data.seed") is None
    assert mine.overrides["+actor_rollout_ref.model.override_config.attn_implementation"] == "eager"
    assert mine.override("trainer.save_freq") == base.override("trainer.save_freq")
    assert [key for key in mine.overrides if key in base.overrides] == [
        key for key in base.overrides if key != "data.seed"
    ]


def test_a_chain_of_three(here: Path) -> None:
    (here / "team").mkdir()
    (here / "team" / "base.yml").write_text("extends: grpo-tiny\noverrides: {data.seed: 7, trainer.save_freq: 5}\n")
    (here / "mine.yml").write_text("extends: team/base.yml\noverrides: {data.seed: 8}\n")
    mine = recipes.load("mine.yml")
    assert (mine.name, mine.override("data.seed"), mine.override("trainer.save_freq")) == ("mine", "8", "5")


def test_paths_start_from_the_file_that_names_them(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "project" / "team").mkdir(parents=True)
    (here / "project" / "team" / "base.yml").write_text(MINE)
    (here / "project" / "mine.yml").write_text(
        "extends: ./team/base.yml\noverrides: {data.val_files: [../a.parquet, /b.parquet], trainer.project_name: ./x}\n"
    )
    mine = recipes.load("project/mine.yml")
    assert mine.data == ("./project/team/questions.jsonl",)
    assert mine.override("reward.custom_reward_function.path") == "./project/team/reward.py"
    assert mine.override("data.val_files") == "[./a.parquet,/b.parquet]"
    assert mine.override("trainer.project_name") == "./x", "verl reads no file there"
    monkeypatch.chdir(here / "project" / "team")
    assert recipes.load(Path("../mine.yml")).override("data.val_files") == "[../../a.parquet,/b.parquet]"


@pytest.mark.parametrize(
    ("base", "message", "hint"),
    [
        ("grpo-tny", "mine.yml: extends: there is no recipe 'grpo-tny'; did you mean 'grpo-tiny'?", "Recipes: "),
        ("bsae.yml", "mine.yml: extends: there is no file bsae.yml; did you mean 'base.yml'?", "ls ."),
        ("mine.yml", "mine.yml: extends: mine.yml is a circle: mine.yml -> mine.yml", "Take extends out"),
        ("base.yml", "base.yml: extends: mine.yml is a circle: mine.yml -> base.yml -> mine.yml", "Take extends out"),
        ("[grpo]", "mine.yml: extends is a list, not the name of a recipe", "extends: grpo-tiny"),
    ],
)
def test_a_wrong_base_is_named(here: Path, base: str, message: str, hint: str) -> None:
    (here / "mine.yml").write_text(f"extends: {base}\n")
    (here / "base.yml").write_text("extends: mine.yml\n")
    with pytest.raises(SpecError) as caught:
        recipes.load("mine.yml")
    assert caught.value.message == message
    assert str(caught.value.hint).startswith(hint)


def test_an_error_names_the_file_that_has_it(here: Path) -> None:
    (here / "base.yml").write_text("extends: grpo-tiny\nmodl: x\n")
    (here / "mine.yml").write_text("extends: base.yml\n")
    with pytest.raises(SpecError, match=r"^base\.yml: .*modl"):
        recipes.load("mine.yml")
    (here / "base.yml").write_text("extends: grpo-tiny\n")
    (here / "mine.yml").write_text("extends: base.yml\nmodl: x\n")
    with pytest.raises(SpecError, match=r"^mine\.yml: .*modl"):
        recipes.load("mine.yml")


def test_show_says_where_each_value_comes_from_and_loads_as_the_same(here: Path) -> None:
    (here / "mine.yml").write_text(MINE)
    shown = recipes.render_recipe("mine.yml")
    assert "  data.max_response_length: 8 " in shown
    lines = {line.split(":")[0].strip(): line for line in shown.splitlines()}
    assert lines["data.max_response_length"].endswith("  # mine.yml")
    assert lines["trainer.save_freq"].endswith("  # grpo-tiny")
    (here / "whole.yml").write_text(shown)
    assert recipes.load("whole.yml") == recipes.load("mine.yml")
    (here / "dapo.yml").write_text(recipes.render_recipe("mine.yml", "dapo"))
    assert recipes.load("dapo.yml") == recipes.with_algorithm(recipes.load("mine.yml"), "dapo")
