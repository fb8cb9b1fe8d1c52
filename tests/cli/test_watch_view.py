"""The screen of `cloudrl watch`; the golden files show it at two widths."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cloudrl.cli._watch_view import draw
from cloudrl.jobs import Progress
from cloudrl.jobs.events import EventReader
from cloudrl.jobs.evidence import RunWarning
from cloudrl.jobs.look import JobRecord, Look, Price
from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import GpuUsage, NodeReport, Usage
from cloudrl.transport.ray_job import JobStatus
from cloudrl.verl.balance import Balance
from cloudrl.verl.metrics import Step

GIB = 2**30
VALIDATION = "val-core/openai/gsm8k/reward/mean@1"


def step(number: int) -> Step:
    metrics = {
        "critic/score/mean": 0.2 + 0.6 * number / (number + 10), "actor/entropy": 2.0 / number,
        "response_length/mean": 250.0 + 8 * number, "actor/grad_norm": 0.5 + 0.1 * (number % 3),
        "perf/throughput": 900.0 + number % 7, "timing_s/gen": 21.0, "timing_s/update_actor": 12.5,
        "timing_s/old_log_prob": 4.0, "timing_s/step": 40.0,
    }  # fmt: skip
    if number % 10 == 0:
        metrics |= {VALIDATION: number / 50, "timing_s/testing": 6.0}
    return Step(number, metrics)


def usage(percents: tuple[float, ...], disk_share: float) -> Usage:
    gpus = tuple(
        GpuUsage(index, "NVIDIA H100", percent, 60_000, 81_559, 600.0, 61.0) for index, percent in enumerate(percents)
    )
    return Usage(100.0, 23.0, 200 * GIB, 1024 * GIB, round(disk_share * 3000 * GIB), 3000 * GIB, 5e6, 1.2e9, gpus)


LOOK = Look(
    url="ray://lab/grpo-20261123",
    status=JobStatus.RUNNING,
    seconds=2000.0,
    steps=[step(number) for number in range(1, 41)],
    progress=Progress(40, 100, {"reward": 0.68}, 41.5, 2490.0),
    nodes=(
        NodeReport(0, "10.0.0.1", phase=Phase.READY, usage=usage((94.0,) * 8, 0.2)),
        NodeReport(1, "10.0.0.2", phase=Phase.READY, usage=usage((99.0,) * 7 + (3.0,), 0.8), seen_s_ago=31.0),
    ),
    cost=21.5,
    cost_at_end=48.25,
    lines=("Runtime env is setting up.", "step:40 - critic/score/mean:0.68", "Saving to /c/run/global_step_40"),
    warnings=(RunWarning("length", "50% of the answers are cut off", "Raise data.max_response_length"),),
)


def drawn(look: Look, width: int = 79, height: int = 24, *curves: str) -> list[str]:
    return [line.plain.rstrip() for line in draw(look, width, height, curves)]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_the_screen(golden: Callable[[Path, str], None], repository: Path, width: int, height: int):
    lines = drawn(LOOK, width - 1, height)

    assert len(lines) <= height
    assert max(map(len, lines)) < width
    golden(repository / f"tests/golden/watch-{width}.txt", "\n".join([*lines, ""]))


def test_a_job_that_has_just_been_submitted():
    assert drawn(Look("ray://lab/one", JobStatus.PENDING, notice="nobody answers; trying again")) == [
        "ray://lab/one  PENDING",
        "waiting for the first step",
        "nobody answers; trying again",
    ]


@pytest.mark.parametrize(("width", "height"), [(20, 5), (79, 8), (79, 12), (40, 30), (300, 100)])
def test_it_fits_any_terminal(width: int, height: int):
    lines = drawn(replace(LOOK, nodes=LOOK.nodes * 30), width, height)

    assert lines[0].startswith("ray://lab/grpo-2026")
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


class TestCurves:
    def test_those_that_were_asked_for_come_after_reward_and_validation(self):
        text = "\n".join(drawn(LOOK, 79, 60, "perf/throughput"))
        keys = ["reward", "val openai/gsm8k", "perf/throughput", "response_length/mean"]
        assert [key for key in keys if key not in text] == []
        assert sorted(keys, key=text.index) == keys
        assert text.count("perf/throughput") == 1

    def test_a_key_that_does_not_occur_is_said(self):
        text = "\n".join(drawn(LOOK, 199, 60, "actor/entropie", "x"))
        assert "actor/entropie (unknown; actor/entropy?)" in text
        assert "x (unknown)" in text

    def test_a_fine_tuning_has_its_losses(self):
        steps = [Step(number, {"train/loss": 3.0 / number, "val/loss": 4.0 / number}) for number in range(1, 9)]
        text = "\n".join(drawn(replace(LOOK, steps=steps), 119, 60))
        assert "train/loss 0.375" in text
        assert "val/loss 0.5" in text
        assert "reward" not in text.split("train/loss")[1]

    def test_there_are_none_before_the_first_step(self):
        assert "unknown" not in "\n".join(drawn(replace(LOOK, steps=()), 119, 60, "actor/entropy"))


class TestNodes:
    def test_how_busy_they_were(self):
        hour = [Usage(5.0 * number, cpu_percent=100.0 * number / 719) for number in range(720)]
        idle = [usage((0.0,) * 8, 0.1), replace(usage((0.0,) * 8, 0.1), sampled_at=200.0)]
        look = replace(LOOK, usage={0: hour, 1: idle}, nodes=[replace(each, usage=None) for each in LOOK.nodes])
        text = "\n".join(drawn(look, 150, 40))
        assert "busy, last hour" in text
        assert "▁▁▂▃▃▄▅▆▆▇██" in text
        assert "▁          ▁" in text
        assert "busy, last hour" not in "\n".join(drawn(look, 100, 40))

    def test_those_in_trouble_come_first(self):
        fine = [NodeReport(rank, f"10.0.0.{rank}", phase=Phase.READY) for rank in range(64)]
        failed = replace(fine[40], phase=Phase.FAILED, failure=Failure(FailureKind.RAY, 40, "raylet died"))
        lines = drawn(Look("u", JobStatus.RUNNING, nodes=(*fine[:40], failed, *fine[41:])))

        at = lines.index("rank  address    phase")
        assert lines[at + 1] == "40    10.0.0.40  failed  raylet died"
        assert lines[at + 2] == "0     10.0.0.0   ready"
        assert lines[at + 18] == "and 47 more nodes"

    def test_curves_leave_what_they_do_not_need_to_the_nodes(self):
        fine = tuple(replace(LOOK.nodes[0], rank=rank) for rank in range(16))
        text = "\n".join(drawn(replace(LOOK, nodes=fine, warnings=()), 199, 50))
        assert "more nodes" not in text
        assert "\n15 " in text

    def test_trouble_is_not_green(self):
        [row] = [line for line in draw(LOOK, 119, 40) if "no heartbeat" in line.plain]
        assert {span.style for span in row.spans} == {"yellow"}

    def test_a_node_without_gpus(self):
        busy = Usage(1.0, cpu_percent=12.0, memory_used_bytes=3 * GIB, memory_total_bytes=4 * GIB)
        lines = drawn(Look("u", JobStatus.RUNNING, nodes=(NodeReport(0, "10.0.0.1", phase=Phase.READY, usage=busy),)))

        assert [line.split() for line in lines if line.startswith(("rank", "0"))] == [
            ["rank", "address", "phase", "CPU", "mem"],
            ["0", "10.0.0.1", "ready", "12%", "75%"],
        ]


def test_an_asynchronous_job_shows_its_balance_and_its_pools():
    pace = Balance(age=1.5, oldest=3.0, waiting=0.25, idle={"training": 0.3, "rollout": 0.0})
    lines = drawn(replace(LOOK, balance=pace, pools={0: "training", 1: "rollout"}), 119, 40)
    at = next(place for place, line in enumerate(lines) if line.startswith("a step:"))
    assert lines[at + 1 : at + 3] == [
        "weights behind an answer: 1.5 steps old, at most 3  training waits for the rollout: 25% of the time",
        "GPUs of the training nodes idle: 30% of the time  GPUs of the rollout nodes idle: 0% of the time",
    ]
    rows = [line.split()[:4] for line in lines if line.startswith(("rank", "0  ", "1  "))]
    assert rows == [
        ["rank", "address", "phase", "pool"],
        ["1", "10.0.0.2", "ready", "rollout"],
        ["0", "10.0.0.1", "ready", "training"],
    ]


def test_a_warning_is_wrapped_and_stays_on_a_small_screen():
    long = RunWarning("reward", "every answer " + "scored 0 " * 20, "read some of them\nor stop it")
    lines = drawn(replace(LOOK, warnings=(long,)), 60, 16)

    assert any(line.startswith("! every answer") for line in lines)
    assert [line for line in lines if line.startswith("  →")] == ["  → read some of them", "  → or stop it"]


def test_hostile_text_steers_nothing():
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\r\n\x9b"
    node = NodeReport(0, evil, phase=Phase.FAILED, failure=Failure(FailureKind.RAY, 0, evil))
    look = replace(
        LOOK,
        url=f"ray://lab/{evil}",
        steps=[Step(1, {f"val-core/{evil}/acc": 0.5, f"timing_s/{evil}": 1.0, "timing_s/step": 2.0})],
        nodes=(node,),
        lines=(evil,),
        notice=evil,
        warnings=(RunWarning("reward", evil, evil),),
    )

    text = "".join(drawn(look, 200, 60, f"x{evil}"))

    assert text.count("owned") >= 8
    assert [each for each in text if not each.isprintable()] == []


def test_numbers_at_the_limits_of_a_float():
    record = JobRecord("ray://lab/one")
    record.price = Price(1.0, 2.0, at=0.0)
    values = ("-1e100", "1e308", "1e100", "-1.7e308")
    lines = [
        f"step:{number} - critic/score/mean:{values[number % 4]} - actor/entropy:{values[number % 4]} - "
        f"timing_s/gen:1e308 - timing_s/step:{values[number % 4].lstrip('-')}"
        for number in range(1, 31)
    ]
    for event in EventReader(total_steps=10**17).read(lines):
        record.add_event(event)

    screen = "\n".join(drawn(record.look(0.0), 119, 40))
    assert "! NaN or infinite at step 27: critic/score/mean, actor/entropy" in screen
