import math
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.verl.metrics import FailedPrompts, Step, not_finite, parse_step, parse_total_steps, plain, tool_failures

# As verl 0.9.1 printed it on a CPU cluster, through Ray's driver.
REAL = (
    "\x1b[36m(TaskRunnerV1 pid=20460)\x1b[0m step:5 - global_seqlen/min:699.0 - actor/pg_loss:0.0270 - "
    "critic/score/mean:0.115 - critic/rewards/mean:0.1 - num_turns/min:np.int32(2) - "
    "num_turns/mean:np.float64(2.0) - timing_s/step:2.23 - perf/throughput:np.float32(1.5e-05)"
)


def test_a_step_as_verl_prints_it():
    step = parse_step(REAL)

    assert step == Step(
        5,
        {
            "global_seqlen/min": 699.0,
            "actor/pg_loss": 0.0270,
            "critic/score/mean": 0.115,
            "critic/rewards/mean": 0.1,
            "num_turns/min": 2.0,
            "num_turns/mean": 2.0,
            "timing_s/step": 2.23,
            "perf/throughput": 1.5e-05,
        },
    )
    assert step.reward == 0.115
    assert step.step_s == 2.23


def test_the_steps_of_a_long_run_take_little_memory():
    keys = [f"group/metric_number_{number}" for number in range(100)]
    tracemalloc.start()
    steps = [parse_step(f"step:{n} - " + " - ".join(f"{key}:{n}.5" for key in keys)) for n in range(300)]
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held / len(steps) < 2500, "bytes; a dict of its own would take 13,000"
    assert steps[7].metrics == dict.fromkeys(keys, 7.5)
    assert list(steps[7].metrics) == keys
    assert "group/other" not in steps[7].metrics


def test_the_validation_before_training_has_neither_reward_nor_time():
    step = parse_step("(TaskRunnerV1 pid=7, ip=10.0.0.2) step:0 - val-core/toy/add/acc/mean@1:np.float64(0.072)")
    assert step.step == 0
    assert step.metrics == {"val-core/toy/add/acc/mean@1": 0.072}
    assert step.reward is None
    assert step.step_s is None


def test_a_step_takes_its_validation_and_its_saving_too():
    # verl 0.9.1, grpo-tiny on a CPU cluster: `step` contains `save_checkpoint`, and not `testing`
    times = "timing_s/gen:0.9 - timing_s/save_checkpoint:0.5 - timing_s/step:2.23"
    saves, tests = parse_step(f"step:4 - {times}"), parse_step(f"step:5 - {times} - timing_s/testing:0.75")

    assert (saves.step_s, saves.occasional_s) == (2.23, 0.5)
    assert (tests.step_s, tests.occasional_s) == (2.98, 1.25)


@pytest.mark.parametrize("testing", ["nan", "-1", "inf"])
def test_a_validation_without_a_time(testing: str):
    step = parse_step(f"step:5 - timing_s/step:2.0 - timing_s/testing:{testing}")

    assert (step.step_s, step.occasional_s) == (2.0, 0.0)


def test_a_step_that_is_glued_to_the_name_of_a_dump():
    # as verl 0.9.1 prints it with trainer.rollout_data_dir, now and then
    line = "\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m Dumped generations to /c/run/rollout/1.jsonlstep:2 - actor/lr:1e-06"

    assert parse_step(line) == Step(2, {"actor/lr": 1e-06})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0), ("-1.5e+3", -1500.0), (".5", 0.5), ("2.", 2.0), ("inf", math.inf), ("-inf", -math.inf),
        ("np.float64(-0.5)", -0.5), ("np.int64(3)", 3.0), ("True", 1.0), ("np.False_", None), ("array([1])", None),
        ("1e5x", None), ("", None), ("0x10", None),
        ("1e100", 1e100), ("1e101", math.inf), ("-1.7e308", -math.inf),
    ],
)  # fmt: skip
def test_values(text: str, value: float | None):
    step = parse_step(f"step:1 - key/a:b:{text} - good:1")

    assert step.metrics.get("key/a:b") == value
    assert step.metrics["good"] == 1.0


