"""What runs have needed, kept for later verdicts."""

from __future__ import annotations

import math

from cloudrl.verl.memory.runs import MemorySeen, RunMemory, earlier_run, lengths_of, parse_runs, run_alike
from cloudrl.verl.memory.workload import Lengths

RUN = RunMemory("grpo-1", "grpo", "Qwen/Qwen2.5-7B", "1 x 8 x H100", (28.7, 28.7, 34.0))
SEEN = {"perf/max_memory_allocated_gb": 28.8, "perf/max_memory_reserved_gb": 33.5}
LIMITS = Lengths(512, 1024)


def seen(*steps: dict[str, float]) -> RunMemory:
    found = MemorySeen()
    for step in steps:
        found.add(step)
    return found.of(RUN)


def test_the_most_of_all_steps_and_the_mean_lengths() -> None:
    first = {**SEEN, "prompt_length/mean": 100.0, "response_length/mean": 200.0}
    run = seen(
        first, {"perf/max_memory_allocated_gb": 20.0, "prompt_length/mean": 100.0, "response_length/mean": 400.0}
    )
    assert (run.allocated_gib, run.reserved_gib) == (28.8, 33.5)
    assert (run.prompt_tokens, run.answer_tokens) == (100, 300)
    assert run.sentence == (
        "training used at most 28.8 GiB of a GPU (reserved 33.5); estimated were 28.7 (28.7 to 34.0)"
    )


def test_older_steps_do_not_count_for_the_length() -> None:
    steps = [{"prompt_length/mean": 100.0, "response_length/mean": float(step)} for step in range(1, 101)]
    assert seen(*steps).answer_tokens == 90.5


def test_the_time_of_a_step_counts_for_runs_on_the_same_gpus() -> None:
    run = seen({"timing_s/step": 50.0}, {"timing_s/step": 60.0, "timing_s/testing": 30.0}, {})
    assert run.step_s == 70
    other = RunMemory(**{**vars(run), "shape": "2 x 8 x H100"})
    assert run_alike([run, other, RUN], RUN) == run
    assert run_alike([other, RUN], RUN) is None


def test_a_metric_of_the_actor_counts_and_what_is_no_number_does_not() -> None:
    run = seen({"actor/perf/max_memory_allocated_gb": 40.5, "perf/max_memory_reserved_gb": math.nan})
    assert (run.allocated_gib, run.reserved_gib) == (40.5, 0)
    assert seen({}).sentence == ""


def test_lines_of_one_run_add_up_and_others_are_left_out() -> None:
    later = RunMemory("grpo-1", allocated_gib=28.8)
    lines = [RUN.to_line(), RunMemory("other").to_line(), later.to_line(), "{", "[]", '{"submission_id": 3}', ""]
    other, run = parse_runs(lines)
    assert other.submission_id == "other"
    assert run == RunMemory(**{**vars(RUN), "allocated_gib": 28.8})


def test_a_line_of_a_version_to_come_is_read_as_far_as_it_is_known() -> None:
    [run] = parse_runs(['{"submission_id": "a", "recipe": "grpo", "estimate_gib": [1], "new": {"x": 1}}'])
    assert run == RunMemory("a", "grpo")


def test_the_last_run_of_the_recipe_with_the_model() -> None:
    runs = [RUN, RunMemory(**{**vars(RUN), "submission_id": "grpo-2", "answer_tokens": 300.0, "prompt_tokens": 90.0})]
    found = earlier_run(runs, "grpo", "Qwen/Qwen2.5-7B")
    assert found is not None
    assert found.submission_id == "grpo-2"
    assert earlier_run(runs, "ppo", "Qwen/Qwen2.5-7B") is None
    assert lengths_of(LIMITS, found, None, "").mean == 390
    assert lengths_of(LIMITS, found, 200.0, "the file").mean == 500


def test_without_a_run_the_prompts_of_the_data_count() -> None:
    found = lengths_of(LIMITS, None, 100.0, "the file")
    assert found.mean is None
    assert found.usual.likely == 100 + 512
    assert found.usual.high == 160 + 1024
    assert lengths_of(LIMITS, None, None, "") == LIMITS
