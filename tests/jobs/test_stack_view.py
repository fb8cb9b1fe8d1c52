"""The stacks of a job for a person: who holds it up first, equal ones once, idle threads as a number."""

from cloudrl.jobs.stack_view import stack_lines
from cloudrl.protocol.job_phases import Blame
from cloudrl.protocol.job_work import LookedAt

LOOP = """\
Thread 1 (idle): "MainThread"
    Worker.main_loop (/venv/lib/python3.11/site-packages/ray/_private/worker.py:1069)
    <module> (/venv/lib/python3.11/site-packages/ray/_private/workers/default_worker.py:323)
Thread 2 (idle): "tqdm_monitor"
    Event.wait (/opt/lib/python3.11/threading.py:629)
    TMonitor.run (/venv/lib/python3.11/site-packages/tqdm/_monitor.py:69)
"""
SAVE = """\
Thread 3 (idle): "AsyncIO Thread: default"
    save_checkpoint (/venv/lib/python3.11/site-packages/verl/utils/checkpoint/fsdp_checkpoint_manager.py:347)
    run (/opt/lib/python3.11/concurrent/futures/thread.py:58)
"""
BARRIER = """\
Thread 3 (idle): "AsyncIO Thread: default"
    barrier (/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:5220)
    save_checkpoint (/venv/lib/python3.11/site-packages/verl/utils/checkpoint/fsdp_checkpoint_manager.py:420)
    run (/opt/lib/python3.11/concurrent/futures/thread.py:58)
"""
DRIVER = """\
Thread 1 (idle): "MainThread"
    get (/venv/lib/python3.11/site-packages/ray/_private/worker.py:3009)
    _save_checkpoint (/venv/lib/python3.11/site-packages/verl/trainer/ppo/v1/trainer_base.py:900)
    main_loop (/venv/lib/python3.11/site-packages/ray/_private/worker.py:1069)
"""
SAVING = "ray::WorkerDict.actor_rollout_save_checkpoint"


def look(pid: int, title: str, stacks: str, state: str = "S", peers: tuple[str, ...] = ()) -> LookedAt:
    return LookedAt(pid, title, state, "", "py-spy" if stacks else "", stacks, peers)


def test_ranks_at_the_same_place_are_shown_once_and_the_one_apart_first():
    nodes = [
        (0, "10.0.0.1", (look(30, SAVING, LOOP + BARRIER), look(31, SAVING, LOOP + BARRIER))),
        (1, "10.0.0.2", (look(40, SAVING, LOOP + BARRIER), look(41, SAVING, LOOP + SAVE))),
        (2, "10.0.0.3", (look(50, "ray::TaskRunner.run", DRIVER),)),
    ]
    assert stack_lines(nodes, ()) == [
        "TaskRunner.run, pid 50 on rank 2 (10.0.0.3)",
        "    get (ray/_private/worker.py:3009)",
        "    _save_checkpoint (verl/trainer/ppo/v1/trainer_base.py:900)",
        "",
        "WorkerDict.actor_rollout_save_checkpoint, pid 41 on rank 1 (10.0.0.2)",
        "    save_checkpoint (verl/utils/checkpoint/fsdp_checkpoint_manager.py:347)",
        "    and 2 idle threads",
        "",
        "WorkerDict.actor_rollout_save_checkpoint, 3 processes on rank 0 (30 31), rank 1 (40)",
        "    barrier (torch/distributed/distributed_c10d.py:5220)",
        "    save_checkpoint (verl/utils/checkpoint/fsdp_checkpoint_manager.py:420)",
        "    and 6 idle threads",
        "",
    ]


def test_who_holds_up_the_job_is_first_with_the_reason():
    nodes = [(0, "10.0.0.1", (look(50, "ray::TaskRunner.run", DRIVER), look(41, SAVING, LOOP + SAVE)))]
    blame = [Blame(0, "WorkerDict", "has not reached the collective", 41), Blame(None, "placement group", "has waited")]
    first, *_ = stack_lines(nodes, blame)
    assert first == (
        "WorkerDict.actor_rollout_save_checkpoint, pid 41 on rank 0 (10.0.0.1): "
        "holds up the job, has not reached the collective"
    )


def test_a_process_that_only_waits_for_an_answer_is_shown_with_the_address():
    nodes = [(1, "10.0.0.2", (look(7, "ray::RewardLoopWorker", LOOP, peers=("10.1.0.9:80",)),))]
    blame = [Blame(1, "RewardLoopWorker", "waits for an answer from 10.1.0.9:80", 7)]
    assert stack_lines(nodes, blame)[1:] == ["  is connected to 10.1.0.9:80", "    and 2 idle threads", ""]


def test_threads_at_the_same_place_are_counted():
    call = "    _ask (/home/me/job/tool.py:6)\n    run (/opt/lib/python3.11/concurrent/futures/thread.py:58)\n"
    pool = "".join(f'Thread {number + 10} (idle): "uvloop_{number}"\n{call}' for number in range(3))
    lines = stack_lines([(0, "10.0.0.1", (look(7, "ray::AgentLoopWorker", LOOP + pool),))], ())
    assert lines[1:3] == ["  3 threads: uvloop_0, uvloop_1, uvloop_2", "    _ask (/home/me/job/tool.py:6)"]


def test_a_stopped_process_is_shown_though_it_waits_for_calls():
    first, *_ = stack_lines([(0, "10.0.0.1", (look(7, "ray::WorkerDict", LOOP, "T"),))], ())
    assert first == "WorkerDict, pid 7 on rank 0 (10.0.0.1), stopped (state T)"


def test_processes_without_work_and_without_stacks_take_a_line():
    nodes = [
        (0, "10.0.0.1", (look(7, "ray::HfServer", LOOP), look(8, "/bin/sh -c verl", ""))),
        (1, "10.0.0.2", (look(9, "ray::HfServer", LOOP), look(10, "ray::Queue", LOOP))),
    ]
    assert stack_lines(nodes, ()) == [
        "Idle: HfServer: rank 0 (7), rank 1 (9); Queue: rank 1 (10)",
        "No stacks, as the process computes, is no Python or could not be read: /bin/sh: rank 0 (8)",
    ]
