"""Who keeps the others waiting, from stacks as py-spy and faulthandler write them."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from cloudrl.hangs import stacks
from cloudrl.hangs.blame import Finding, Process, find, fingerprint, same
from cloudrl.hangs.ray_rows import dead_actors, waiting_groups
from cloudrl.hangs.remedies import remedy
from cloudrl.hangs.rollout import Progress, Unfinished, parse

BARRIER = """\
Thread 100 (idle): "MainThread"
    select (selectors.py:468)
    run_forever (asyncio/base_events.py:608)
Thread 101 (idle): "AsyncIO Thread: default"
    barrier (torch/distributed/distributed_c10d.py:4881)
    wrapper (torch/distributed/c10d_logger.py:81)
    save_checkpoint (verl/utils/checkpoint/fsdp_checkpoint_manager.py:420)
    actor_method_executor (ray/_private/function_manager.py:691)
"""
SAVING = BARRIER.replace(
    """    barrier (torch/distributed/distributed_c10d.py:4881)
    wrapper (torch/distributed/c10d_logger.py:81)
    save_checkpoint (verl/utils/checkpoint/fsdp_checkpoint_manager.py:420)
""",
    """    _save (torch/serialization.py:1000)
    save_checkpoint (verl/utils/checkpoint/fsdp_checkpoint_manager.py:347)
""",
)
DRIVER = """\
Thread 200 (idle): "MainThread"
    get_objects (ray/_private/worker.py:980)
    get (ray/_private/worker.py:2900)
    {function} ({file}:12)
    fit (verl/trainer/ppo/v1/trainer_base.py:485)
    actor_method_executor (ray/_private/function_manager.py:691)
    main_loop (ray/_private/worker.py:1000)
"""
REWARD = """\
Thread 300 (idle): "MainThread"
    main_loop (ray/_private/worker.py:1000)
Thread 301 (active): "uvloop_5"
    _wait (mine/reward.py:6)
    compute_score (mine/reward.py:11)
    run_single (verl/experimental/reward_loop/reward_manager/naive.py:60)
    run (concurrent/futures/thread.py:58)
    _worker (concurrent/futures/thread.py:83)
"""
BY_SIGNAL = """\
Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f0000000002 (most recent call first):
  File "/tmp/ray/x/working_dir_files/_ray_pkg_0123abcd/mine/data.py", line 17 in __getitem__
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 52 in fetch
  File "/opt/venv/lib/python3.11/site-packages/verl/trainer/ppo/v1/trainer_base.py", line 1470 in _fetch_one_gen_batch
"""


def process(rank: int, pid: int, title: str, text: str = "", **more: object) -> Process:
    return Process(rank, pid, title, host=f"10.0.0.{rank}", threads=stacks.parse(text), **more)  # type: ignore[arg-type]


def driver(function: str = "_save_checkpoint", file: str = "verl/trainer/ppo/v1/trainer_base.py") -> Process:
    return process(0, 20, "ray::TaskRunnerV1.run", DRIVER.format(function=function, file=file))


def worker(rank: int, text: str, **more: object) -> Process:
    return process(rank, 30 + rank, "ray::WorkerDict.actor_rollout_save_checkpoint", text, **more)


def told(finding: Finding) -> list[tuple[int | None, str, str]]:
    return [(blame.rank, blame.actor, blame.frame) for blame in finding.blame]


def test_a_rank_that_still_saves_while_the_other_waits_for_it():
    finding = find([driver(), worker(0, BARRIER), worker(1, SAVING)], "step")
    frame = "save_checkpoint (verl/utils/checkpoint/fsdp_checkpoint_manager.py:347)"
    assert told(finding) == [(1, "WorkerDict", frame)]
    assert (finding.phase, finding.waiting) == ("save_checkpoint", "1 rank waits in barrier")


def test_all_ranks_in_the_same_collective_blame_nobody():
    finding = find([driver(), worker(0, BARRIER), worker(1, BARRIER)], "save_checkpoint")
    assert (finding.blame, finding.waiting) == ((), "2 ranks wait in barrier")


def test_a_stopped_rank_is_blamed_once_and_first():
    finding = find([driver(), worker(0, BARRIER), worker(1, SAVING, state="T")], "save_checkpoint")
    [blame] = finding.blame
    assert (blame.rank, blame.pid, blame.method) == (1, 31, "actor_rollout_save_checkpoint")
    assert blame.reason.startswith("is stopped")
    assert remedy("save_checkpoint", finding.blame).startswith("Find out who stopped")


def test_a_process_in_the_kernel():
    [blame] = find([worker(1, SAVING, state="D", wchan="nfs_wait")], "save_checkpoint").blame
    assert "(nfs_wait)" in blame.reason


def test_a_reward_function_that_does_not_return():
    waits = driver("sample", "verl/trainer/ppo/v1/replay_buffer.py")
    finding = find([waits, process(1, 40, "ray::RewardLoopWorker", REWARD)], "gen")
    assert told(finding) == [(1, "RewardLoopWorker", "_wait (mine/reward.py:6)")]


def test_the_users_frame_comes_before_verls_and_the_standard_librarys():
    """A loop in Python: each thread is at another place when it is looked at."""
    spinning = """\
