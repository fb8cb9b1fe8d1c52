"""What follows the end of an attempt, one decision at a time."""

from dataclasses import replace

import pytest

from cloudrl.durable import queue as decisions
from cloudrl.durable.hangs import PROOF_LASTS_S, find_hang
from cloudrl.durable.notices import Noticed
from cloudrl.durable.progress import Recovery, Saved, Scored, Stepped, recovery
from cloudrl.durable.queue import (
    Accepted,
    Ended,
    Gone,
    Hung,
    Plan,
    PlanFailed,
    Planned,
    Queue,
    Record,
    Remembered,
    Say,
    Stop,
    StopAsked,
    Submit,
    Tick,
    restore,
    step,
)
from cloudrl.durable.request import request_of_attempt
from cloudrl.durable.verdicts import RayEnd, judge, signature_of
from cloudrl.protocol.durable_jobs import Attempt, DurableJob, Keeping, Outcome, Result, Score, Verdict, newest
from cloudrl.protocol.interruptions import Interruption
from cloudrl.protocol.job_phases import Blame, Grade, Hang, JobState

NOW = 1e9
REQUEST = {
    "entrypoint": "python3 -m verl.trainer.main_ppo trainer.resume_mode=auto +trainer.x='a b'", "submission_id": "a",
    "metadata": {"job_name": "a"},
}  # fmt: skip
JOB = DurableJob("a", "a", "run", REQUEST, NOW, number=1, total_steps=20)
USER_ERROR = RayEnd("FAILED", 1, "Job entrypoint command failed", "ValueError: no reward for row 17", has_trained=True)


def _play(queue, *events, now=NOW):
    actions = []
    for event in events:
        queue, more = step(queue, event, now)
        actions += more
    return queue, actions


def _running(from_step=0, job=JOB):
    queue, _ = _play(Queue("c1"), Accepted(job), Tick(is_ray_free=True), Planned(job.job_id, from_step))
    return queue


def test_scores_of_steps_that_are_trained_again_are_forgotten():
    scores = tuple(Score(saved, saved / 10, saved) for saved in (2, 4, 6))
    queue, actions = _play(_running(), Scored("a", scores), Scored("a", scores))
    assert [action.job.scores for action in actions] == [scores]

    queue, _ = _play(queue, Gone("a"), Tick(is_ray_free=True), now=NOW + 10)
    queue, _ = _play(queue, Tick(is_ray_free=True), Planned("a", 4), now=NOW + 60)

    assert queue.jobs["a"].scores == scores[:2]
    assert _play(queue, Scored("a", ()))[1] == []  # an attempt that has ended tells no more


def test_scores_stay_if_the_step_of_an_attempt_is_not_known():
    scores = (Score(10, 0.9, 10), Score(20, 0.5, 20))
    job = replace(JOB, keep_best="m", chooses_step=True)
    queue, _ = _play(_running(job=job), Scored("a", scores), Gone("a"))

    queue, actions = _play(queue, Tick(is_ray_free=True), Planned("a", None), now=NOW + 60)

    assert (queue.jobs["a"].scores, queue.jobs["a"].last.from_step) == (scores, 0)
    assert Say("job a: attempt 2 goes on from the step that verl finds") in actions


def test_a_later_job_of_the_run_knows_the_scores_of_the_one_before():
    done = replace(
        JOB, keep_best="m", scores=(Score(2, 0.5, 2), Score(8, 0.9, 8)), outcome=Outcome(Result.FAILED, "", NOW)
    )
    other = replace(done, job_id="b", run="b", scores=(Score(3, 0.7, 3),), number=2)
    again = replace(JOB, job_id="c", keep_best="m", number=3)
    queue = Queue("c1", {"a": done, "b": other})

    queue, _ = _play(queue, Accepted(again), Tick(is_ray_free=True), Planned("c", 6))

    assert queue.jobs["c"].scores == (Score(2, 0.5, 2),)


