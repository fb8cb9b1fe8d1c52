"""The search tool in verl's own tool agent, by the recipes' own settings, and how a run ends when it fails."""

import json
from pathlib import Path
from typing import Any

import pytest
from planning import cluster, plan
from verl_forks import Script

from cloudrl import recipes
from cloudrl.jobs import SubmitOptions

pytestmark = pytest.mark.verl

PROBE = Path(__file__).parent / "probes" / "agent_loop.py"


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    job = recipes.load("search-grpo")
    data = {name: {"train": "/d/train.parquet", "test": "/d/test.parquet"} for name in job.data}
    words = plan(job, cluster(data=data, models={str(job.model): "/m"}), SubmitOptions()).argv[3:]
    *lines, last = Script(PROBE, given=json.dumps({"overrides": words})).end()
    return {**json.loads(last), "lines": lines}


def test_the_model_reads_how_the_function_is_called(seen):
    prompt = seen["well"]["prompt"]
    assert '"name": "search"' in prompt
    assert '"query": {"type": "string", "description": "What to search for."}' in prompt


def test_what_is_found_reaches_the_model_and_is_not_trained_on(seen):
    well = seen["well"]
    shown = 'Doc {}(Title: "Ottawa") Ottawa is the capital of Canada.\n'
    assert "".join(shown.format(number) for number in (1, 2, 3)) in well["others"]
    assert "Ottawa is the capital" not in well["model"]
    assert '"arguments": {"query": "capital of Canada"}' in well["model"]
    assert well["model"].endswith("<answer> Ottawa </answer><|im_end|>")
    assert well["turns"] == 4  # question, call, passages, answer
    assert well["probabilities"]


def test_so_many_searches_as_the_recipe_says(seen):
    """One fewer than turns: the call in the last one is not executed."""
    assert seen["greedy"]["asked"] == 4
    assert seen["greedy"]["model"].count("<tool_call>") == 5


def test_the_trainer_gets_the_conversations_of_a_prompt(seen):
    assert seen["group"] == {"status": "finished", "trainer": "5 conversations"}


def test_a_search_that_fails_is_text_for_the_model(seen):
    assert "Error executing tool 'search': HTTP 500: no index" in seen["failing"]["others"]


def test_when_most_fail_the_trainer_fails_with_the_reason(seen):
    said = seen["ended"]["trainer"]
    assert seen["early"] == "finished", "the server might recover"
    assert said.startswith("ValueError: Unknown status: CLOUDRL FAILED: 17 of the last 20 searches on ")
    assert "the last with: HTTP 500: no index. Is the retrieval server of that node well (http://127.0.0.1:" in said
    assert seen["ended"]["statuses"] == ["failure"] * 12
    assert [each for each in seen["lines"] if "CLOUDRL" in each] == [said.removeprefix("ValueError: Unknown status: ")]
