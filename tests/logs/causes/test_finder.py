"""The first root cause, of evidence as small as it can be. What a real Ray gives is in `test_recordings.py`."""

import pytest
from failed_job import BOOM, actor, find, task, worker

from cloudrl.logs.causes import Evidence, LogTail
from cloudrl.logs.causes.finder import find_cause
from cloudrl.logs.causes.signatures import Signature, signatures


def test_nothing_is_known():
    assert find_cause(Evidence()) is None


def test_the_earliest_and_not_the_first_in_the_list():
    found = find(tasks=[task("late", 9000), task("early", 5000, node_id="n0")])
    assert (found.error, found.rank, found.at) == ("ValueError: boom", 0, 5.0)
    assert found.process == "early (pid 7)"


def test_a_process_that_died_within_the_second_comes_before_an_exception():
    held = {"tasks": [task("a", 5000)], "actors": [actor("", 3)]}
    found = find(**held, workers=[worker(3, 5900)])
    assert (found.process, found.signature) == ("Rank (pid 3)", "process-killed")
    assert found.error == "Worker unexpectedly exits with a connection error code 2. End of file."
    assert [(each.error, each.rank) for each in found.elsewhere] == [("ValueError: boom", 1)]
    assert find(**held, workers=[worker(3, 6100)]).error == "ValueError: boom"


def test_a_process_that_ray_ended_and_one_of_another_job_are_no_cause():
    ended = [worker(3, 1000, "INTENDED_SYSTEM_EXIT"), worker(4, 1000), worker(5, 1000, worker_type="DRIVER")]
    found = find(tasks=[task("a", 5000)], workers=ended, actors=[actor("", 3), actor("", 5)])
    assert found.error == "ValueError: boom"


@pytest.mark.parametrize("reason", ["OWNER_DIED", "RAY_KILL", "OUT_OF_SCOPE", "REF_DELETED"])
def test_an_actor_that_ray_ended_is_no_cause_however_its_process_went(reason: str):
    ended = {**actor("", 3), "death_cause": {"actor_died_error_context": {"reason": reason}}}
    held = {"tasks": [task("a", 5000)], "workers": [worker(3, 5900)]}
    assert find(**held, actors=[ended]).error == "ValueError: boom"
    died = {**ended, "death_cause": {"actor_died_error_context": {"reason": "WORKER_DIED"}}}
    assert find(**held, actors=[died]).signature == "process-killed"


def test_the_innermost_of_tasks_that_called_each_other():
    outer = task("outer", 5000, node_id="n0")
    inner = task("inner", 5000, parent_task_id="outer")
    found = find(tasks=[outer, inner])
    assert found.process == "inner (pid 7)"
    assert found.elsewhere == (), "a repetition of the same error is no other sighting"


def test_a_task_that_ray_never_heard_of_is_placed_by_the_driver():
    """Its process ended at once, and of the one that waited for it Ray keeps the last part of a long message."""
    passed_on = "User exception:\nain()\n" + BOOM.partition("last):\n")[2]
    log = ["ray::Runner.run() (pid=7, ip=10.0.0.1)", "ray::Rank.train() (pid=9, ip=10.0.0.2)"]
    driver = LogTail("job-driver-j.log", 0, ("Traceback (most recent call last):", *log, *passed_on.splitlines()[2:]))
    found = find([driver, LogTail("worker-w-01-9.err", 0, ())], tasks=[task("Runner.run", 5000, passed_on)])
    assert (found.error, found.process, found.rank) == ("ValueError: boom", "Rank.train (pid 9)", 0)


def test_what_comes_after_the_drivers_end_is_no_cause():
    assert find(tasks=[task("a", 5000)], job={"end_time": 4000}) is None


def test_an_error_that_the_driver_survived_is_no_cause():
    log = LogTail("job-driver-x.log", 0, tuple(BOOM.replace("boom", "real").splitlines()))
    job = {"end_time": 500_000}
    found = find([log], tasks=[task("tried", 1000)], job=job)
    assert (found.error, found.process, found.rank) == ("ValueError: real", "driver", 0)
    assert find([log], tasks=[task("tried", 499_000)], job=job).error == "ValueError: boom"


def test_followers_alone_are_no_cause():
    died = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
    engine = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
    told = "on error code 2. End of file. Some common causes include: (1) connection error code 2. End of file."
    assert find(tasks=[task("a", 1, died), task("b", 2, engine), task("c", 3, told)]) is None


