"""What went wrong by the logs: of processes that print at once, died, point to others, or were killed."""

import pytest
from failed_job import BOOM, actor, driver, find, task, worker

from cloudrl.logs.causes import LogTail

VLLM = "(Server pid=7, ip=10.0.0.2) (EngineCore_DP0 pid=9) ERROR 10-12 11:00:00 [core.py:396] "
ENDED = (
    "Traceback (most recent call last):",
    "ray.exceptions.RayTaskError(RuntimeError): ray::Server.launch() (pid=7, ip=10.0.0.2)",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
)


def test_a_line_that_points_upwards_is_no_cause():
    """The engine's process has printed the cause through its server, and both states and logs have only the pointer."""
    nodes = [{"node_id": "n1", "node_ip": "10.0.0.2"}]
    log = driver(
        f"{VLLM}EngineCore failed to start.",
        f'{VLLM}  File "/a.py", line 1, in f',
        f"{VLLM}ValueError: no room",
        *ENDED,
    )
    server = task("Server.launch", 5000, "\n".join(ENDED))
    for rows in ({}, {"tasks": [server]}):
        found = find([log], nodes=nodes, **rows)
        assert (found.error, found.process, found.rank) == ("ValueError: no room", "Server (pid 7)", 1)
    assert find([driver(*ENDED)]) is None


def test_processes_that_print_at_once():
    of_a = ("Traceback (most recent call last):", '  File "/a.py", line 1, in f', "KeyError: 'a'")
    of_b = ("Traceback (most recent call last):", '  File "/b.py", line 1, in g', "KeyError: 'b'")
    pairs = zip(of_b, of_a, strict=True)
    found = find([driver(*(line for b, a in pairs for line in (f"(B pid=2) {b}", f"(A pid=1) {a}")))])
    assert (found.error, found.process, found.lines) == ("KeyError: 'b'", "B (pid 2)", of_b)


def test_what_a_logger_calls_a_warning_has_not_failed():
    prefix = "10-12 11:00:00 [a.py:1]"
    assert find([driver(f"WARNING {prefix} ValueError: another way", f"INFO {prefix} Segmentation fault")]) is None
    found = find([driver(f"ERROR {prefix} the port is gone")])
    assert (found.error, found.signature) == ("the port is gone", None)


@pytest.mark.parametrize(
    "line",
    [
        "'ReadTimeoutError(\"HTTPSConnectionPool(host='hf.co', port=443)\")' thrown while requesting GET https://hf.co/x",
        "node-1:100:200 [0] NCCL INFO socketStartConnect: Connect to 10.0.0.2<5282> failed : No route to host",
        "A module that was compiled using NumPy 1.x cannot be run in",
    ],
)
def test_what_a_process_has_coped_with_is_no_cause(line: str):
    ended = ("Traceback (most recent call last):", '  File "/a.py", line 1, in f', "KeyError: 'mine'")
    assert find([driver(*(f"(W pid=1) {each}" for each in (line, *ended)))]).error == "KeyError: 'mine'"


def test_a_row_is_asked_without_the_prefix_of_a_logger():
    found = find([driver("wandb: ERROR Error while calling W&B API: permission denied (<Response [403]>)")])
    assert found.signature == "tracking-key"


def test_a_dead_process_in_words_that_no_signature_knows():
    """They are shown, and not the advice for a process that ended without a word, which is more memory."""
    words = (
        "loading",
        "terminate called after throwing an instance of 'c10::Error'",
        "  what():  CUDA error: odd",
        "*** SIGABRT",
    )
    dead = {"workers": [worker(3, 1000)], "actors": [actor("", 3)]}
    found = find([LogTail("worker-w3-01000000-3.err", 0, words)], **dead)
    assert (found.error, found.signature, found.process) == ("c10::Error: CUDA error: odd", None, "Rank (pid 3)")
    survived = LogTail("worker-w3-01000000-3.err", 0, (*words, *["a step is done"] * 6))
    assert find([survived], **dead).signature == "process-killed"


DIED = "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2."
WATCHDOG = (
    "(Rank pid=3) [rank3]:[E812 19:20:41.118 ProcessGroupNCCL.cpp:629] Watchdog caught collective operation timeout: x"
)


@pytest.mark.parametrize(
    "report",
    [
        (
            f"(raylet) A worker died or was killed. Worker PID: 3 {DIED}",
            "ray.exceptions.ActorDiedError: The actor died",
        ),
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly.", "\tpid: 3", f"The actor is dead. {DIED}"),
    ],
)
def test_a_dead_process_whose_words_only_the_driver_has(report: tuple[str, str]):
    assert find([driver(WATCHDOG, *report)]).signature == "collective-timeout"
    found = find([driver("(Rank pid=3) RuntimeError: CUDA error: uncorrectable ECC error", *report)])
    assert (found.signature, found.process) == ("hardware", "Rank (pid 3)")
    found = find([driver("(Rank pid=3) loading", *report)])
    assert (found.signature, found.process) == ("process-killed", "Rank (pid 3)")
    assert "Worker exit type: SYSTEM_ERROR" in found.lines[-1]


