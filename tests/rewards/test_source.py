"""What is wrong with a reward function by its source: parameters, a `return`, imports. Nothing is run."""

from __future__ import annotations

import ast
import sys
from typing import Any

import pytest

from cloudrl.rewards.source import faults_of, find_function, missing_imports, reads_row
from cloudrl.rewards.verdict import Described, Level, image_modules, import_faults
from cloudrl.verl.reward_calls import RewardCall, reward_call

GOOD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"


def faults(text: str, **call: Any) -> list[tuple[str, int, str]]:
    return [(each.kind, each.line, each.text) for each in faults_of(ast.parse(text), RewardCall("./reward.py", **call))]


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "def compute_score(**kwargs):\n    return 1.0",
        "def compute_score(solution_str, ground_truth, **kwargs):\n    return 1.0",
        "def compute_score(*, data_source, solution_str, ground_truth, extra_info, more=1):\n    return 1.0",
        "async def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return {'score': 1.0}",
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    raise ValueError",
        "compute_score = make()",
        "@wrapped\ndef compute_score(answer):\n    return 1.0",
        "def compute_score(answer):\n    return 1.0\ncompute_score = wrapped(compute_score)",
        "def compute_score(a):\n    return 1.0\ntry:\n    from my import compute_score\nexcept ImportError:\n    pass",
    ],
)
def test_what_verl_can_call(text: str) -> None:
    assert faults(text) == []


def test_parameters_that_verl_does_not_pass() -> None:
    [(kind, line, text)] = faults("import re\ndef compute_score(answer, truth):\n    return 1.0\n")
    assert (kind, line) == ("signature", 2)
    assert text == (
        "compute_score(answer, truth) has no parameters 'data_source', 'solution_str', 'ground_truth', 'extra_info', "
        "and needs 'answer', 'truth'; verl passes data_source, solution_str, ground_truth, extra_info by name"
    )


def test_a_parameter_too_few_and_one_too_many() -> None:
    [(_, _, text)] = faults("def compute_score(data_source, solution_str, ground_truth):\n    return 1.0\n")
    assert "has no parameter 'extra_info'; verl passes" in text
    [(_, _, text)] = faults(GOOD.replace("extra_info=None", "extra_info, tokenizer"))
    assert "needs 'tokenizer'; verl passes" in text
    assert faults(GOOD.replace("extra_info=None", "extra_info, scale"), keywords={"scale": 2.0}) == []


def test_parameters_by_position_only() -> None:
    [(kind, _, text)] = faults(GOOD.replace("extra_info=None", "extra_info, /"))
    assert kind == "signature"
    assert "has no parameters 'data_source'" in text


def test_lists_are_for_another_manager() -> None:
    batch = "def compute_score(data_sources, solution_strs, ground_truths, extra_infos):\n    return [1.0]\n"
    [(_, _, text)] = faults(batch)
    assert "Lists are for the reward manager 'batch'" in text
    assert faults(batch, manager="batch") == []


def test_a_reward_model_passes_its_address() -> None:
    [(_, _, text)] = faults(GOOD, has_router=True)
    assert "has no parameters 'reward_router_address', 'reward_model_tokenizer'" in text


def test_no_return() -> None:
    text = GOOD.replace("return 1.0", "score = 1.0\n    def inner():\n        return score\n    return")
    assert faults(text) == [("return", 1, "compute_score has no `return` with a value, so that verl gets None")]


def test_the_manager_remote_takes_no_coroutine() -> None:
    assert faults(f"async {GOOD}", manager="remote")[0][:2] == ("signature", 1)
    assert faults(GOOD, manager="remote") == []


def test_what_a_function_looks_at() -> None:
    def looks(body: str, parameters: str = "data_source, solution_str, ground_truth, extra_info") -> bool:
        tree = ast.parse(f"def f({parameters}):\n    {body}")
        return reads_row(find_function(tree, "f"))

    assert not looks("return float(solution_str == ground_truth)")
    assert looks("return 1.0 if data_source == 'a' else 0.0")
    assert looks("return extra_info['index']")
    assert looks("return kwargs['extra_info']", "**kwargs")
    assert reads_row(None)