Thread 301 (active): "uvloop_1"
    stat (/usr/lib/python3.11/pathlib.py:1013)
    _is_planted (/tmp/ray/s/working_dir_files/_ray_pkg_0123abcd/mine/reward.py:30)
    compute_score (/tmp/ray/s/working_dir_files/_ray_pkg_0123abcd/mine/reward.py:11)
    run (/usr/lib/python3.11/concurrent/futures/thread.py:58)
    _worker (/usr/lib/python3.11/concurrent/futures/thread.py:83)
Thread 302 (active): "AsyncIO Thread: default"
    run_single (/venv/lib/python3.11/site-packages/verl/experimental/reward_loop/reward_manager/naive.py:39)
    _run (/usr/lib/python3.11/asyncio/events.py:84)
    run (/usr/lib/python3.11/threading.py:982)
"""
    waits = driver("sample", "verl/trainer/ppo/v1/replay_buffer.py")
    finding = find([waits, process(1, 40, "ray::RewardLoopWorker.compute_score", spinning)], "gen")
    assert told(finding) == [(1, "RewardLoopWorker", "_is_planted (mine/reward.py:30)")]


def test_a_judge_that_never_answers_has_no_frame_but_an_address():
    idle = process(0, 41, "ray::RewardLoopWorker.compute_score", peers=("127.0.0.1:28999",))
    [blame] = find([driver("sample", "verl/trainer/ppo/v1/replay_buffer.py"), idle], "gen").blame
    assert blame.reason == "waits for an answer from 127.0.0.1:28999"


def test_a_data_set_that_blocks_the_driver():
    finding = find([process(0, 20, "ray::TaskRunnerV1.run", BY_SIGNAL)], "step")
    assert finding.phase == "data"
    assert told(finding) == [(0, "TaskRunnerV1", "__getitem__ (mine/data.py:17)")]


LOADS = """\
Thread 18871 (idle): "MainThread"
    wait (/usr/lib/python3.11/multiprocessing/connection.py:947)
    _try_get_data (/venv/lib/python3.11/site-packages/torchdata/stateful_dataloader/stateful_dataloader.py:1200)
    _fetch_one_gen_batch (/venv/lib/python3.11/site-packages/verl/trainer/ppo/v1/trainer_base.py:1471)
    actor_method_executor (/venv/lib/python3.11/site-packages/ray/_private/function_manager.py:740)
"""
LOADER = """\
Thread 32479 (idle): "MainThread"
    {function}
    _worker_loop (/venv/lib/python3.11/site-packages/torchdata/stateful_dataloader/worker.py:187)
    run (/usr/lib/python3.11/multiprocessing/process.py:108)
    _get_iterator (/venv/lib/python3.11/site-packages/torchdata/stateful_dataloader/stateful_dataloader.py:387)
    fit (/venv/lib/python3.11/site-packages/verl/trainer/ppo/v1/trainer_base.py:485)
    actor_method_executor (/venv/lib/python3.11/site-packages/ray/_private/function_manager.py:740)
