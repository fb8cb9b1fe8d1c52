"""What makes nothing of a model's calls is refused, with what to set instead."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from planning import cluster, plan, typed

from cloudrl import recipes
from cloudrl.errors import InputError
from cloudrl.jobs import SubmitOptions
from cloudrl.verl.tool_agent import GONE_FORMATS, TOOL_FORMATS

VERL = Path(find_spec("verl").origin).parent
PATHS = {"train": "/d/train.parquet", "test": "/d/test.parquet"}
ROLLOUT = "actor_rollout_ref.rollout"
LOOP, WORKERS = f"{ROLLOUT}.agent.default_agent_loop", f"{ROLLOUT}.agent.num_workers"
TURN = f"{ROLLOUT}.multi_turn"
SEARCH = f"{TURN}.function_tool_path=cloudrl://tools/search.py"


def notes(recipe: str, *given: str, here: Path = Path("/nowhere"), **changes: Any) -> tuple[str, ...]:
    job = recipes.load(recipe)
    shape = cluster(data=dict.fromkeys(job.data, PATHS), models={str(job.model): "/m"}, **changes)
    return plan(job, shape, SubmitOptions(overrides=typed(*given)), here=here).notes


def refused(recipe: str, *given: str, **changes: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        notes(recipe, *given, **changes)
    return caught.value


@pytest.mark.parametrize("recipe", ["search-grpo", "search-ppo"])
def test_the_recipes_are_right_and_what_is_refused_is_one_step_from_them(recipe: str) -> None:
    assert notes(recipe) == ()


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ([f"{TURN}.function_tool_path=null"], "has no tools", "cloudrl://tools/search.py"),
        ([f"{TURN}.format=qwen"], f"{TURN}.format=qwen: verl has no such parser", f"{TURN}.format=hermes"),
        ([f"{TURN}.format=llama3_json"], "verl has no such parser", "qwen3_coder"),
        ([f"{TURN}.max_assistant_turns=1"], "no tool is ever used", "One more than calls"),
        ([f"{TURN}.max_tool_response_length=500"], "=500 counts characters", f"{TURN}.max_tool_response_length=2400"),
    ],
)
def test_a_trap_is_refused_with_the_way_out(given: list[str], message: str, hint: str) -> None:
    error = refused("search-grpo", *given)
    assert message in error.message
    assert hint in str(error.hint)


def test_verls_default_length_is_as_short() -> None:
    error = refused("grpo", SEARCH, f"{LOOP}=tool_agent")
    assert error.message.startswith(f"{TURN}.max_tool_response_length=256, verl's default, counts characters")


@pytest.mark.parametrize(
    "given",
    [
        [f"{LOOP}=tool_agent", f"{TURN}.function_tool_path=/shared/calculator.py"],  # a number is short
        [f"{LOOP}=tool_agent", SEARCH, "data.max_response_length=160"],  # as is a conversation without passages
        [f"{LOOP}=tool_agent", SEARCH, f"{TURN}.max_tool_response_length=1000"],
        [f"{LOOP}=tool_agent", SEARCH, f"{TURN}.max_tool_response_length=${{data.max_response_length}}"],
        [f"{LOOP}=tool_agent", f"{ROLLOUT}.agent.agent_loop_config_path=/shared/loops.yaml"],
        [f"{TURN}.format=qwen", f"{TURN}.max_assistant_turns=1"],  # nothing reads them
        [f"{LOOP}=tool_agent", f"{TURN}.function_tool_path=/shared/research.py"],
        [
            f"{LOOP}=tool_agent",
            SEARCH,
            f"{TURN}.max_tool_response_length=2400",
            f"{TURN}.max_assistant_turns=0",
        ],  # no limit
        [f"{LOOP}=tool_agent", f"{TURN}.function_tool_path=/t.py", f"{TURN}.format=my_own"],
    ],
)
def test_what_may_be_right_is_left_alone(given: list[str]) -> None:
    assert notes("grpo", *given, nodes=1) == ()


def test_functions_that_nothing_calls() -> None:
    [note] = notes("grpo", SEARCH, f"{TURN}.max_tool_response_length=2400", nodes=1)
    assert note.startswith(f"{SEARCH} is used only with {LOOP}=tool_agent")


def test_an_older_verl_has_the_format() -> None:
    job = recipes.load("search-grpo").replace(verl="0.5", data=["gsm8k"])
    given = SubmitOptions(overrides=typed(f"{TURN}.format=qwen"))
    assert plan(job, cluster(verl_version="0.5", models={str(job.model): "/m"}), given)


@pytest.mark.parametrize(("nodes", "workers", "said"), [(4, 2, True), (4, 4, False), (9, None, True), (8, None, False)])
def test_fewer_workers_than_nodes_leave_servers_idle(nodes: int, workers: int | None, said: bool) -> None:
    given = [f"{WORKERS}={workers}"] if workers else [f"~{WORKERS}"]
    given.append(f"actor_rollout_ref.actor.ppo_mini_batch_size={nodes * 8}")
    found = [each for each in notes("search-grpo", *given, nodes=nodes) if WORKERS in each]
    asked = workers or 8
    expected = f"{WORKERS}={asked} asks the retrieval servers of {asked} of {nodes} nodes alone; all are asked with "
    assert found == [f"{expected}{WORKERS}={nodes}"] * said


CONFIG = """\
tools:
- class_name: {}
  config: {{retrieval_service_url: "http://127.0.0.1:8000/retrieve", type: native}}
"""


def test_a_class_that_verl_has_no_more(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text(CONFIG.format("verl.tools.search_tool.SearchTool"))
    error = refused("grpo", f"{LOOP}=tool_agent", f"{TURN}.tool_config_path=./tools.yaml", here=tmp_path)
    assert error.message == (
        f"{TURN}.tool_config_path=./tools.yaml names verl.tools.search_tool.SearchTool, "
        "which verl has no more since 0.8"
    )
    assert "cloudrl://tools/search.py" in str(error.hint)


@pytest.mark.parametrize("text", [CONFIG.format("mine.SearchTool"), "tools: 3", "- x", "{", ""])
def test_other_classes_and_other_files_are_verls_to_judge(tmp_path: Path, text: str) -> None:
    (tmp_path / "my.yaml").write_text(text)
    assert notes("grpo", f"{LOOP}=tool_agent", f"{TURN}.tool_config_path=./my.yaml", here=tmp_path, nodes=1) == ()
    assert notes("grpo", f"{LOOP}=tool_agent", f"{TURN}.tool_config_path=/on/the/nodes.yaml", nodes=1) == ()


def test_the_formats_are_those_of_the_installed_verl() -> None:
    parsers = (VERL / "experimental/agent_loop/tool_parser.py").read_text()
    assert set(re.findall(r'^@ToolParser\.register\("(.+)"\)$', parsers, re.MULTILINE)) == set(TOOL_FORMATS)
    assert not set(GONE_FORMATS) & set(TOOL_FORMATS)


def test_the_installed_verl_has_no_class_of_a_tool_but_the_base() -> None:
    modules = {path.stem for path in (VERL / "tools").rglob("*.py")}
    assert modules == {"__init__", "base_tool", "function_tool", "schemas", "tool_registry"}