IMPORTS = """
import re, not_there_a
from not_there_b.inner import x
from . import beside
try:
    import not_there_c
except ImportError:
    not_there_c = None
if TYPE_CHECKING:
    import not_there_d
def f():
    import not_there_e, mine
    import not_there_a
"""


def test_imports_that_are_missing() -> None:
    missing = missing_imports(ast.parse(IMPORTS), sys.path, {"mine"})
    assert [(each.module, each.line) for each in missing] == [
        ("not_there_a", 2), ("not_there_b", 3), ("not_there_e", 12),
    ]  # fmt: skip


def test_an_import_that_only_the_image_has_is_a_note() -> None:
    named = Described("./reward.py", "compute_score", 9)
    missing = missing_imports(ast.parse("import vllm\nimport sympy_not_there"), [], ())

    def levels(**where: bool) -> list[Level]:
        return [fault.level for fault in import_faults(named, missing, **where)]

    assert levels(nodes_are_here=False, may_install=False) == [Level.NOTE, Level.WARNING]
    assert levels(nodes_are_here=False, may_install=True) == [Level.NOTE, Level.WARNING]
    assert levels(nodes_are_here=True, may_install=False) == [Level.ERROR, Level.ERROR]
    first = next(import_faults(named, missing, nodes_are_here=False, may_install=False))
    assert first.text == (
        "./reward.py:1: imports 'vllm', which the image has and this Python does not: compute_score was not called"
    )


def test_the_modules_of_the_images() -> None:
    assert {"torch", "vllm", "sglang", "verl", "numpy", "sympy", "yaml", "PIL"} <= image_modules()


def test_how_a_job_calls_its_function() -> None:
    assert reward_call({}) is None
    assert reward_call({"reward.custom_reward_function.path": "null"}) is None
    call = reward_call({
        "reward.custom_reward_function.path": "./r.py",
        "reward.custom_reward_function.reward_kwargs.scale": "0.5",
        "reward.custom_reward_function.reward_kwargs.deep.er": "[1,a]",
        "reward.reward_manager.name": "dapo",
        "data.reward_fn_key": "origin",
    })  # fmt: skip
    assert call == RewardCall(
        "./r.py", "compute_score", {"scale": 0.5, "deep": {"er": [1, "a"]}}, "dapo", source_column="origin"
    )
    assert call.passed == ("data_source", "solution_str", "ground_truth", "extra_info", "scale", "deep")


def test_how_a_job_for_an_older_verl_calls_it() -> None:
    old = reward_call({
        "custom_reward_function.path": "./old.py", "custom_reward_function.name": "score",
        "custom_reward_function.reward_kwargs": "{a:1,b:x}", "reward_model.reward_manager": "batch",
        "reward_model.enable": "True",
    })  # fmt: skip
    assert old == RewardCall("./old.py", "score", {"a": 1, "b": "x"}, "batch", has_router=True)
    both = reward_call({"custom_reward_function.path": "./old.py", "reward.custom_reward_function.path": "./new.py"})
    assert both is not None
    assert both.path == "./new.py"
    own = reward_call({"reward.custom_reward_function.path": "./r.py", "reward.reward_manager.module.path": "./m.py"})
    assert own is not None
    assert not own.is_known


@pytest.mark.parametrize(
    ("key", "value", "adds"),
    [
        ("multi_turn.enable", "True", True),
        ("multi_turn.enable", "False", False),
        ("agent.default_agent_loop", "x", True),
        ("agent.num_workers", "1", False),
    ],
)
def test_tools_and_agents_add_fields(key: str, value: str, adds: bool) -> None:
    call = reward_call({"reward.custom_reward_function.path": "./r.py", f"actor_rollout_ref.rollout.{key}": value})
    assert call is not None
    assert call.adds_fields is adds