def test_a_later_job_with_another_metric_or_none_keeps_what_the_run_kept_also_on_a_new_cluster():
    scores = (Score(2, 0.5, 2), Score(8, 0.9, 8))
    first = replace(_running().jobs["a"], keep_every=100, keep_best="m", scores=scores).with_last(ended_at=NOW)
    first = replace(first, outcome=Outcome(Result.SUCCEEDED, "", NOW))
    second = replace(JOB, job_id="b", keep_best="min:loss", number=2)
    kept = (Keeping(every=100), Keeping(best="m", scores=scores))

    queue, _ = _play(Queue("c1", {"a": first}), Accepted(second), Tick(is_ray_free=True), Planned("b", 8))
    assert queue.jobs["b"].kept_before == kept
    assert queue.jobs["b"].scores == ()

    second = replace(queue.jobs["b"], outcome=first.outcome)
    queue, _ = restore([first, second], cluster="c2", cluster_run="new", now=NOW)
    assert not queue.jobs
    queue, _ = _play(queue, Accepted(replace(JOB, job_id="c", number=1)))
    assert [job.kept_before for job in queue.in_order] == [(*kept, Keeping(best="min:loss"))], "also while it waits"

    queue, _ = _play(queue, Tick(is_ray_free=True), Planned("c", 4))
    assert queue.jobs["c"].kept_before[1] == Keeping(best="m", scores=scores[:1]), "step 8 is trained again"


def test_a_score_that_comes_after_the_next_job_has_begun_counts_for_it():
    queue, _ = _play(_running(job=replace(JOB, keep_best="m")), Ended("a", RayEnd("SUCCEEDED", 0, newest_step=20)))
    queue, _ = _play(queue, Accepted(replace(JOB, job_id="b", number=2)), Tick(is_ray_free=True), Planned("b", 20))

    queue, _ = _play(queue, Scored("a", (Score(20, 0.9, 20),)))

    assert queue.in_order[1].kept_before == (Keeping(best="m", scores=(Score(20, 0.9, 20),)),)


def test_what_a_mirror_remembers_of_the_run_stays_too():
    first = replace(_running().jobs["a"], keep_every=4)
    queue, _ = _play(Queue("c2"), Accepted(replace(JOB, job_id="b")), Remembered((first, replace(JOB, job_id="b"))))

    assert [(job.job_id, job.kept_before) for job in queue.in_order] == [("b", (Keeping(every=4),))]


def test_a_job_is_planned_recorded_and_sent():
    queue, actions = _play(Queue("c1"), Accepted(JOB), Tick(is_ray_free=True), Planned("a", 0))

    assert [type(action) for action in actions] == [Plan, Record, Submit]
    assert queue.running.submission_id == "a"


def test_one_job_at_a_time_in_the_order_in_which_they_came():
    second = replace(JOB, job_id="b", run="b", number=2)
    queue, _ = _play(_running(), Accepted(second), Tick(is_ray_free=True))
    assert queue.waiting == [second]

    queue, actions = _play(queue, Ended("a", RayEnd("SUCCEEDED", 0, newest_step=20)), Tick(is_ray_free=True))

    assert actions[-1] == Plan(second)


def test_a_job_of_somebody_else_keeps_the_queue_waiting():
    _, actions = _play(Queue("c1"), Accepted(JOB), Tick(is_ray_free=False))

    assert actions == []


def test_what_a_trainer_tells_is_recorded_once():
    queue, actions = _play(_running(), Saved("a", 10), Saved("a", 10), Saved("a", 5), Saved("another", 20))
    ended, _ = _play(queue, Ended("a", RayEnd("SUCCEEDED", 0, newest_step=20)), Saved("a", 20))
    assert ended.jobs["a"].last.saved_step == 20, "nodes are asked every few seconds"

    last = queue.jobs["a"].last
    assert (last.saved_step, last.saved_at) == (10, NOW)
    assert actions == [Record(queue.jobs["a"])]
    assert newest(queue.jobs["a"], _running().jobs["a"]) == queue.jobs["a"], "another node may have missed it"


def test_steps_are_recorded_once_a_minute_and_the_first_at_once():
    queue, actions = _play(_running(4), Stepped("a", 4), Stepped("a", 5), Stepped("a", 5), Stepped("another", 9))
    first = queue.jobs["a"]
    assert actions == [Record(first)]
    assert (first.last.step, first.last.step_at, first.last.first_step_at) == (5, NOW, NOW)

    queue, actions = _play(queue, Stepped("a", 6), now=NOW + 59)
    assert actions == []

    queue, actions = _play(queue, Stepped("a", 7), now=NOW + 60)
    assert actions == [Record(queue.jobs["a"])]
    assert (queue.jobs["a"].last.step, queue.jobs["a"].last.first_step_at) == (7, NOW)
    assert newest(first, queue.jobs["a"]) == queue.jobs["a"], "another node may have missed it"

    ended, _ = _play(queue, Gone("a"), Stepped("a", 8), now=NOW + 600)
    assert ended.jobs["a"].last.step == 7


