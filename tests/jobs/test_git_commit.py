"""The commit that a job was submitted from."""

import subprocess
from pathlib import Path

import pytest

from cloudrl.jobs.git_commit import find_commit


def git(folder: Path, *words: str) -> str:
    named = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "reward.py").write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_a_commit_and_whether_files_differ_from_it(repository: Path) -> None:
    head = git(repository, "rev-parse", "--short", "HEAD").strip()
    (repository / "new.txt").write_text("not tracked")
    assert find_commit(repository) == head
    (repository / "reward.py").write_text("two")
    assert find_commit(repository) == f"{head} with changes"


def test_outside_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert find_commit(tmp_path) == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_commit(tmp_path) == ""