"""
"""As py-spy 0.4.3 shows them: a worker has the title and the frames of the trainer from which it was forked."""


@pytest.mark.parametrize(("driver_pid", "loader_pid"), [(20, 21), (21, 20)])
def test_a_worker_of_the_data_loader_is_blamed_and_not_the_driver(driver_pid: int, loader_pid: int):
    reads = LOADER.format(function="__getitem__ (/tmp/ray/s/working_dir_files/_ray_pkg_0123abcd/mine/data.py:9)")
    title = "ray::TaskRunnerV1.run"
    both = sorted(
        [process(0, driver_pid, title, LOADS), process(0, loader_pid, title, reads)], key=lambda each: each.pid
    )
    finding = find(both, "step")
    assert finding.phase == "data"
    assert [(blame.pid, blame.frame) for blame in finding.blame] == [(loader_pid, "__getitem__ (mine/data.py:9)")]


def test_an_idle_worker_of_the_data_loader_is_not_to_blame():
    idle = LOADER.format(function="get (/usr/lib/python3.11/multiprocessing/queues.py:113)")
    waits = process(0, 20, "ray::TaskRunnerV1.run", LOADS)
    [blame] = find([waits, process(0, 21, "ray::TaskRunnerV1.run", idle)], "data").blame
    assert blame.pid == 20


FORKED = """\
Current thread 0x00007fb2eda44b80 (most recent call first):
{own}
  File "/usr/lib/python3.11/concurrent/futures/process.py", line 249 in _process_worker
  File "/usr/lib/python3.11/multiprocessing/process.py", line 108 in run
  File "/usr/lib/python3.11/multiprocessing/process.py", line 314 in _bootstrap
  File "/usr/lib/python3.11/multiprocessing/popen_fork.py", line 71 in _launch
  File "/usr/lib/python3.11/concurrent/futures/process.py", line 809 in submit
  File "/tmp/ray/x/working_dir_files/_ray_pkg_0123abcd/mine/reward.py", line 10 in compute_score
  File "/venv/lib/python3.11/site-packages/verl/experimental/reward_loop/reward_manager/naive.py", line 60 in run_single
  File "/venv/lib/python3.11/site-packages/ray/_private/function_manager.py", line 691 in actor_method_executor
  File "/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 1000 in main_loop