def test_what_it_took_to_be_back_is_told_apart():
    before = Attempt(1, "a", "c1", 0, NOW, NOW + 400, step=6, step_at=NOW + 100, saved_step=4)
    again = Attempt(2, "a-2", "c2", 4, NOW + 400, step=5, first_step_at=NOW + 520)
    assert recovery(before, again) == Recovery(start_s=300.0, program_s=120.0, lost_steps=2)
    unknown = recovery(replace(before, step=0, step_at=None), replace(again, first_step_at=None))
    assert unknown == Recovery(None, None, 0)
    assert recovery(replace(before, cluster="c2", ended_at=NOW + 388), again).start_s == 12.0


def test_a_lost_cluster_is_no_error_of_the_job():
    queue = _running()

    queue, _ = restore(queue.jobs.values(), cluster="c2", cluster_run="run", now=NOW + 300)
    queue, actions = _play(queue, Tick(is_ray_free=True), Planned("a", 10), now=NOW + 301)

    assert queue.jobs["a"].attempts[0].verdict is Verdict.INFRASTRUCTURE
    assert queue.running.submission_id == "a-2"
    assert queue.jobs["a"].attempts[1].from_step == 10
    assert isinstance(actions[-1], Submit)


def test_a_job_of_another_cluster_on_this_volume_is_left_alone():
    queue, actions = restore([_running().jobs["a"]], cluster="c2", cluster_run="another", now=NOW)

    assert not queue.jobs
    assert not actions


def test_a_lost_cluster_right_after_the_last_save_is_a_success():
    queue, _ = restore(_running().jobs.values(), cluster="c2", cluster_run="run", now=NOW)

    queue, _ = _play(queue, Tick(is_ray_free=True), Planned("a", 20))

    assert queue.jobs["a"].outcome.result is Result.SUCCEEDED


def test_a_program_that_fails_before_it_has_trained_is_not_tried_again():
    queue, _ = _play(_running(), Ended("a", replace(USER_ERROR, has_trained=False)))

    assert queue.jobs["a"].outcome == Outcome(Result.FAILED, "ValueError: no reward for row N", NOW)


def test_the_same_error_twice_without_a_newer_step_is_the_end():
    queue, _ = _play(_running(), Ended("a", USER_ERROR))
    assert queue.jobs["a"].outcome is None
    later = NOW + 3600

    queue, _ = _play(queue, Tick(is_ray_free=True), Planned("a", 5), Ended("a-2", USER_ERROR), now=later)
    queue, _ = _play(queue, Tick(is_ray_free=True), Planned("a", 5), now=later + 3600)

    assert "twice" in queue.jobs["a"].outcome.reason


def test_progress_is_worth_another_attempt_each_time():
    queue = _running()
    for number, from_step in enumerate((4, 8, 12, 16), 2):
        before = "a" if number == 2 else f"a-{number - 1}"
        later = NOW + number * 3600
        queue, _ = _play(queue, Ended(before, USER_ERROR), now=later)
        queue, _ = _play(queue, Tick(is_ray_free=True), Planned("a", from_step), now=later + 1800)

    assert queue.running is not None
    assert len(queue.jobs["a"].attempts) == 5


def test_three_attempts_without_a_newer_step_are_the_end():
    queue = _running()
    for number in range(1, 4):
        later = NOW + number * 7200
        queue, _ = _play(queue, Gone("a" if number == 1 else f"a-{number}"), now=later)
        queue, _ = _play(queue, Tick(is_ray_free=True), Planned("a", 0), now=later + 3600)

    assert queue.jobs["a"].outcome.reason.startswith("3 attempts from the beginning made no newer step")


