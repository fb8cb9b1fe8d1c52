"""The cluster of a command that names none."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from command_tree import commands
from fake_local import FakeLocal
from small_step import write_step
from typed_command import Run

from cloudrl.errors import InputError
from cloudrl.plugins import providers
from cloudrl.protocol.progress import Notice
from cloudrl.providers.registry import provider
from cloudrl.sdk.choose import Purpose, choose_cluster

pytestmark = pytest.mark.io

READ_KEPT = (["logs"], ["why"], ["report"], ["checkpoints", "list"])
ASK = (["jobs", "list"], ["jobs", "logs"], ["jobs", "status"], ["watch"], ["debug", "--list"], ["attach"])
CHANGE = (["submit", "grpo-tiny", "--no-wait"], ["env"])
END = (["down", "-y"], ["detach"], ["jobs", "stop", "one"], ["checkpoints", "prune", "--keep-last", "1"])


@pytest.fixture
def two(home: Path) -> Iterator[tuple[FakeLocal, FakeLocal]]:
    """`old` and `new`, an hour apart."""
    with ExitStack() as stack:
        old, new = (stack.enter_context(FakeLocal(name)) for name in ("old", "new"))
        an_hour_ago = old.state.key_file.stat().st_mtime - 3600
        os.utime(old.state.key_file, (an_hour_ago, an_hour_ago))
        for cluster in (old, new):
            cluster.cluster.add("one")
            write_step(cluster.state.checkpoints / "run", 10)
        yield old, new


@pytest.mark.parametrize("words", [*ASK, *READ_KEPT, *CHANGE, *END], ids=" ".join)
def test_without_a_cluster_nothing_is_asked_and_the_next_step_is_the_same(
    home: Path, run: Run, words: list[str]
) -> None:
    done = run(*words).ended(2, "error: there is no cluster\n  → Start one: cloudrl up --nodes 2\n")
    assert "8265" not in done.err.replace("--address http://localhost:8265", "")


@pytest.mark.parametrize("words", [*ASK, *CHANGE], ids=" ".join)
def test_one_that_is_down_is_named_by_what_needs_one_that_is_up(lab: FakeLocal, run: Run, words: list[str]) -> None:
    lab.__exit__()
    run(*words).ended(2, "error: no cluster is up; lab is down\n  → Start one: cloudrl up --nodes 2\n")


def test_what_is_kept_is_read_of_one_that_is_down(lab: FakeLocal, run: Run) -> None:
    write_step(lab.state.checkpoints / "mine", 3)
    lab.__exit__()
    done = run("checkpoints", "list").ended(0, "cluster lab is down; this is what it has kept\n")
    assert "mine" in done.out
    for words in (["logs"], ["why"], ["report"]):
        assert "cluster lab is down; this is what it has kept\n" in run(*words).err, words


@pytest.mark.parametrize("words", [["checkpoints", "list"], ["jobs", "list"], ["attach"]], ids=" ".join)
def test_what_reads_takes_the_newest_and_says_so(two: tuple[FakeLocal, FakeLocal], run: Run, words: list[str]) -> None:
    run(*words).ended(0, "cluster new, the newest of 2\n  → For another: --cluster old\n")


def test_the_newest_of_those_that_are_up_comes_before_those_that_are_down(
    two: tuple[FakeLocal, FakeLocal], run: Run
) -> None:
    old, new = two
    new.__exit__()
    assert str(old.state.checkpoints) not in run("checkpoints", "list").ended(0).err
    assert choose_cluster(Purpose.READ_KEPT) == "old"
    old.__exit__()
    told: list[Notice] = []
    assert choose_cluster(Purpose.READ_KEPT, on_progress=told.append) == "new"  # type: ignore[arg-type]
    assert [notice.text for notice in told] == [
        "cluster new, the newest of 2", "cluster new is down; this is what it has kept"
    ]  # fmt: skip


@pytest.mark.parametrize("words", [*CHANGE, *END], ids=" ".join)
def test_what_sends_or_ends_does_not_guess(two: tuple[FakeLocal, FakeLocal], run: Run, words: list[str]) -> None:
    run(*words).ended(2, "there are several clusters: new, old\n  → Choose one: --cluster new")
    for cluster in two:
        assert list(cluster.cluster.jobs) == ["one"]


def test_without_times_the_newest_is_not_known(two: tuple[FakeLocal, FakeLocal]) -> None:
    old, new = two
    same = new.state.key_file.stat().st_mtime
    os.utime(old.state.key_file, (same, same))
    with pytest.raises(InputError, match="several clusters: new, old"):
        choose_cluster(Purpose.ASK)
    new.state.key_file.unlink()
    assert new.state.started_at is None


def test_default_names_of_providers_differ() -> None:
    names = [provider(name).default_cluster for name in providers()]
    assert len(set(names)) == len(names)


def test_a_name_that_is_nearly_right(lab: FakeLocal, run: Run) -> None:
    run("status", "lba").ended(2, "there is no cluster 'lba'; did you mean 'lab'?; running: lab")


def test_every_command_of_a_cluster_is_in_these_tests() -> None:
    tried = {" ".join(words) for words in (*ASK, *READ_KEPT, *CHANGE, *END)}
    named = {"status", "up", "run", "task create", "slurm script"}  # shows all, or starts one of that name
    as_list = {f"checkpoints {verb}" for verb in ("verify", "merge", "push", "pull")}
    as_submit = {"jobs resume", "checkpoints reshard"}
    for path, command in commands():
        if any("--cluster" in option.opts for option in command.params):
            name = " ".join(path)
            assert name in named | as_list | as_submit or any(words.startswith(name) for words in tried), name


@pytest.mark.parametrize("words", END, ids=" ".join)
def test_what_ends_does_not_take_the_only_one_that_is_seen(
    lab: FakeLocal, run: Run, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    lab.cluster.add("one")
    for name, value in (("SERVER_URL", "http://127.0.0.1:9"), ("TOKEN", "token"), ("PROJECT", "main")):
        monkeypatch.setenv(f"DSTACK_{name}", value)
    run(*words).ended(2, "whether lab is your only cluster is not known, as dstack", "Choose one: --cluster lab")
    assert list(lab.cluster.jobs) == ["one"]
