"""The page shows its files as they are, and `check` says of them what the page says; tests/e2e runs the commands."""

import json
import re
import shutil
from pathlib import Path

import pytest
from typed_command import Run

DOCS = Path(__file__).parents[2] / "docs"
FILES = DOCS / "own-task"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall((DOCS / "your-own-task.md").read_text())


@pytest.mark.parametrize(("kind", "name"), [("python", "reward.py"), ("yaml", "sums.yml")])
def test_a_file_is_shown_whole(kind: str, name: str) -> None:
    assert [text for language, text in BLOCKS if language == kind] == [(FILES / name).read_text()]


def test_a_question_is_shown_as_it_stands_in_the_file() -> None:
    lines = (FILES / "questions.jsonl").read_text().splitlines(keepends=True)
    assert [text for language, text in BLOCKS if language == "json"] == [lines[0]]
    assert len(lines) == 48


@pytest.mark.io
def test_check_says_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    shutil.copytree(FILES, tmp_path / "my-task")
    monkeypatch.chdir(tmp_path / "my-task")
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "home"))
    done = run("check", "./sums.yml", "--on", "local")
    tested = run("reward", "test", "./reward.py", "--data", "./questions.jsonl")
    table, _go_on = [text for language, text in BLOCKS if language == "text"]
    assert tested.out.startswith(table), tested.err
    [said] = [text for language, text in BLOCKS if not language]
    assert done.code == 0, done.err
    assert set(said.splitlines()) <= set((done.err + done.out).splitlines())


@pytest.mark.io
def test_the_next_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """A csv file, a system prompt, and a module that the reward imports, with the options that the page names."""
    shutil.copytree(FILES, tmp_path / "next")
    monkeypatch.chdir(tmp_path / "next")
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "home"))
    rows = [json.loads(line) for line in Path("questions.jsonl").read_text().splitlines()]
    Path("sums.csv").write_text("".join(["problem,solution\n", *(f"{r['question']},{r['answer']}\n" for r in rows)]))
    Path("scoring.py").write_text("def near(answer, truth):\n    return float(answer == truth)\n")
    arguments = "data_source, solution_str, ground_truth, extra_info=None"
    call = "near(solution_str.strip(), ground_truth)"
    Path("reward.py").write_text(f"from scoring import near\n\n\ndef compute_score({arguments}):\n    return {call}\n")
    Path("sums.yml").write_text(Path("sums.yml").read_text().replace("./questions.jsonl", "./prepared"))

    run("data", "prepare", "./sums.csv", "--system", "Answer with a number.", "--to", "./prepared").ended(0)
    run("reward", "test", "./reward.py", "--data", "./prepared", "--working-dir", ".").ended(0)
    run("check", "./sums.yml", "--on", "local").ended(2)
    checked = run("check", "./sums.yml", "--on", "local", "--working-dir", ".", "data.max_prompt_length=64").ended(0)
    assert "nothing found that would stop sums" in checked.out + checked.err