def test_pauses_double_and_a_clock_that_was_set_back_does_not_stretch_them():
    queue, _ = _play(_running(), Gone("a"))
    assert 10 <= queue.jobs["a"].waits_until - NOW <= 12
    assert _play(queue, Tick(is_ray_free=True), now=NOW + 9)[1] == []

    assert _play(queue, Tick(is_ray_free=True), now=NOW - 7200)[1] == [Plan(queue.jobs["a"])]


def test_a_stop_is_recorded_before_ray_is_asked():
    queue, actions = _play(_running(), StopAsked("a"))

    assert [type(action) for action in actions] == [Record, decisions.Say, Stop]
    assert actions[0].job.outcome.result is Result.STOPPED
    queue, _ = _play(queue, Ended("a", RayEnd("STOPPED")), Tick(is_ray_free=True))
    assert queue.running is None
    assert not queue.waiting


def test_no_step_that_can_be_loaded_is_the_end_and_a_silent_node_is_not():
    queue, _ = _play(Queue("c1"), Accepted(JOB), Tick(is_ray_free=True), PlanFailed("a", "node 1 is silent", True))
    assert queue.jobs["a"].outcome is None
    assert queue.jobs["a"].waits_for == "node 1 is silent"

    later = NOW + 60
    queue, _ = _play(queue, Tick(is_ray_free=True), PlanFailed("a", "step 5 lacks rank 1"), now=later)

    assert queue.jobs["a"].outcome == Outcome(Result.FAILED, "step 5 lacks rank 1", later)


def test_a_hang_is_stopped_and_tried_again_once():
    queue, actions = _play(_running(), Hung("a", "WorkerDict is stopped"))
    assert actions[-1] == Stop("a")
    queue, _ = _play(queue, Ended("a", RayEnd("FAILED", 1)))
    assert queue.jobs["a"].attempts[-1].verdict is Verdict.HANG
    assert queue.jobs["a"].outcome is None

    queue, _ = _play(queue, Tick(is_ray_free=True), Planned("a", 0), Hung("a-2", "again"), now=NOW + 3600)
    queue, _ = _play(queue, Ended("a-2", RayEnd("STOPPED")), now=NOW + 3600)
    queue, _ = _play(queue, Tick(is_ray_free=True), Planned("a", 0), now=NOW + 7200)

    assert queue.jobs["a"].outcome.result is Result.FAILED


@pytest.mark.parametrize(
    ("hang", "phase", "found"),
    [
        (Hang(Grade.PROOF, NOW), "gen", True),
        (Hang(Grade.STILL, NOW, still_s=1000, limit_s=100, blame=(Blame(0, "RewardLoop", "waits"),)), "reward", True),
        (Hang(Grade.STILL, NOW, still_s=1000, limit_s=100), "reward", False),
        (Hang(Grade.STILL, NOW, still_s=1000, limit_s=400, blame=(Blame(0, "RewardLoop", "waits"),)), "gen", False),
        (Hang(Grade.LATE, NOW, still_s=0, limit_s=10), "gen", False),
    ],
)
def test_only_what_cannot_go_on_is_ended(hang, phase, found):
    state = JobState("a", phase, NOW - 3600, hang=hang)

    assert (find_hang(state, "a", PROOF_LASTS_S) is not None) is found
    assert find_hang(state, "b", PROOF_LASTS_S) is None


