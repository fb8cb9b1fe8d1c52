"""One grammar: a cluster is named the same way everywhere, and an option has one meaning."""

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from command_tree import commands, options
from patience import SLOWER
from typed_command import Run

pytestmark = pytest.mark.io

WITHOUT_CLUSTER = ("demo", "fleet", "volume", "recipes", "data", "reward", "verl", "import", "check", "retriever")
DESCRIBED_BY_THEIR_COMMANDS = {
    "--cluster",  # one to use, or one to start
    "--data", "--model",  # several are prepared on a cluster, one is trained by a job
    "--engine",  # what an index is built for, or what serves it
    "--group",  # the label that a run gets, or of the runs that are drawn
    "--keep-best", "--keep-every",  # beside what a job goes on from, or in place of what jobs keep
    "--name", "--nodes", "--to",  # the run; how many, or how many at most; where the result goes
    "--on-head",  # what is done there: a merge, or an upload
    "--output", "--port",  # a rendered file or a page; of a search server or of a page
    "--watch",  # what refreshes: the nodes of a cluster, or all of a job
}  # fmt: skip


def test_every_command_that_means_a_cluster_takes_its_name_by_the_same_option() -> None:
    for path, command in commands():
        assert ("--cluster" in options(command)) == (path[0] not in WITHOUT_CLUSTER), path


def test_an_option_has_one_meaning() -> None:
    said = defaultdict(set)
    for _, command in commands():
        for name, option in options(command).items():
            said[name].add((tuple(option.opts), option.help))
    several = {name for name, meanings in said.items() if len(meanings) > 1}
    assert several == DESCRIBED_BY_THEIR_COMMANDS


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status", "one", "--cluster", "two"], "one and --cluster two name two clusters"),
        (["submt"], "did you mean 'submit'"),
    ],
)
def test_a_slip_is_said(run: Run, words: list[str], said: str) -> None:
    run(*words).ended(2, said)


def test_options_win_over_the_file_and_set_reaches_into_it(run: Run, home: Path) -> None:
    (home.parent / "here" / "cluster.yml").write_text(
        "name: mine\nnodes: 4\ngpu: H100:8\ndstack:\n  backends: [aws]\n  max_price: 4\n"
    )
    words = ["task", "create", "-f", "cluster.yml", "--nodes", "3", "--set", "dstack.max_price=5"]
    shown = run(*words, "--dry-run").out
    for text in ("name: mine\n", "nodes: 3\n", "max_price: 5", "aws"):
        assert text in shown
    assert "gpu: H100:8" in run("run", "grpo", "--on", "dstack", "-f", "cluster.yml", "--dry-run").out
    assert "there is no file no-such.yml" in run("up", "-f", "no-such.yml").err


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("cloudrl stat", ["status"]),
        ("cloudrl status ", ["lab", "ray-cluster"]),
        ("cloudrl jobs list --cluster r", ["ray-cluster"]),
        ("cloudrl submit grpo-t", ["grpo-tiny"]),
        ("cloudrl up --on d", ["dstack"]),
    ],
)
def test_the_shell_completes_without_a_network(home: Path, line: str, completed: list[str]) -> None:
    for folder in ("clusters/lab", "dstack/main/ray-cluster"):
        (home / folder).mkdir(parents=True)
    variables = {
        "_CLOUDRL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")),
        "DSTACK_SERVER_URL": "http://127.0.0.1:9",
    }  # fmt: skip
    program = "import sys; sys.argv = ['cloudrl']; from cloudrl.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=30 * SLOWER,
    )  # fmt: skip
    assert done.stdout.split() == completed, done.stderr
