import re
from pathlib import Path

import pytest

from cloudrl import recipes
from cloudrl.errors import SpecError
from cloudrl.spec import Cluster, Job

EXAMPLE = """\
# a comment
summary: no
data: [gsm8k]
overrides:
  trainer.total_epochs: 15
  actor_rollout_ref.actor.optim.lr: 1e-6   # YAML 1.1 reads this as text
  trainer.val_before_train: False
  trainer.default_hdfs_dir: null
  trainer.logger: [console, wandb]
  +a.on: on
  +a.octal: 010
  +a.time: 1:30
  +a.date: 2024-01-01
  +a.text: "1e-6"
  +a.big: 1_000
  +a.half: .5
  +a.hex: 0x10
env: {NCCL_DEBUG: INFO, RAY_DEDUP_LOGS: 0}
"""


@pytest.fixture
def write(tmp_path):
    def written(text: str | bytes, name: str = "mine.yml") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return written


def refusal(asked: object) -> SpecError:
    with pytest.raises(SpecError) as caught:
        recipes.load(asked)
    return caught.value


def test_every_recipe_loads_under_its_own_name():
    assert recipes.names() == sorted(recipes.names())
    for name in recipes.names():
        job = recipes.load(name)
        assert job.name == name
        assert job.summary
        assert job.source
        assert job.verl


def test_a_file_is_a_job(write):
    path = write(EXAMPLE)
    job = recipes.load(str(path))
    assert job == recipes.load(path)
    assert job == Job(
        name="mine",
        summary="no",
        data=["gsm8k"],
        overrides={
            "trainer.total_epochs": 15,
            "actor_rollout_ref.actor.optim.lr": 1e-6,
            "trainer.val_before_train": False,
            "trainer.default_hdfs_dir": None,
            "trainer.logger": ["console", "wandb"],
            "+a.on": "on",
            "+a.octal": "010",
            "+a.time": "1:30",
            "+a.date": "2024-01-01",
            "+a.text": "1e-6",
            "+a.big": "1_000",
            "+a.half": 0.5,
            "+a.hex": "0x10",
        },
        env={"NCCL_DEBUG": "INFO", "RAY_DEDUP_LOGS": "0"},
    )


def test_a_file_may_name_itself(write):
    assert recipes.load(write("name: other\nmodel: Qwen/Qwen2.5-7B-Instruct\n")).name == "other"


def test_an_unknown_name_lists_what_there_is(monkeypatch):
    known = recipes.names()
    error = refusal("no-such-recipe")
    assert error.message.startswith("there is no recipe 'no-such-recipe'")
    assert error.hint == (f"Recipes: {', '.join(known)}. A file of your own is given by its path: ./no-such-recipe.yml")


def test_a_script_that_is_not_there_is_no_recipe():
    assert "run.sh" in refusal("run.sh").message
    assert "recipe" not in refusal("run.sh").message


def test_a_misspelt_name_gets_the_nearest():
    for name in recipes.names():
        assert refusal(name.upper()).message == f"there is no recipe {name.upper()!r}; did you mean {name!r}?"


@pytest.mark.parametrize("asked", ["./mime.yml", "mime.yaml", "sub/mime"])
def test_a_missing_file_is_named_with_its_nearest_neighbour(write, monkeypatch, asked):
    monkeypatch.chdir(write("name: x").parent)
    error = refusal(asked)
    meant = "" if "/" in asked[2:] else "; did you mean 'mine.yml'?"
    assert error.message == f"there is no file {asked}{meant}"
    assert error.hint.startswith("ls ")


def test_a_folder_is_no_recipe(tmp_path):
    assert refusal(tmp_path).message == f"{tmp_path} is a folder, not a file"


def test_a_folder_of_the_same_name_does_not_hide_a_recipe(tmp_path, monkeypatch):
    (tmp_path / "grpo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert recipes.load("grpo").name == "grpo"


@pytest.mark.parametrize(
    ("text", "where", "problem"),
    [
        ("a: [1\nb: 2\n", ":2", "expected ',' or ']', but got ':'"),
        ("name: x\na: b: c\n", ":2", "mapping values are not allowed here"),
        ("name: x\n\nname: y\n", ":3", "the key 'name' stands twice"),
        ("overrides:\n  a: 1\n  a: 2\n", ":3", "the key 'a' stands twice"),
        ("overrides: {1: 2}\n", ":1", "the key 1 is not text"),
        ("name: !!python/name:os.system\n", ":1", None),
        ("name: x\n--- \nname: y\n", ":2", "but found another document"),
        ("a: \x01\n", "", "unacceptable character #x0001: special characters are not allowed"),
        ("", "", "expected `field: value` lines, found nothing"),
        ("- a\n", "", "expected `field: value` lines, found a list"),
        ("just words\n", "", "expected `field: value` lines, found text"),
        (b"\xff\xfe\xff", "", "not a text file in UTF-8 (byte 0)"),
        ("overide: {}\n", "", "Job: unknown field 'overide'; did you mean 'overrides'?"),
        ("verl: 0.9\n", "", "Job.verl: 0.9 is not a release of verl; did you mean '0.9', in quotes?"),
        ("name: a b\n", "", "Job.name: 'a b' is not the name of a job"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_line(write, text, where, problem):
    path = write(text)
    message = refusal(path).message
    assert message.startswith(f"{path}{where}: ")
    if problem is not None:
        assert message == f"{path}{where}: {problem}"


def test_an_unreadable_file_is_refused(write, monkeypatch):
    path = write("name: x")

    def denied(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)  # root reads everything
    assert refusal(path).message == f"{path}: cannot be read: Permission denied"


def test_a_file_declares_a_whole_cluster(write):
    path = write("name: mine\nnodes: 2\ngpu: H100:8\ndstack: {backends: [aws], tags: {no: on}}\n")
    assert recipes.load_spec(Cluster, path) == Cluster(
        name="mine", nodes=2, gpu="H100:8", dstack={"backends": ["aws"], "tags": {"no": "on"}}
    )
    with pytest.raises(SpecError) as caught:
        recipes.load_spec(Cluster, write("name: mine\nnode: 2\n"))
    assert caught.value.message == f"{path}: Cluster: unknown field 'node'; did you mean 'nodes'?"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: " + "[" * 5000 + "]" * 5000, "nested"),
        ("a: " + "{a: " * 2000 + "1" + "}" * 2000, "nested"),
        ("\n".join("  " * depth + "a:" for depth in range(600)), "nested"),
        ("nodes: " + "9" * 10_000, "a number of 10,000 digits"),
        ("a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
            f"{name}: &{name} [{','.join([f'*{chr(ord(name) - 1)}'] * 9)}]\n" for name in "bcdefghijk"), "values"),
        ('summary: "\\ud800"', "holds a lone surrogate"),
        ('env: {A: "\\ud800"}', "holds a lone surrogate"),
    ],
    ids=["lists", "maps", "indented", "digits", "aliases", "surrogate", "surrogate in env"],
)  # fmt: skip
def test_a_file_out_of_bounds(write, text, says):
    error = refusal(write(text))
    assert re.search(says, str(error))
    assert len(str(error)) < 1000