CLOSED = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:1"
MAY_BE_CAUSES = [row for row in signatures() if row.follows in (None, "report") and not row.is_end]


@pytest.mark.parametrize("row", MAY_BE_CAUSES, ids=lambda row: row.name)
def test_a_known_failure_of_a_process_and_what_followed_it(row: Signature):
    """Each row, as the last words of a rank that died, with the other one's complaint before it in time."""
    log = LogTail("worker-w3-01000000-3.err", 1, ("loading", row.example, "bye"))
    dead = worker(3, 5000, node_id="n1")
    follower = task("other", 4900, CLOSED, node_id="n0", actor_id=f"{4:032x}")
    driver = LogTail("job-driver-x.log", 0, ("ray.exceptions.ActorDiedError: The actor died unexpectedly",))
    found = find([log, driver], workers=[dead], actors=[actor("", 3, "n1"), actor("", 4)], tasks=[follower])
    assert (found.rank, found.process, found.signature) == (1, "Rank (pid 3)", row.name)
    assert found.error == row.example.strip()


@pytest.mark.parametrize("row", [row for row in MAY_BE_CAUSES if row.follows is None], ids=lambda row: row.name)
def test_a_known_failure_in_a_log_alone(row: Signature):
    """Each row, where Ray's state is lost and each rank has left its log."""
    cause = LogTail("worker-w3-01000000-3.err", 1, ("loading", row.example), modified_ms=5000.0)
    other = LogTail("worker-w4-01000000-4.err", 0, ("loading", CLOSED), modified_ms=4000.0)
    found = find([other, cause])
    assert (found.rank, found.process, found.signature) == (1, "worker (pid 3)", row.name)


def test_the_rank_that_was_silent():
    late = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation"
    actors = [
        actor("aB3dE_WorkerDict_0:0", 1),
        actor("aB3dE_WorkerDict_0:1", 2, "n1"),
        actor("", 3, class_name="Other"),
    ]
    waited = task("train", 9000, late, actor_id=f"{1:032x}", node_id="n0", worker_pid=1)
    log = LogTail("worker-x-01000000-2.err", 1, ("loading rows", "waiting for a lock"))
    found = find([log], tasks=[waited], actors=actors)
    assert (found.rank, found.process, found.signature) == (1, "WorkerDict_0:1 (pid 2)", "collective-timeout")
    assert found.lines[-1] == "waiting for a lock"
    assert "did not come" in found.error
    both = [waited, task("train2", 9001, late, actor_id=f"{2:032x}")]
    found = find(tasks=both, actors=actors)
    assert (found.rank, found.process, found.signature) == (None, "", "collective-timeout")


def test_a_dead_process_in_its_own_last_words():
    log = LogTail(
        "worker-w3-01000000-3.err", 0, (":job_id:01000000", "Fatal Python error: Segmentation fault", "", "x")
    )
    found = find([log], workers=[worker(3, 1000)], actors=[actor("", 3)])
    assert (found.error, found.signature) == ("Fatal Python error: Segmentation fault", "segmentation-fault")


def test_ray_ended_a_process_for_lack_of_memory():
    detail = "Task was killed due to the node running low on memory.\nMemory on the node was 241GB / 251GB"
    log = LogTail("worker-w3-01000000-3.err", 0, ("OSError: [Errno 98] Address already in use, trying another",))
    dead = worker(3, 1000, "NODE_OUT_OF_MEMORY", exit_detail=detail)
    found = find(
        [log], workers=[dead], actors=[actor("", 3)], tasks=[task("a", 900, detail, error_type="OUT_OF_MEMORY")]
    )
    assert (found.process, found.signature) == ("Rank (pid 3)", "host-memory")
    assert found.error == "Task was killed due to the node running low on memory."


def test_a_task_that_ended_with_its_process_is_no_cause():
    assert find(tasks=[task("a", 1000, error_type="WORKER_DIED"), task("b", 1, error_type="ACTOR_DIED")]) is None


def test_an_environment_that_could_not_be_made():
    context = {
        "runtime_env_failed_context": {"error_message": "Failed to set up runtime environment.\nOSError: no pip"}
    }
    found = find(actors=[{**actor("Rank_1", 0, "n1"), "death_cause": context}, {**actor("", 4), "death_cause": "x"}])
    assert (found.rank, found.process, found.signature, found.error) == (1, "Rank_1", "upload", "OSError: no pip")


