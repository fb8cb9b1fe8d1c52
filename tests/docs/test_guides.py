"""Every `$ cloudrl ...` of the guides is typed here, every Python block runs, and every YAML block is read.

The guides are written so that nothing in them rents or sends anything: a command either only prints or has
`--dry-run`. What they talk to is a stand-in for a local cluster of two nodes with GPUs.
"""

import ast
import re
import shlex
from collections.abc import Iterator
from datetime import datetime
from importlib import import_module
from pathlib import Path

import pytest
from fake_local import FakeLocal
from guide_pages import DOCS, GUIDES, PAGES, REPOSITORY, blocks
from kept_logs import keep
from lora_step import write_lora_step
from small_step import write_step
from typed_command import Run

import cloudrl
from cloudrl import recipes
from cloudrl.spec.yaml_core import load_value

pytestmark = pytest.mark.io

SAID = {
    "merge.md": "my-run step 20 complete",
    "import.md": "recipe train with 9 overrides",
    "python.md": "did you mean 'gpu'",
    "report.md": "ValueError: too few rows",
    "your-own-task.md": "",  # it defines a function
    "reward.md": "0.0 ",
}
REWARD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 0.0\n"
ROWS = "".join(f'{{"question": "{n} + 1?", "answer": "{n + 1}"}}\n' for n in range(1200))
DATA = {
    name: {"train": f"/root/data/{name}/train.parquet", "test": f"/root/data/{name}/test.parquet"}
    for name in ("gsm8k", "math", "nq_search", "nq_search_tool")
}


def commands(guide: str) -> list[str]:
    """The commands of a guide, in order."""
    lines = [line for block in blocks(DOCS / guide, "console") for line in block.text.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def python(guide: str) -> list[str]:
    return [block.text for block in blocks(DOCS / guide, "python")]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with what the guides name, and a cluster that is up."""
    (tmp_path / "reward.py").write_text(REWARD)
    [script, *_] = blocks(DOCS / "import.md", "bash")
    (tmp_path / "train.sh").write_text(script.text)
    (tmp_path / "calculator.py").write_text("from verl.tools.function_tool import function_tool\n")
    (tmp_path / "questions.jsonl").write_text(ROWS)
    (tmp_path / "tasks").symlink_to(DOCS.parent / "tasks")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "home"))
    fork = tmp_path / "Search-R1" / "verl"
    (fork / "version").mkdir(parents=True)
    (fork / "__init__.py").touch()
    (fork / "version" / "version").write_text("0.1")
    models = {"Qwen/Qwen2.5-7B-Instruct": "/root/models/qwen", "Qwen/Qwen2.5-7B": "/root/models/base"}
    facts = {"data": DATA, "models": models, "services": ["search"], "gpus_per_node": 8, "device": "gpu"}
    with FakeLocal("ray-cluster", facts=facts) as cluster:
        for step in (10, 20):
            write_step(tmp_path / "checkpoints" / "my-run", step)
        cluster.cluster.add("failed", b"ValueError: too few rows\n", "FAILED")
        for name in ("seed-1", "seed-2"):
            metadata = {"job_name": name, "cloudrl_group": "seeds"}
            cluster.cluster.add(name, b"step:1 - critic/score/mean:0.5\n", "SUCCEEDED", metadata=metadata)
        write_lora_step(tmp_path / "lora-run", 20)
        cluster.cluster.hold_run(tmp_path / "checkpoints" / "my-run", tmp_path)
        failed_at = datetime.now().astimezone().replace(hour=10, minute=4, second=12).timestamp()
        error, run = b"ValueError: too few rows\n", cluster.state.id
        keep(tmp_path / "disk-1", "logs/worker-1.err", error, run=run, rank=1, at=failed_at)
        yield tmp_path


def test_there_are_guides() -> None:
    assert len(GUIDES) > 50
    assert len([guide for guide in GUIDES if commands(guide)]) > 20
    assert len(commands("machines.md")) > 2


@pytest.mark.parametrize("guide", [guide for guide in GUIDES if commands(guide)])
def test_the_commands_of_a_guide(guide: str, place: Path, run: Run) -> None:
    for command in commands(guide):
        program, *words = shlex.split(command)
        assert program == "cloudrl", command
        done = run(*words)
        assert done.code == 0, f"{command}\n{done.err}"
        assert done.out.strip() or done.err.strip(), f"{command} says nothing"


@pytest.mark.parametrize("guide", [guide for guide in GUIDES if python(guide)])
def test_the_python_of_a_guide(guide: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in python(guide):
        exec(compile(text, guide, "exec"), {})
    assert SAID.get(guide, "type: task") in capsys.readouterr().out


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(REPOSITORY / page, "python")])
def test_what_the_python_of_a_page_imports_and_names_exists(page: str) -> None:
    """README's lines start a cluster, so they are not run here: every `cloudrl.NAME` in them is looked up."""
    for block in blocks(REPOSITORY / page, "python"):
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom):
                assert all(hasattr(import_module(str(node.module)), name.name) for name in node.names), block.text
            elif isinstance(node, ast.Import):
                assert all(import_module(name.name) for name in node.names)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "cloudrl":
                assert hasattr(cloudrl, node.attr), f"cloudrl.{node.attr}"


@pytest.mark.parametrize("guide", [guide for guide in GUIDES if blocks(DOCS / guide, "yaml")])
def test_the_yaml_of_a_guide(guide: str, place: Path) -> None:
    """A recipe or a cluster; of a cluster that is shown in part, the name is missing."""
    for block in blocks(DOCS / guide, "yaml"):
        fields = load_value(block.text, guide)
        is_recipe = "extends" in fields
        (place / "mine.yml").write_text(block.text if is_recipe or "name" in fields else f"name: mine\n{block.text}")
        declared = recipes.load("./mine.yml") if is_recipe else recipes.load_spec(cloudrl.Cluster, "mine.yml")
        assert fields.keys() - {"extends"} <= declared.explicit_fields().keys()


RETRIEVER = re.compile(r"cloudrl retriever (\w+)([^`\n]*)")


@pytest.mark.parametrize("page", PAGES)
def test_a_retrieval_server_has_the_options_that_are_named(page: str, run: Run) -> None:
    """Its commands need an encoder or a download, so they are not typed here."""
    for verb, words in RETRIEVER.findall((REPOSITORY / page).read_text()):
        options = set(re.findall(r"--[a-z][a-z-]*", words))
        assert options - set(re.findall(r"--[a-z][a-z-]*", run("retriever", verb, "--help").out)) == set(), verb
