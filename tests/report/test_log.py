"""What a driver's log says, however it is cut."""

import time

import pytest

from cloudrl.report.log import LogReading

LOG = (
    "Total training steps: 3\n"
    "(TaskRunnerV1 pid=9) {'actor_rollout_ref': {'nccl_timeout': 600},\n"
    "(TaskRunnerV1 pid=9)  'trainer': {'project_name': 'é'}}\n"
    "(TaskRunnerV1 pid=9) step:1 - critic/score/mean:0.1 - timing_s/step:2.0\n"
    "a line\rstep:2 - critic/score/mean:0.2 - timing_s/step:2.0\n"
    "step:3 - critic/score/mean:0.3 - timing_s/step:2.0"
).encode()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_any_pieces_give_the_same(size: int):
    reading = LogReading()
    for start in range(0, len(LOG), size):
        reading.add(LOG[start : start + size])
    assert ([step.step for step in reading.steps], reading.is_finished) == ([1, 2], False)
    reading.add(b"", is_last=True)
    assert [(step.step, step.reward) for step in reading.steps] == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert reading.config == {"actor_rollout_ref.nccl_timeout": "600", "trainer.project_name": "é"}
    assert (reading.offset, reading.total_steps, reading.is_finished) == (len(LOG), 3, True)
    assert reading.last_lines[-1].startswith("step:3")


def test_the_last_count_of_prompts():
    reading = LogReading()
    for running in (5, 2):
        reading.add(f"(TaskRunnerV1 pid=9) pending: 0, running: {running}, finished: 3, failure: 0\nstep\n".encode())
    assert (reading.prompts.running, reading.prompts.finished) == (2, 3)


def test_long_lines_are_kept_in_part_and_read_in_time():
    reading, piece = LogReading(), b"x" * 1000
    began = time.process_time()
    for _ in range(20_000):
        reading.add(piece)
    reading.add(b"\nstep:1 - a:1\n")
    assert time.process_time() - began < 2
    assert ([step.step for step in reading.steps], [len(line) for line in reading.last_lines]) == ([1], [2000, 12])
