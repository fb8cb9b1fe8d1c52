"""The agent's command line, both ways."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.node.main import main
from cloudrl.protocol.options import AgentOptions, BudgetLimits, Ports
from cloudrl.protocol.services import Artifact, Service

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
COMMAND = TEXT.filter(str.strip)
NUMBER = st.integers(0, 2**40)
AMOUNT = st.floats(min_value=0, max_value=1e9, exclude_min=True)
PATH = st.lists(TEXT, max_size=3).map(lambda parts: Path("/", *(part.replace("/", "") for part in parts)))
MODULES = st.lists(st.from_regex(r"[a-z.]+", fullmatch=True), max_size=3)


def many(of: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(of, max_size=3).map(tuple)


def or_none(of: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | of


LIMITS = st.builds(BudgetLimits, idle_s=or_none(AMOUNT), price_per_hour=or_none(AMOUNT)) | st.builds(
    BudgetLimits, max_cost=AMOUNT, price_per_hour=AMOUNT
)
OPTIONS = st.builds(
    AgentOptions,
    device=st.sampled_from(["gpu", "cpu"]),
    services=many(st.builds(Service, port=st.integers(1, 65535), command=COMMAND)),
    artifacts=many(st.builds(Artifact, name=st.from_regex(r"[a-z]+", fullmatch=True), command=COMMAND)),
    import_check=MODULES.map(tuple),
    ports=st.builds(
        Ports, agent=NUMBER, head_agent=NUMBER | st.just(8266), gcs=NUMBER, worker=st.just((0, 0)) | st.just((7, 9))
    ),
    limits=LIMITS,
    **dict.fromkeys(("gpus", "cpus", "object_store_bytes", "lease_fd"), or_none(NUMBER)),
    **dict.fromkeys(("setup", "data", "models"), many(TEXT)),
    **dict.fromkeys(("checkpoints", "data_dir", "run_dir"), PATH),
    **dict.fromkeys(("ray_temp_dir", "key_file"), or_none(PATH)),
    **dict.fromkeys(("join_timeout_s", "lost_after_s"), AMOUNT),
)


@given(OPTIONS)
def test_what_is_written_is_what_is_read(options: AgentOptions) -> None:
    assert AgentOptions.from_argv(options.to_argv()) == options


def test_defaults_are_those_of_a_dstack_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    options = AgentOptions.from_argv([]).resolved
    assert AgentOptions().resolved == options
    assert options.data_dir == Path("/home/me/data")
    assert options.run_dir == Path("/home/me/.cloudrl/run")


def test_defaults_are_not_written_but_for_those_that_people_look_for() -> None:
    assert AgentOptions().to_argv() == ["--device=gpu", "--checkpoints=/checkpoints"]
    budget = AgentOptions(limits=BudgetLimits(1800.0, 200.0, 49.2)).to_argv()[2:]
    assert budget == ["--down-when-idle-s=1800", "--max-cost=200", "--price-per-hour=49.2"]


def test_the_heads_agent_listens_where_this_one_does_unless_it_is_said() -> None:
    assert AgentOptions.from_argv(["--agent-port=9000"]).ports == Ports(agent=9000, head_agent=9000)
    assert AgentOptions.from_argv(["--agent-port=9000", "--new"], strict=False).ports.head_agent == 9000
    assert AgentOptions(ports=Ports(agent=9000, head_agent=9000)).to_argv()[2:] == ["--agent-port=9000"]
    apart = AgentOptions(ports=Ports(agent=9000))
    assert apart.to_argv()[2:] == ["--agent-port=9000", "--head-agent-port=8266"]
    assert AgentOptions.from_argv(apart.to_argv()) == apart
    only_the_heads = AgentOptions.from_argv(["--head-agent-port=9000"])
    assert only_the_heads.ports == Ports(agent=8266, head_agent=9000)


def test_words_as_a_person_would_write_them() -> None:
    options = AgentOptions.from_argv(["--import-check=numpy,,torch", "--setup", "b", "--setup", "a"])
    assert options.import_check == ("numpy", "torch")
    assert options.setup == ("b", "a")


def test_folders_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = AgentOptions(checkpoints=Path("c"), key_file=Path("k")).resolved
    assert (options.checkpoints, options.key_file) == (tmp_path / "c", tmp_path / "k")
    assert options.ray_temp_dir is None


@pytest.mark.parametrize(
    "words",
    [
        ["--worker-ports=100"],
        ["--worker-ports=a-b"],
        ["--worker-ports=200-100"],
        ["--device=tpu"],
        ["--gpus-per-node=many"],
        ["--agent-port=x"],
        ["--service=bash launch.sh"],
        ["--chekpoints=/c"],
        ["--check=/c"],  # no abbreviations: a typed-in half of an option is a mistake
        ["--max-cost=0"],
        ["--max-cost=200"],  # it cannot count without a price
        ["surplus"],
    ],
)
def test_a_wrong_word_is_named_and_final(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *words]) == 0
    output = capsys.readouterr().out
    assert output.startswith("CLOUDRL FAILED: ")
    assert any(part in output for part in words[0].split("="))
