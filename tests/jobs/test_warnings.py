"""What is wrong with a training that runs on, and what only looks so."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cloudrl.jobs.evidence import Evidence
from cloudrl.jobs.warnings import StepWarnings, find_warnings
from cloudrl.protocol.report import GpuUsage, Usage
from cloudrl.protocol.stops import Stop
from cloudrl.verl.metrics import Step

GB = 10**9


def steps(count: int, **metrics: float | Sequence[float]) -> list[Step]:
    """Trained ones; a value for all of them, or one for each. `score__mean` is `critic/score/mean`."""
    names = {"score": "critic/score", "length": "response_length", "actor": "actor"}
    rows = []
    for number in range(count):
        row = {"timing_s/step": 2.0}
        for name, value in metrics.items():
            group, _, key = name.partition("__")
            row[f"{names[group]}/{key}"] = value if isinstance(value, (int, float)) else value[number]
        rows.append(Step(number + 1, row))
    return rows


def kinds(trained: Sequence[Step] = (), **evidence: object) -> list[str]:
    return [each.kind for each in find_warnings(Evidence(trained, **evidence))]


def score(mean: float, low: float = 0.0, high: float = 1.0) -> dict[str, float]:
    return {"score__mean": mean, "score__min": low, "score__max": high}


LEARNS = score(0.4)


class TestDebugger:
    STOP = Stop("1", 0, 7, 5678, actor="WorkerDict", rank=1, method="update_actor", since=1000.0)

    def test_a_task_waits_for_minutes(self):
        later = replace(self.STOP, id="2", since=1100.0)
        [warning] = find_warnings(Evidence(stops=[later, self.STOP], now=1400.0))

        assert warning.kind == "debugger"
        assert warning.seen == (
            "WorkerDict rank 1 has waited for a debugger in update_actor for 6 min 40 s, and 1 more wait; "
            "the cluster costs as much as at work"
        )

    @pytest.mark.parametrize(
        ("stop", "now"), [(STOP, 1119.0), (replace(STOP, attached=True), 9000.0)], ids=["just now", "somebody is there"]
    )
    def test_it_is_no_warning(self, stop: Stop, now: float):
        assert kinds(stops=[stop], now=now) == []


class TestNotFinite:
    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_a_number_of_the_training_is_none(self, value: float):
        [warning] = find_warnings(Evidence(steps(8, actor__grad_norm=[1.0] * 5 + [value, value, 1.0])))

        assert (warning.kind, warning.seen) == ("nan", "NaN or infinite at step 6: actor/grad_norm")

    def test_a_few_stand_for_all(self):
        names = {f"actor__{letter}": math.nan for letter in "abcde"}
        [warning] = find_warnings(Evidence(steps(1, **names)))
        assert warning.seen == "NaN or infinite at step 1: actor/a, actor/b, actor/c and 2 more"

    @pytest.mark.parametrize(
        "trained",
        [steps(6, actor__grad_norm=[math.nan] + [1.0] * 5), [Step(1, {"val-aux/toy/std": math.nan})]],
        ids=["it recovered", "no part of the training"],
    )
    def test_it_harms_nothing(self, trained: list[Step]):
        assert kinds(trained) == []


class TestReward:
    @pytest.mark.parametrize("value", [0.0, -1.0])
    def test_no_answer_ever_scored(self, value: float):
        [warning] = find_warnings(Evidence(steps(5, **score(value, value, value))))

        assert warning.kind == "reward"
        assert f"every answer of the last 5 steps scored {value:g}" in warning.seen

    @pytest.mark.parametrize(
        "trained",
        [
            steps(4, **score(0.0, 0.0, 0.0)),
            steps(5, **score(1.0, 1.0, 1.0)),
            steps(5, score__mean=[0, 0, 0, 0, 0.01], score__min=0.0, score__max=[0, 0, 0, 0, 1]),
            steps(5, score__mean=[0, 0, 0, 0, -1], score__min=[0, 0, 0, 0, -1], score__max=[0, 0, 0, 0, -1]),
            [Step(number, {"val-core/toy/acc/mean@1": 0.0}) for number in range(5)],
        ],
        ids=["too early", "all are right", "one is right", "steps differ", "validation"],
    )
    def test_it_may_learn_yet(self, trained: list[Step]):
        assert kinds(trained) == []


class TestEntropy:
    def test_it_fell_and_the_answers_are_wrong(self):
        [warning] = find_warnings(Evidence(steps(15, actor__entropy=[2.0] * 5 + [0.1] * 10, **LEARNS)))

        assert "entropy fell from 2 to 0.1 nats" in warning.seen
        assert "entropy_coeff" in warning.remedy

    def test_a_model_that_is_right_is_sure(self):
        assert kinds(steps(15, actor__entropy=[2.0] * 5 + [0.1] * 10, **score(0.95))) == []

    def test_it_falls_as_it_does(self):
        assert kinds(steps(15, actor__entropy=[2.0] * 5 + [0.5] * 10, **LEARNS)) == []


class TestLength:
    def test_answers_are_cut_off(self):
        [warning] = find_warnings(Evidence(steps(5, length__clip_ratio=0.5, length__max=1024.0, **LEARNS)))

        assert warning.seen == "50% of the answers reach the limit of 1024 tokens and are cut off"

    def test_answers_that_reach_it_score(self):
        """Some of them end by themselves at the limit: more score than stay below it."""
        assert kinds(steps(5, length__clip_ratio=0.9, length__max=1024.0, **LEARNS)) == []

    def test_the_limit_is_what_the_task_wants(self):
        """As in `cloudrl demo`: a sum has two digits and its end."""
        assert kinds(steps(5, length__clip_ratio=0.5, length__max=3.0, **LEARNS)) == []

    def test_a_few_are_cut_off(self):
        assert kinds(steps(5, length__clip_ratio=[0.5, 0.5, 0.1, 0.5, 0.5], length__max=1024.0, **LEARNS)) == []


class TestTools:
    def test_calls_fail_in_several_steps(self):
        assert kinds(tool_failures=(0, 3, 0, 2, 0)) == ["tools"]

    @pytest.mark.parametrize("failures", [(0, 9, 0, 0, 0), (1, 1, 1, 1, 0), (9, 9, 0, 0, 0, 0, 0)])
    def test_now_and_then_one_fails(self, failures: tuple[int, ...]):
        assert kinds(tool_failures=failures) == []

    def test_prompts_that_fail_one_after_the_other(self) -> None:
        assert kinds(failed_prompts=20) == ["prompts"]
        assert kinds(failed_prompts=19) == []
        [warning] = find_warnings(Evidence(failed_prompts=20, prompt_exception="KeyError: 'rubric'"))
        assert "since the last step, the last one of KeyError: 'rubric': verl replaces each" in warning.seen


def busy(percent: float, *, seconds: int = 240) -> list[Usage]:
    """Samples of a node with two GPUs."""
    gpus = tuple(GpuUsage(index, utilization_percent=percent) for index in range(2))
    return [Usage(1000.0 + at, gpus=gpus) for at in range(0, seconds + 1, 5)]


class TestSlowNode:
    def test_the_others_wait_for_it(self):
        [warning] = find_warnings(Evidence(usage={0: busy(50), 1: busy(95), 2: busy(54)}))

        assert warning.kind == "node"
        assert warning.seen == "rank 1 computes 95% of the time, the others 52%: they wait for it"

    @pytest.mark.parametrize(
        "usage",
        [
            {0: busy(60), 1: busy(80)},
            {0: busy(95)},
            {0: busy(90), 1: busy(0), 2: busy(4)},
            {0: busy(50, seconds=60), 1: busy(95, seconds=60)},
            {0: [Usage(0.0), Usage(300.0)], 1: [Usage(0.0), Usage(300.0)]},
            {0: [], 1: []},
        ],
        ids=["alike", "one node", "others take no part", "too early", "no GPUs", "no samples"],
    )
    def test_nobody_waits(self, usage: dict[int, list[Usage]]):
        assert kinds(usage=usage) == []

    def test_nodes_that_only_generate_are_not_waited_for(self):
        usage = {0: busy(50), 1: busy(54), 2: busy(95)}
        assert kinds(usage=usage, pools={0: "training", 1: "training", 2: "rollout"}) == []
        assert kinds(usage=usage, pools={0: "training", 1: "rollout", 2: "training"}) == ["node"]


def disk(used_gb: Sequence[float], total_gb: float = 100.0, *, every_s: float = 600.0) -> list[Usage]:
    return [
        Usage(number * every_s, disk_used_bytes=round(used * GB), disk_total_bytes=round(total_gb * GB))
        for number, used in enumerate(used_gb)
    ]


class TestDisks:
    def test_one_will_be_full_before_the_end(self):
        [warning] = find_warnings(Evidence(usage={0: disk([10, 11]), 1: disk([60, 80])}, left_s=3600))

        assert warning.kind == "disk"
        assert warning.seen == (
            "the disk of rank 1 will be full in 10 min 00 s (20.0 GB of 100 GB free); the run needs 1 h 00 min more"
        )

    def test_the_fullest_stands_for_all(self):
        [warning] = find_warnings(Evidence(usage={0: disk([60, 80]), 1: disk([97]), 2: disk([96])}))

        assert warning.seen == "the disk of rank 1 is 97% full (3.0 GB of 100 GB free); likewise ranks 0, 2"

    @pytest.mark.parametrize(
        ("usage", "left_s"),
        [
            ({0: disk([60, 80])}, 300),
            ({0: disk([60, 61])}, None),
            ({0: disk([96_000], total_gb=100_000)}, None),
            ({0: disk([80, 60])}, 3600),
            ({0: disk([60, 80], every_s=60)}, 3600),
            ({0: [Usage(0.0), Usage(900.0)]}, 3600),
        ],
        ids=["lasts until the end", "lasts for hours", "a large share", "is emptied", "too early", "unknown"],
    )
    def test_it_lasts(self, usage: dict[int, list[Usage]], left_s: float | None):
        assert kinds(usage=usage, left_s=left_s) == []


def test_what_concerns_the_training_comes_first():
    trained = steps(15, actor__entropy=[2.0] * 5 + [0.1] * 10, length__clip_ratio=0.5, length__max=64.0, **LEARNS)
    assert kinds(trained, usage={0: disk([97])}, tool_failures=(3, 3)) == ["entropy", "length", "tools", "disk"]


def test_a_job_that_is_followed_warns_once_of_each_kind():
    """Of a long one the first and the last steps are kept, which all rules look at."""
    warnings, rise = StepWarnings(), [2.0] * 500 + [0.1] * 500
    trained = steps(1000, actor__entropy=rise, length__clip_ratio=0.5, length__max=64.0, **LEARNS)
    told = [(step.step, warning.kind) for step in trained for warning in warnings.add(step)]
    assert told == [(5, "length"), (505, "entropy")]
    dead = StepWarnings()
    assert [warning.kind for step in steps(9, **score(0.0, 0.0, 0.0)) for warning in dead.add(step)] == ["reward"]
