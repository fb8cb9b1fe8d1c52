"""Commands against servers that answer as no dashboard, no agent and no dstack server does: one clear error each."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fake_local import FakeLocal
from hostile_server import ENDLESS, WRONG, hostile
from typed_command import Run

pytestmark = pytest.mark.io

_TYPED = (
    "null", "a list", "an empty object", "deep jobs", "a huge integer", "a late time", "wrong types",
    "lists for objects", "a lone surrogate", "a gzip bomb", "302",
)  # fmt: skip
ANSWERS = {**{name: WRONG[name] for name in _TYPED}, "endless": ENDLESS["json"]}
"""All of them meet each call of each client in `tests/transport/test_hostile_answers.py`; commands meet these."""
OFTEN = ("a list", "deep jobs", "a huge integer", "wrong types", "302", "endless")
EACH = pytest.mark.parametrize(
    "answer", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in ANSWERS]
)
OF_A_DASHBOARD = [
    ("jobs", "list"), ("jobs", "list", "--json"), ("jobs", "status", "a"), ("jobs", "logs", "a"), ("jobs", "stop", "a"),
    ("why", "a"), ("report", "a", "--json"), ("watch", "a"), ("submit", "grpo-tiny", "--no-wait"), ("debug", "a"),
]  # fmt: skip
OF_A_CLUSTER = [
    *OF_A_DASHBOARD, ("status", "bad"), ("status", "bad", "--json"), ("status",), ("logs",), ("check", "grpo-tiny"),
    ("checkpoints", "list"), ("checkpoints", "verify"), ("checkpoints", "merge", "--to", "m"),
    ("checkpoints", "pull", "--to", "p"), ("checkpoints", "prune", "--keep-last", "1", "-y"),
]  # fmt: skip
OF_DSTACK = [
    ("fleet", "list"), ("volume", "list"), ("status", "dstack/bad"), ("attach", "dstack/bad"),
    ("down", "dstack/bad", "-y"),
    ("fleet", "create", "mine", "--gpu", "H100:8", "-y"), ("up", "bad", "--on", "dstack", "--gpu", "none", "-y"),
    ("fleet", "delete", "mine", "-y"),
]  # fmt: skip
FINE = (0, 2, 5)
"""0 where a command says that a cluster does not answer, such as `status`; 2 where a refusal names no such job."""


@pytest.fixture
def local(home: Path) -> Iterator[FakeLocal]:
    with FakeLocal("bad") as local:
        yield local


@EACH
def test_a_dashboard(run: Run, home: Path, answer: str) -> None:
    with hostile(ANSWERS[answer]) as server:
        for words in OF_A_DASHBOARD:
            done = run(*words, "--address", server.url)
            assert done.code in FINE, (words, done.err)
            assert done.code != 0 or words[0] in ("jobs", "watch", "debug"), (words, done.out)


@EACH
def test_a_cluster(run: Run, local: FakeLocal, answer: str) -> None:
    """Both its dashboard and its agent."""
    with hostile(ANSWERS[answer]) as server:
        port = urlsplit(server.url).port or 0
        replace(local.state, dashboard_port=port, agent_ports=(port, 3)).write()
        for words in OF_A_CLUSTER:
            done = run(*words)
            assert done.code in FINE, (words, done.err)
            if words[0] == "status" and answer not in ("302", "endless"):
                assert "not a cloudrl agent" in done.out
        local.state.write()


@EACH
def test_a_dstack_server(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    with hostile(ANSWERS[answer]) as server:
        for name, value in (("SERVER_URL", server.url), ("TOKEN", "secret-token"), ("PROJECT", "main")):
            monkeypatch.setenv(f"DSTACK_{name}", value)
        for words in OF_DSTACK:
            done = run(*words)
            assert done.code in (*FINE, 3), (words, done.err)
            assert "secret-token" not in done.out + done.err