def test_a_raylet_that_ended_unexpectedly():
    said = (
        "2026-11-23 11:07:06,274\tWARNING worker.py:2107 -- Raylet is terminated. Termination is unexpected. Possible "
        "reasons include: (1) SIGKILL by the user or system OOM killer, (2) Invalid memory access from Raylet causing "
        "SIGSEGV or SIGBUS, (3) Other termination signals. Last 20 lines of the Raylet logs:"
    )
    found = find([driver(said, "ray.exceptions.ActorDiedError: The actor died unexpectedly")])
    assert (found.signature, found.error) == ("node-lost", "the node has died: its raylet ended unexpectedly")


@pytest.mark.parametrize(
    ("code", "message", "error", "signature"),
    [
        (137, "", "the job's driver was killed by signal 9, SIGKILL (exit code 137)", "process-killed"),
        (-9, "", "the job's driver was killed by signal 9, SIGKILL (exit code -9)", "process-killed"),
        (
            None,
            "Job entrypoint command failed with exit code -9, last available logs",
            "signal 9, SIGKILL",
            "process-killed",
        ),
        (139, "", "signal 11, SIGSEGV", "segmentation-fault"),
        (134, "", "RuntimeError: survived", None),
        (1, "", "RuntimeError: survived", None),
    ],
)
def test_a_driver_that_was_killed(code: int | None, message: str, error: str, signature: str | None):
    """What its log has of exceptions, it has survived; unless it ended itself, as with SIGABRT."""
    job = {"driver_exit_code": code, "message": message, "end_time": 5000, "driver_node_id": "n1"}
    found = find([driver("Traceback (most recent call last):", "RuntimeError: survived", "Killed")], job=job)
    assert error in found.error
    assert (found.process, found.signature) == ("driver", signature)


def test_what_a_silent_rank_said_is_the_cause():
    late = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation"
    actors = [actor("aB3dE_WorkerDict_0:0", 1), actor("aB3dE_WorkerDict_0:1", 2, "n1")]
    waited = task("train", 9000, late, actor_id=f"{1:032x}", node_id="n0", worker_pid=1)
    log = LogTail("worker-x-01000000-2.err", 1, ("loading rows", 'File "/a.py", line 1, in f', "KeyError: 'rows'"))
    found = find([log], tasks=[waited], actors=actors)
    assert (found.rank, found.process, found.error) == (1, "WorkerDict_0:1 (pid 2)", "KeyError: 'rows'")


def test_what_leaves_the_cause_open_comes_last():
    full = "(raylet) [2025-08-21 06:51:00,280 E 1 1] (raylet) a.cc:116: /tmp is over 95% full, available space: 1 GB"
    upload = "ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime environment."
    assert find([driver(full, upload)]).signature == "disk-nearly-full"
    assert find([driver(upload)]).signature == "upload"
    assert find([driver(full, "ValueError: mine")]).error == "ValueError: mine"
    index = "../aten/src/ATen/native/cuda/Indexing.cu:1146: f: [46,0,0] Assertion `srcIndex < srcSelectDimSize` failed."
    assert find([driver(index, "RuntimeError: CUDA error: device-side assert triggered")]).signature == "gpu-index"


def test_the_end_of_a_log_that_only_ray_quotes():
    job = {
        "message": "Job entrypoint command failed with exit code 1, last available logs (truncated):\n(A pid=1) x\n"
        + BOOM
    }
    assert find(job=job).error == "ValueError: boom"


HYDRA = "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."


def test_what_hydra_says_without_a_traceback():
    words = (
        "In config: Override 'a : b' is defined before 'c: d'.",
        "Overrides must be at the end of the defaults list",
    )
    found = find([driver("starting", "", *words, "", HYDRA)])
    assert (found.error, found.signature, found.lines) == (words[0], None, words)
    refused = ("Could not override 'actor.x'.", "To append to your config use +actor.x=1", "Key 'x' is not in struct")
    assert find([driver(*refused, "", HYDRA)]).signature == "unknown-key"
    assert find([driver("Error executing job with overrides: []", "", HYDRA)]) is None


def test_a_failed_check_of_compiled_code_is_the_last_word_of_its_process():
    """Its stack stands below it, and the raylet and the driver report the death."""
    log = driver(
        "(W pid=7) [2025-07-06 07:14:27,052 C 7 7] task_receiver.cc:219:  Check failed: objects_valid",
        "(W pid=7) *** StackTrace Information ***",
        *("(W pid=7) /a/ray/_raylet.so(+0x13ddb7a) [0x73a4e4830b7a] ray::operator<<()" for _ in range(9)),
        "(raylet) A worker died: Worker PID: 7 Worker exit type: SYSTEM_ERROR Worker exit detail: End of file.",
    )
    assert find([log]).error == "Check failed: objects_valid"


@pytest.mark.parametrize(
    "told",
    [
        "[2025-04-15 12:43:15 TP0] Ignore import error when loading a.b. cannot import name 'A' from 'transformers'",
        "Skipping import of a.b: No module named 'transformers.models.b'",
        "[2025-04-28 23:37:56,039] [WARNING] [a.py:194:f] libcudart.so.12: cannot open shared object file",
        "Retrying in 2 s: [Errno 28] No space left on device",
    ],
)
def test_what_a_program_does_without_is_no_cause(told: str):
    assert find([driver(told, *BOOM.splitlines())]).error == "ValueError: boom"
    assert find([driver(told)]) is None