def test_not_a_number_is_a_value():
    step = parse_step("step:3 - critic/score/mean:np.float64(nan) - timing_s/step:nan")

    assert math.isnan(step.metrics["critic/score/mean"])
    assert step.step_s is None


def test_since_when_a_metric_is_not_finite():
    rows = ({"a": 1.0, "b": math.inf}, {"a": math.nan}, {"a": math.nan, "b": 1.0})
    assert not_finite([Step(number, row) for number, row in enumerate(rows, 1)]) == {"b": 1, "a": 2}


@pytest.mark.parametrize(
    "line",
    [
        "", "step:", "step:1", "step:1 - ", "step:1 - no numbers", "my_step:3 - a:1", "substep:3 - a:1", "step:x - a:1",
        # what a model has answered
        "[response] step:0 - a:1", "(TaskRunnerV1 pid=7) [response] step:0 - a:1", "so step:0 - a:1",
        "(TaskRunnerV1 pid=7)   step:0 - a:1", "see 1.jsonlstep:0 - a:1", "[response] (A pid=1) step:0 - a:1",
    ],
)  # fmt: skip
def test_other_lines_are_no_steps(line: str):
    assert parse_step(line) is None


def test_a_step_that_shares_its_line_with_a_progress_bar():
    line = "(TaskRunner pid=1) Training Progress:  10%|#   | 1/10 [00:05<00:45, 5.0s/it] step:1 - critic/score/mean:0.5"

    assert parse_step(line) == Step(1, {"critic/score/mean": 0.5})
    assert parse_total_steps(line) == 10


@pytest.mark.parametrize(
    ("line", "total"),
    [
        ("(TaskRunnerV1 pid=1) INFO:2026-11-21 10:00:00,123:Total training steps: 28", 28),
        ("\x1b[36m(TaskRunner pid=9)\x1b[0m Total training steps: 435", 435),
        ("Training Progress:   4%|▎         | 1/28 [00:05<02:20,  5.2s/it]", 28),
        ("Training Progress:   0%|          | 0/0 [00:00<?, ?it/s]", None),
        ("Total training steps: many", None),
        ("Total training steps: 0", None),
        ("Downloading: 10%|# | 1/28", None),
    ],
)
def test_total_steps(line: str, total: int | None):
    assert parse_total_steps(line) == total


def test_plain_text_of_a_line():
    assert plain("\x1b[36m(TaskRunnerV1 pid=20460)\x1b[0m hello") == "hello"
    assert plain("(pid=7) x") == "x"
    assert plain(" (W pid=1, ip=10.0.0.2)  x") == " x"
    assert plain("\x1b[33m(raylet)\x1b[0m (W pid=1) x") == "(raylet) (W pid=1) x"
    assert plain("pid= without prefix") == "pid= without prefix"
    assert plain("\x1b]0;title\x07text") == "text"


def test_a_line_of_blanks_takes_no_longer_than_others():
    line = "pid=" + " " * 30_000
    before_s = time.process_time()
    assert plain(line) == line
    assert time.process_time() - before_s < 0.5


steps = st.from_regex(
    r"\A(\x1b\[[0-9;]*m)?(\(A pid=1\) )?step:[0-9]{0,6000}( - [a-z/]{1,5}:[0-9.e+()np-]{0,20}){0,4}\Z"
)
starts = st.sampled_from(["", "step:", "step:1 - a:", "Total training steps: ", "(A pid=1) "])


@given(steps | st.builds("{}{}".format, starts, st.text()))
def test_no_line_makes_it_fail(line: str):
    parse_step(line)
    parse_total_steps(line)


@given(
    st.integers(0, 10**9),
    st.dictionaries(st.from_regex(r"\A[a-z][a-z_/@0-9-]{0,20}\Z"), st.floats(-1e100, 1e100), min_size=1),
)
def test_what_verl_writes_is_read_back(number: int, metrics: dict[str, float]):
    # verl 0.9.1, utils/logger/aggregate_logger.py: concat_dict_to_str
    line = " - ".join([f"step:{number}", *(f"{key}:{value!r}" for key, value in metrics.items())])

    assert parse_step(f"\x1b[36m(TaskRunnerV1 pid=1)\x1b[0m {line}") == Step(number, metrics)