"""
"""As faulthandler writes it in a worker of a pool: below the fork come the frames of its parent at that time."""
IDLE = '  File "/usr/lib/python3.11/multiprocessing/queues.py", line 102 in get'


def test_an_idle_worker_of_a_pool_is_not_to_blame_for_its_parents_code():
    idle = [process(0, pid, "ray::RewardLoopWorker.run", FORKED.format(own=IDLE)) for pid in (31, 32, 33, 34)]
    finding = find([*idle, process(0, 35, "ray::RewardLoopWorker.run", REWARD)], "gen")
    assert [(blame.pid, blame.frame) for blame in finding.blame] == [(35, "_wait (mine/reward.py:6)")]


def test_a_worker_of_a_pool_that_does_not_return_is_blamed():
    own = '  File "/tmp/ray/x/working_dir_files/_ray_pkg_0123abcd/mine/judge.py", line 4 in judge'
    [blame] = find([process(0, 31, "ray::RewardLoopWorker.run", FORKED.format(own=own))], "gen").blame
    assert (blame.pid, blame.frame) == (31, "judge (mine/judge.py:4)")


def test_a_worker_of_a_pool_is_neither_a_rank_nor_the_driver():
    forked = FORKED.format(own=IDLE)
    ranks = [worker(0, BARRIER), process(0, 40, "ray::WorkerDict.actor_rollout_save_checkpoint", forked)]
    assert find(ranks, "save_checkpoint").blame == ()
    both = [process(0, 19, "ray::TaskRunnerV1.run", forked), driver()]
    assert find(both, "step").phase == "save_checkpoint"


def test_processes_of_one_id_on_two_nodes_are_two():
    """Containers of one image number their processes alike."""
    title = "ray::WorkerDict.actor_rollout_save_checkpoint"
    stopped = process(0, 30, title, SAVING, state="T")
    finding = find([stopped, process(1, 30, title, SAVING), process(2, 30, title, BARRIER)], "save_checkpoint")
    assert {blame.rank for blame in finding.blame} == {0, 1}


def test_a_driver_that_waits_for_ray_is_not_to_blame():
    assert find([driver("_compute_metrics")], "step").blame == ()


def test_only_what_two_looks_say_alike():
    first = find([worker(0, BARRIER), worker(1, SAVING)], "save_checkpoint").blame
    second = find([worker(0, SAVING), worker(1, BARRIER)], "save_checkpoint").blame
    assert same(first, first) == first
    assert same(first, second) == ()


def test_the_fingerprint_changes_with_a_stack():
    before = fingerprint([worker(0, BARRIER), worker(1, SAVING)])
    assert before == fingerprint([worker(1, SAVING), worker(0, BARRIER)])
    assert before != fingerprint([worker(0, BARRIER), worker(1, BARRIER)])
    assert fingerprint([worker(0, "")]) == ()


@pytest.mark.parametrize("text", ["", "Thread", "Thread 1 (x)\n" * 5000, "    f (a:1)\n" * 99, "\0\xff" * 999])
def test_any_text_is_read(text: str):
    assert len(stacks.parse(text)) <= 500


@pytest.mark.parametrize("folder", ["/venv/lib/python3.12/site-packages", "/workspace/verl", "/opt/my verl/src"])
def test_verl_is_known_wherever_it_is_installed(folder: str):
    text = f'Thread 1 (idle): "MainThread"\n    fit ({folder}/verl/trainer/ppo/v1/trainer_base.py:485)\n'
    [frame] = stacks.work_frames(stacks.parse(text))
    assert (frame.file, frame.is_library) == ("verl/trainer/ppo/v1/trainer_base.py", False)


def test_of_several_dumps_the_last_counts():
    changed = BY_SIGNAL.replace("line 17", "line 18")
    assert str(stacks.work_frames(stacks.parse(BY_SIGNAL + changed))[0]) == "__getitem__ (mine/data.py:18)"


def test_placement_that_no_node_can_meet():
    row = {
        "state": "PENDING", "creator_job_id": "05", "bundles": [{"unit_resources": {"CPU": 3.0, "GPU": 1.0}}] * 2,
        "stats": {"creation_request_received_ns": "1900000000000", "scheduling_state": "NO_RESOURCES"},
    }  # fmt: skip
    [blame] = waiting_groups([row, 7, {}], "05", 2000.0)
    assert blame.reason == "has waited 1 min 40 s for a node with 2x CPU 3, GPU 1 free (no resources)"
    assert waiting_groups([row], "05", 1950.0) == ()
    assert waiting_groups([row], "06", 2000.0) == ()


def test_an_actor_that_was_killed():
    context = {"error_message": "The actor is dead because it was killed by `ray.kill`."}
    dead = {
        "class_name": "TransferQueueController", "pid": 7, "state": "DEAD", "job_id": "05",
        "death_cause": {"actor_died_error_context": context},
    }  # fmt: skip
    wanted = {**dead, "death_cause": {"x": {"error_message": "all references to the actor were removed"}}}
    [blame] = dead_actors([wanted, dead, None], "05").values()
    assert (blame.actor, blame.pid) == ("TransferQueueController", 7)
    assert "killed by `ray.kill`" in blame.reason


def test_the_line_about_unfinished_prompts():
    unfinished = parse("(TaskRunner pid=1) pending: 0, running: 1, finished: 3, failure: 0")
    assert unfinished == Unfinished(0, 1, 3, 0)
    assert str(unfinished) == "1 of 4 prompts are still running"
    assert parse("running: 1") is None


def test_a_rollout_stands_while_no_prompt_changes_its_state():
    progress, first, second = Progress(), Unfinished(0, 4, 0, 0), Unfinished(0, 3, 1, 0)
    assert [progress.add(None, 0.0), progress.still_s(50.0)] == [False, None]
    assert [progress.add(first, 60.0), progress.add(first, 90.0), progress.still_s(90.0)] == [False, False, 30.0]
    assert [progress.add(second, 120.0), progress.still_s(150.0)] == [True, 30.0]
    assert [progress.add(None, 160.0), progress.still_s(200.0)] == [False, None]  # its step has ended


@pytest.mark.verl
def test_the_frames_that_name_a_phase_are_functions_of_verl():
    spec = find_spec("verl")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    files = [*(root / "trainer" / "ppo" / "v1").glob("*.py"), root / "single_controller" / "ray" / "base.py"]
    files.append(root / "checkpoint_engine" / "base.py")
    source = "\n".join(file.read_text() for file in files)
    assert [name for name in stacks.NAMED_FRAMES if f"def {name}(" not in source] == []