def test_a_proof_of_a_moment_ends_nothing():
    state = JobState("a", "gen", NOW - 3600, hang=Hang(Grade.PROOF, NOW - 3600))

    assert find_hang(state, "a", PROOF_LASTS_S - 1) is None


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        (RayEnd("SUCCEEDED", 0, newest_step=20), Verdict.SUCCEEDED),
        (RayEnd("SUCCEEDED", 0, newest_step=10), Verdict.SHORT),
        (RayEnd("SUCCEEDED", 0, newest_step=0), Verdict.SUCCEEDED),
        (RayEnd("STOPPED"), Verdict.STOPPED),
        (RayEnd("FAILED", -9), Verdict.INFRASTRUCTURE),
        (RayEnd("FAILED", 1, "The actor died because its node has died."), Verdict.INFRASTRUCTURE),
        (RayEnd("FAILED", 1, "", "Watchdog caught collective operation timeout: WorkNCCL"), Verdict.INFRASTRUCTURE),
        (USER_ERROR, Verdict.UNKNOWN),
        (replace(USER_ERROR, has_trained=False), Verdict.PROGRAM),
        (RayEnd("FAILED", 1, "", "[gloo/transport/tcp/pair.cc:534] Connection closed by peer"), Verdict.INFRASTRUCTURE),
        (RayEnd("FAILED", 1, "", "httpx.RemoteProtocolError: Connection closed by peer"), Verdict.UNKNOWN),
        (RayEnd("FAILED", 1, "", "ValueError: GCS bucket unavailable"), Verdict.PROGRAM),
        (
            RayEnd(
                "FAILED", 1, "", "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"
            ),
            Verdict.INFRASTRUCTURE,
        ),
        (
            RayEnd("FAILED", 1, "", "OSError: [Errno 28] No space left on device: '/checkpoints/a'"),
            Verdict.INFRASTRUCTURE,
        ),
        (RayEnd("FAILED", 1, "", "OSError: [Errno 28] No space left on device: '/dev/shm/a'"), Verdict.PROGRAM),
        (RayEnd("FAILED", 1, "", "ActorDiedError: its worker process has died. SYSTEM_ERROR"), Verdict.UNKNOWN),
        (RayEnd("FAILED", None, "Job failed for a reason of its own"), Verdict.UNKNOWN),
        (RayEnd("FAILED", None, "Failed to set up runtime_env: no such package"), Verdict.PROGRAM),
        (RayEnd("FAILED", 1, "", "NodeDiedError\n" + "x" * 20_000 + "\nValueError: mine"), Verdict.PROGRAM),
        (
            RayEnd("FAILED", 1, "", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
            Verdict.PROGRAM,
        ),
    ],
)
def test_whose_fault_an_end_was(end, verdict):
    assert judge(end, _running().jobs["a"]).verdict is verdict


def test_a_process_that_died_is_named():
    """As verl's main program prints it with Ray 2.60."""
    log = """Traceback (most recent call last):
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
	class_name: create_colocated_worker_cls.<locals>.WorkerDict
	actor_id: 250460d8164eb54872ce155103000000
	pid: 21784
	name: bjXmBBWorkerDict_0:0
	namespace: b4d6433c-7bfb-45ba-a177-f37371be4b4f
	ip: 192.0.2.2
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR
"""

    assert (
        judge(RayEnd("FAILED", 1, "", log), _running().jobs["a"]).reason == "its WorkerDict (pid 21784, 192.0.2.2) died"
    )
    later = judge(RayEnd("FAILED", 1, "", f"{log}ValueError: mine\n"), _running().jobs["a"])
    assert later.reason == "ValueError: mine"


def test_equal_errors_have_equal_signatures():
    first = "(WorkerDict pid=12, ip=10.0.0.1) ValueError: row 17 of 0x7f00aa\nmore"

    assert signature_of(first) == signature_of("ValueError: row 18 of 0x7f11bb") == "ValueError: row N of N"
    assert signature_of("no exception here") == ""


def test_the_end_for_good_beats_a_later_attempt_and_that_an_earlier_one():
    running, fresh = _running().jobs["a"], JOB
    stopped = replace(JOB, outcome=Outcome(Result.STOPPED, "", NOW))

    assert newest(running, stopped, fresh) == stopped
    assert newest(fresh, running) == running


def test_the_request_of_a_later_attempt_goes_on_from_its_step_and_does_not_validate_first():
    job = replace(JOB, attempts=(Attempt(1, "a", "c1", 0, NOW, NOW), Attempt(2, "a-2", "c2", 10, NOW)))

    overrides = {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "/c/a 10"}
    request = request_of_attempt(job, overrides, {"CLOUDRL_TRAINING_NODES": "10.0.0.2"})

    assert request["submission_id"] == "a-2"
    assert request["entrypoint"] == (
        "python3 -m verl.trainer.main_ppo '+trainer.x=a b' trainer.resume_mode=resume_path "
        "'trainer.resume_from_path=/c/a 10' trainer.val_before_train=False"
    )
    assert request["metadata"] == {"job_name": "a", "cloudrl_job": "a", "cloudrl_attempt": "2"}
    assert request["runtime_env"]["env_vars"]["CLOUDRL_TRAINING_NODES"] == "10.0.0.2"