@pytest.mark.parametrize(
    ("line", "failures"),
    [
        # verl 0.9.1, experimental/agent_loop/tool_agent_loop.py, _call_tool; as Ray passes them on
        ("\x1b[36m(AgentLoopWorker pid=7)\x1b[0m WARNING:Error executing tool 'search': 'q'", 1),
        ("(AgentLoopWorker pid=7) Invalid JSON in arguments for 'search': Expecting value", 1),
        ("(AgentLoopWorker pid=7) Unknown function 'find'. Available tools: ['search']", 1),
        (
            "(AgentLoopWorker pid=7) Error executing tool 'a': 'q'\x1b[32m [repeated 12x across cluster] (...)\x1b[0m",
            12,
        ),
        ("(TaskRunnerV1 pid=7) step:1 - critic/score/mean:0.5 [repeated 12x across cluster]", 0),
        ("executing tool search", 0),
    ],
)
def test_failed_calls_of_tools(line: str, failures: int):
    assert tool_failures(line) == failures


ENDLESS = [
    "Training Progress:" * 60_000,
    "Training Progress:|" * 60_000,
    "Total training steps:" + " " * 1_000_000,
    "Unknown function '" * 60_000,
    "step:1 - a:" + "1" * 1_000_000 + "x",
    "step:1 - a:np.float64(" * 50_000,
    "Dumped generations to " + ".jsonl" * 150_000,
    "\x1b]" * 500_000,
    "(" + "pid=1" * 200_000,
]
"""A million characters each: repetitions over which a pattern could go again and again."""


@pytest.mark.parametrize("line", ENDLESS, ids=lambda line: line[:24])
def test_a_line_of_a_million_characters_is_read_at_once(line: str):
    before_s = time.process_time()
    parse_step(line)
    parse_total_steps(line)
    tool_failures(line)
    plain(line)
    assert time.process_time() - before_s < 2


def test_numbers_that_no_metric_has():
    assert parse_step("step:1 - a:1" + "0" * 500) is None
    assert parse_step("step:1 - a:1.5.5") is None
    assert parse_step("step:1 - a:1. - b:.5 - c:+1e3").metrics == {"a": 1.0, "b": 0.5, "c": 1000.0}


@pytest.mark.parametrize(
    ("line", "failed"),
    [
        ("(AgentLoopWorkerTQ pid=77, ip=10.0.0.1) Error in _run_prompt for uid=3f2c", 1),
        ("\x1b[36m(AgentLoopWorkerTQ pid=77)\x1b[0m ERROR:Error in _run_prompt: boom", 1),
        (
            "(AgentLoopWorkerTQ pid=77) Error in _run_prompt for uid=3f2c\x1b[32m [repeated 63x across cluster]\x1b[0m",
            63,
        ),
        ("def _run_prompt(self): ...", 0),
        ("reward: 'Error in _run_prompts'", 0),
    ],
)
def test_prompts_that_got_no_score(line: str, failed: int) -> None:
    prompts = FailedPrompts()
    prompts.read(line)
    assert prompts.count == failed


def test_the_exception_behind_prompts_that_fail():
    """As verl logs it: Ray's own exception, then the traceback of the reward worker."""
    prompts = FailedPrompts()
    read = [
        "ValueError: of something before",
        "\x1b[36m(AgentLoopWorkerTQ pid=7)\x1b[0m ERROR:2026-11-26 21:42:39,662:Error in _run_prompt for uid=5bc9",
        "\x1b[36m(AgentLoopWorkerTQ pid=7)\x1b[0m Traceback (most recent call last):",
        "\x1b[36m(AgentLoopWorkerTQ pid=7)\x1b[0m ray.exceptions.RayTaskError(ValueError): ray::RewardLoopWorker.x()",
        "\x1b[36m(AgentLoopWorkerTQ pid=7)\x1b[0m     raise NoError: indented",
        "\x1b[36m(AgentLoopWorkerTQ pid=7)\x1b[0m json.decoder.JSONDecodeError: Expecting value\n",
        "(TaskRunnerV1 pid=9) INFO:2026-11-26 21:42:39,662:pending: 8",
    ]
    for line in read:
        prompts.read(line)
    assert (prompts.count, prompts.exception) == (1, "json.decoder.JSONDecodeError: Expecting value")
