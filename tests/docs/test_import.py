"""The page on scripts shows what its script becomes."""

import re
from pathlib import Path

import pytest
from typed_command import Run

pytestmark = pytest.mark.io

PAGE = (Path(__file__).parents[2] / "docs/import.md").read_text()
[SCRIPT] = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's script and the file that it names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "home"))
    (tmp_path / "train.sh").write_text(SCRIPT)
    (tmp_path / "reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 0.0\n"
    )
    return tmp_path


def test_the_lines_are_those_of_the_page(here: Path, run: Run) -> None:
    done = run("import", "train.sh", "-y").ended(0)
    assert done.out.split() == ["train.yml", "train.cluster.yml"]
    [shown] = re.findall(r"^```\n( +\d+  .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert done.err.startswith(shown)


def test_the_recipe_can_run(here: Path, run: Run) -> None:
    run("import", "train.sh", "-y").ended(0)
    done = run("check", "./train.yml", "-f", "train.cluster.yml", "--on", "dstack").ended(0)
    assert "on 2 nodes with 8" in done.out
    same = run("check", "./train.sh", "--on", "dstack").ended(0)
    assert "on 2 nodes with 8" in same.out
    assert "note: trainer.save_freq=20: it never reaches verl" in same.err