def test_a_choice_of_the_user_to_validate_first_stays():
    words = {**REQUEST, "entrypoint": "train trainer.val_before_train=True"}
    job = replace(JOB, request=words, attempts=(Attempt(1, "a", "c1", 0, NOW, NOW), Attempt(2, "a-2", "c2", 10, NOW)))

    assert request_of_attempt(job, {}, {})["entrypoint"] == "train trainer.val_before_train=True"


SPOT = {1: Interruption("AWS", "spot", NOW + 120)}
TAKEN = "AWS takes back node 1 (spot notice)"


def test_the_loss_that_a_notice_has_announced_has_it_as_its_reason():
    queue, actions = _play(_running(), Noticed(SPOT), Noticed(SPOT))
    assert queue.jobs["a"].last.notice == TAKEN
    assert actions == [Record(queue.jobs["a"]), Say("node 1 is taken back in 2 min 00 s: spot notice of AWS")]
    [record] = [action.job for action in actions if isinstance(action, Record)]

    again, _ = restore([record], cluster="c2", cluster_run="run", now=NOW + 300)

    assert again.jobs["a"].last.verdict is Verdict.INFRASTRUCTURE
    assert again.jobs["a"].last.reason == f"the cluster was lost: {TAKEN}"


@pytest.mark.parametrize("event", [Gone("a"), Ended("a", USER_ERROR)])
def test_what_fails_while_a_machine_goes_is_not_the_programs_fault(event):
    queue, _ = _play(_running(), Noticed(SPOT), event)

    last = queue.jobs["a"].last
    assert (last.verdict, last.reason.endswith(f": {TAKEN}")) == (Verdict.INFRASTRUCTURE, True)


def test_a_notice_that_is_withdrawn_or_long_past_explains_nothing():
    withdrawn, _ = _play(_running(), Noticed(SPOT), Noticed({}), Ended("a", USER_ERROR))
    assert withdrawn.jobs["a"].last.verdict is Verdict.UNKNOWN

    queue, _ = _play(_running(), Noticed(SPOT))
    queue, actions = _play(queue, Tick(is_ray_free=False), now=NOW + 500)
    assert actions == [Record(queue.jobs["a"])]
    assert queue.jobs["a"].last.notice == ""


def test_a_withdrawn_notice_does_not_come_back_with_the_record_of_a_node_that_missed_it():
    queue, _ = _play(_running(), Noticed(SPOT))
    stale = queue.jobs["a"]
    queue, _ = _play(queue, Noticed({}))

    again, _ = restore([stale, queue.jobs["a"], stale], cluster="c2", cluster_run="run", now=NOW + 60)

    assert (again.jobs["a"].last.notice, again.jobs["a"].last.reason) == ("", "the cluster was lost")


def test_maintenance_in_an_hour_concerns_an_attempt_when_it_comes_near():
    queue, actions = _play(_running(), Noticed({0: Interruption("GCP", "maintenance", NOW + 3600)}))
    assert [type(action) for action in actions] == [Say]
    queue, actions = _play(queue, Tick(is_ray_free=False), now=NOW + 3000)
    assert actions == [], "what is lost 10 minutes before is lost to something else"
    queue, _ = _play(queue, Tick(is_ray_free=False), now=NOW + 3550)
    assert queue.jobs["a"].last.notice == "GCP takes back node 0 (maintenance notice)"


def test_no_attempt_starts_on_a_machine_that_is_about_to_go():
    queue, _ = _play(Queue("c1"), Accepted(JOB), Noticed(SPOT))
    queue, actions = _play(queue, Tick(is_ray_free=True), Tick(is_ray_free=True))
    assert actions == [Record(queue.jobs["a"])], "it waits, and says so once"
    assert queue.jobs["a"].waits_for == TAKEN

    _, actions = _play(queue, Tick(is_ray_free=True), now=NOW + 500)
    assert actions == [Plan(queue.jobs["a"])], "the machine is still there"
    _, actions = _play(queue, Tick(is_ray_free=True), now=NOW - 7200)
    assert actions == [Plan(queue.jobs["a"])], "a clock was set back"


def test_a_plan_that_comes_after_the_notice_is_left():
    queue, _ = _play(Queue("c1"), Accepted(JOB), Tick(is_ray_free=True), Noticed(SPOT))
    queue, actions = _play(queue, Planned("a", 0))
    assert (actions, queue.planning, queue.running) == ([], "", None)