def test_a_server_outside_that_hangs_up_is_a_cause():
    found = find(
        tasks=[task("a", 1000, BOOM.replace("ValueError: boom", "ConnectionResetError: Connection reset by peer"))]
    )
    assert found.error == "ConnectionResetError: Connection reset by peer"


def test_a_node_that_is_lost():
    reason = "Unexpected termination: health check failed due to missing too many heartbeats"
    node = {"node_id": "n1", "state": "DEAD", "state_message": reason, "end_time_ms": 1000}
    found = find(nodes=[node])
    assert (found.rank, found.signature) == (1, "node-lost")
    assert find(nodes=[{**node, "state_message": "Expected termination: received SIGTERM"}]) is None


def test_a_worker_that_was_asked_to_end_is_the_cause_only_until_the_lost_node_is_known():
    """A node that goes down ends its workers first, and the others notice its loss later."""
    detail = "Worker exits unexpectedly. Worker exits with an exit code 1. The process receives a SIGTERM."
    asked = {"workers": [{**worker(3, 1000, node_id="n1"), "exit_detail": detail}], "actors": [actor("", 3, "n1")]}
    assert find(**asked).signature == "process-asked-to-end"
    node = {"node_id": "n1", "state": "DEAD", "state_message": "Unexpected termination: health check failed"}
    assert find(nodes=[{**node, "end_time_ms": 9000}], **asked).signature == "node-lost"


def test_times_in_the_logs_where_the_state_is_lost():
    late = LogTail(
        "worker-a-01-1.err", 0, ("2026-11-23 09:30:05,000 INFO x", "RuntimeError: Connection closed by peer")
    )
    early = LogTail("worker-b-01-2.err", 1, ("2026-11-23 09:30:04,000 INFO x", *BOOM.splitlines()))
    undated = LogTail("worker-c-01-3.err", 1, ("KeyError: 'later'",), modified_ms=1795426300000.0)
    found = find([late, undated, early])
    assert (found.error, found.rank, found.process) == ("ValueError: boom", 1, "worker (pid 2)")
    assert [each.error for each in found.elsewhere] == ["RuntimeError: Connection closed by peer"]


def test_an_error_that_a_process_survived_is_no_cause():
    tried = ("2026-11-23 09:30:00,000 INFO x", "ValueError: a sample without an answer")
    ended = ("2026-11-23 09:41:00,000 INFO x", "KeyError: 'rows'", "OSError: on the way down")
    assert find([LogTail("worker-a-01-1.err", 0, (*tried, *ended))]).error == "KeyError: 'rows'"


def test_times_of_a_node_in_another_time_zone():
    ahead = LogTail("worker-a-01-1.err", 0, ("2026-11-23 17:30:03,000 INFO x", *BOOM.splitlines()), None, 8 * 3600.0)
    late = LogTail("worker-b-01-2.err", 1, ("2026-11-23 09:30:04,000 INFO x", "KeyError: 'later'"))
    assert find([late, ahead]).error == "ValueError: boom"


@pytest.mark.parametrize("name", ["worker-a-01-1.out", "job-driver-x.log"])
def test_settings_that_a_job_prints_are_no_failure(name: str):
    printed = (
        "Running entrypoint for job x: python3 -m verl reward.custom_reward_function.path=/a.py",
        "\x1b[36m(TaskRunnerV1 pid=9)\x1b[0m {'reward': {'custom_reward_function': {'path': None}},",
        "                 'multi_turn': {'function_tool_path': None,",
        "                                'function_tool_path': None,",
    )
    assert find([LogTail(name, 0, printed)]) is None


def test_rays_own_frames_are_cut():
    text = (
        'Traceback (most recent call last):\n  File "/x/ray/_private/worker.py", line 1, in get\n    raise value\n'
        "ray.exceptions.RayTaskError(ValueError): \x1b[36mray::Rank.train()\x1b[39m (pid=7, ip=10.0.0.2, "
        "actor_id=00000000000000000000000000000009, repr=<x>)\n"
        '  File "python/ray/_raylet.pyx", line 2, in execute_task\n    outputs = f()\n    ^^^^^^^\n'
        '  File "/job/a.py", line 3, in train\n    f()\n    ^^^\nValueError: boom'
    )
    found = find(tasks=[task("outer", 1, text)], nodes=[{"node_id": "n1", "node_ip": "10.0.0.2"}])
    assert found.lines == ('  File "/job/a.py", line 3, in train', "    f()", "ValueError: boom")
    assert found.process == "Rank.train (pid 7)"
