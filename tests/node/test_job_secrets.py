"""Secrets of jobs on a node: in a file of its owner's, and read by a shell without a change."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudrl.node.job_secrets import JobSecrets, folder_of, script
from cloudrl.node.uploads import ApiError
from cloudrl.protocol.folders import MEMORY

SHOW = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"


def read_back(path: Path, *arguments: str) -> tuple[dict[str, str], list[str]]:
    """What a program gets that is started behind the reader."""
    done = subprocess.run(
        ["/bin/sh", str(path), sys.executable, "-c", SHOW, *arguments],
        env={"PATH": os.environ["PATH"], "KEPT": "1", "HF_TOKEN": "of the node"},
        capture_output=True,
        check=True,
        timeout=60,
    )
    env, words = json.loads(done.stdout)
    return env, words


def test_the_shell_reads_them_and_becomes_the_command(tmp_path: Path):
    kept = JobSecrets(tmp_path / "secrets")
    kept.write("job", script({"HF_TOKEN": "hf_1", "LINES": "a\r\nb", "PASSWORD": "a'b\"c $HOME `id` \\ \n 训练"}))

    env, words = read_back(tmp_path / "secrets" / "job", "a b", "$HOME", "'")

    assert env["PASSWORD"] == "a'b\"c $HOME `id` \\ \n 训练"
    assert (env["HF_TOKEN"], env["KEPT"], env["LINES"]) == ("hf_1", "1", "a\r\nb")
    assert "a\r\nb" in str(kept.read("job"))
    assert words == ["a b", "$HOME", "'"]


@settings(max_examples=20)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50))
def test_any_value_survives(tmp_path_factory: pytest.TempPathFactory, value: str):
    path = tmp_path_factory.mktemp("secret") / "job"
    path.write_text(script({"X_TOKEN": value}), newline="")
    assert read_back(path)[0]["X_TOKEN"] == value


def test_a_draft_has_no_values_yet(tmp_path: Path):
    kept = JobSecrets(tmp_path)
    kept.write("job", script({"HF_TOKEN": "hf_1"}))
    (tmp_path / ".other.4242").write_text("export X_TOKEN='half")
    assert kept.values() == ["hf_1"]


class Counted(JobSecrets):
    """Counts what it reads."""

    reads = 0

    def read(self, job: str) -> str | None:
        """See `JobSecrets`."""
        self.reads += 1
        return super().read(job)


def test_secrets_of_jobs_that_are_over_are_read_once(tmp_path: Path):
    """Each piece of each log asked for all: half a second of 10,000 jobs."""
    kept = Counted(tmp_path)
    for number in range(50):
        kept.write(f"job{number}", script({"HF_TOKEN": f"hf_{number}"}))
    assert sorted(kept.values()) == sorted(f"hf_{number}" for number in range(50))
    assert kept.reads == 50
    kept.write("job7", script({"HF_TOKEN": "another"}))
    JobSecrets(tmp_path).write("job50", script({"HF_TOKEN": "of another node here"}))
    assert {"another", "of another node here"} <= set(kept.values())
    assert "hf_7" not in kept.values()
    assert kept.reads == 52
    os.utime(tmp_path, (1.0, 1.0))  # nothing has changed for long
    assert len(kept.values()) == 51
    (tmp_path / "job8").chmod(0o400)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", None)
        assert len(kept.values()) == 51
    assert kept.reads == 52
    kept.forget()
    assert kept.values() == []


def test_a_folder_that_has_just_changed_is_looked_into_again(tmp_path: Path):
    """Two changes may have the same time."""
    kept = JobSecrets(tmp_path)
    kept.write("job1", script({"HF_TOKEN": "hf_1"}))
    before = tmp_path.stat().st_mtime_ns
    assert kept.values() == ["hf_1"]
    kept.write("job2", script({"HF_TOKEN": "hf_2"}))
    os.utime(tmp_path, ns=(before, before))
    assert sorted(kept.values()) == ["hf_1", "hf_2"]


BAD_NAMES = ("A B", "", "1A", "A;id", "A\n")


@pytest.mark.parametrize("values", [None, [], "x", {"A": 1}, {"A": "x\0y"}, *({name: "x"} for name in BAD_NAMES)])
def test_what_are_no_secrets(values: object):
    with pytest.raises(ValueError):
        script(values)


def test_only_their_owner_can_read_them(tmp_path: Path):
    kept = JobSecrets(tmp_path / "secrets")
    old = os.umask(0)
    try:
        kept.write("job", "first")
        kept.write("job", "second")
    finally:
        os.umask(old)

    assert kept.read("job") == "second"
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "secrets" / "job").stat().st_mode) == 0o600
    assert os.listdir(tmp_path / "secrets") == ["job"]


def test_they_are_forgotten(tmp_path: Path):
    kept = JobSecrets(tmp_path / "secrets")
    kept.forget()
    kept.write("one", "1")
    kept.write("two", "2")
    assert (kept.read("one"), kept.read("two"), kept.read("three")) == ("1", "2", None)
    kept.forget()
    assert not (tmp_path / "secrets").exists()


def test_memory_that_takes_nothing(tmp_path: Path):
    kept = JobSecrets(tmp_path / "secrets")
    (tmp_path / "secrets" / "job").mkdir(parents=True)
    with pytest.raises(ApiError, match=r"cannot be kept in .*secrets: Is a directory") as caught:
        kept.write("job", "text")
    assert caught.value.status == 507
    assert os.listdir(tmp_path / "secrets") == ["job"], "no draft with secrets is left"

    (tmp_path / "file").touch()
    with pytest.raises(ApiError, match="cannot be kept in"):
        JobSecrets(tmp_path / "file").write("job", "text")


def test_where_they_lie():
    assert folder_of("0123-ab_C").parent == Path(MEMORY)
    assert folder_of("../../etc/x y").parent == Path(MEMORY)
    assert folder_of("a") != folder_of("b")
    assert len(os.fsencode(folder_of("x" * 500).name)) < 255


def test_a_machine_without_memory_for_files(tmp_path: Path):
    assert [JobSecrets(tmp_path / each).possible for each in ("secrets", "none/secrets")] == [True, False]
