import pytest

from cloudrl.verl.metrics import Step
from cloudrl.verl.timing import mean_parts, step_parts


def timed(**seconds: float) -> Step:
    return Step(1, {f"timing_s/{timer}": each for timer, each in seconds.items()})


def test_the_parts_of_a_step_are_all_of_it():
    # the timers of a step of verl 0.9.1 that saves and tests
    step = timed(
        gen=1.0, reward=0.25, old_log_prob=0.25, ref=0.25, values=0.5, adv=0.25, update_critic=1.0, update_actor=2.0,
        update_weights=0.5, save_checkpoint=1.5, step=8.0, testing=3.0,
    )  # fmt: skip

    assert step_parts(step) == {
        "rollout": 1.0, "reward": 0.25, "log-probs": 1.0, "advantage": 0.25, "update": 3.5, "save": 1.5, "test": 3.0,
        "other": 0.5,
    }  # fmt: skip
    assert sum(step_parts(step).values()) == step.step_s


def test_a_timer_of_another_trainer_keeps_its_name():
    assert step_parts(timed(gen=2.0, sync_rollout_weights=1.0, step=4.0)) == {
        "rollout": 2.0, "sync_rollout_weights": 1.0, "other": 1.0,
    }  # fmt: skip


def test_a_timer_within_another_is_not_counted_twice():
    # of verl 0.9.1's agent loop, and one that is longer than what the others leave
    step = Step(
        1, {"timing_s/gen": 3.0, "timing_s/agent_loop/tool_calls/max": 0.5, "timing_s/x": 2.0, "timing_s/step": 4.0}
    )

    assert step_parts(step) == {"rollout": 3.0, "other": 1.0}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_timer_that_says_nothing(value: float):
    assert step_parts(timed(gen=value, step=4.0)) == {"other": 4.0}


def test_a_validation_before_training_has_no_parts():
    assert step_parts(Step(0, {"val-core/toy/acc/mean@1": 0.1, "timing_s/testing": 2.0})) == {}
    assert mean_parts([Step(0, {})]) == {}


def test_the_longest_part_comes_first_and_the_rest_last():
    steps = [timed(gen=1.0, update_actor=2.0, step=8.0), timed(gen=1.0, save_checkpoint=3.0, step=8.0)]

    assert list(mean_parts(steps).items()) == [("save", 1.5), ("rollout", 1.0), ("update", 1.0), ("other", 4.5)]


def test_a_switch_between_training_and_rollout_is_a_part_of_its_own():
    step = timed(gen=1.0, switch_wait=2.0, switch_to_trainer=0.5, switch_to_rollout=0.5, step=4.0)
    assert step_parts(step) == {"rollout": 3.0, "switch": 1.0}
