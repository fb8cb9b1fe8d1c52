"""Lines without what Ray, vLLM, torchrun, Slurm and loggers put before them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.logs.causes.printed import read_line, read_streams, shortened

LINES = [
    # line, its text, the processes that it names, its level
    ("ValueError: x", "ValueError: x", "", ""),
    ('  File "/a.py", line 1, in f', '  File "/a.py", line 1, in f', "", ""),
    ("\x1b[36m(WorkerDict pid=7, ip=10.0.0.2)\x1b[0m     code", "    code", "(WorkerDict pid=7, ip=10.0.0.2)", ""),
    ("(pid=7) KeyError: 1", "KeyError: 1", "(pid=7)", ""),
    ("(ActorWorker(actor_infer-0) pid=7) KeyError: 1", "KeyError: 1", "(ActorWorker(actor_infer-0) pid=7)", ""),
    ("(VllmWorker rank=3 pid=7) INFO 08-20 09:48:31 [a.py:1] x", "x", "(VllmWorker rank=3 pid=7)", "I"),
    ("(<a.B object at 0x7f> pid=7) x", "x", "(<a.B object at 0x7f> pid=7)", ""),
    (
        '(Server pid=1) (EngineCore_DP0 pid=2) ERROR 10-12 11:00:00 [v1/core.py:396]   File "/a.py", line 1, in f',
        '  File "/a.py", line 1, in f',
        "(Server pid=1) (EngineCore_DP0 pid=2)",
        "E",
    ),
    ("(W pid=1) ERROR 11-18 18:07:28 engine.py:366]     raise", "    raise", "(W pid=1)", "E"),
    ("(A pid=1) KeyError: 1\x1b[32m [repeated 3x across cluster]\x1b[0m", "KeyError: 1", "(A pid=1)", ""),
    ("[rank8]: Traceback (most recent call last):", "Traceback (most recent call last):", "[rank8]", ""),
    ("[default3]:ValueError: x", "ValueError: x", "[default3]", ""),
    ("[1,3]<stderr>:ValueError: x", "ValueError: x", "[1,3]<stderr>", ""),
    ("12: ValueError: x", "ValueError: x", "12", ""),
    ("[rank1]:[E812 19:20:41.118 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog", "[Rank 1] Watchdog", "[rank1]", "E"),
    ("E1123 09:30:03.123000 12 torch/distributed/elastic/api.py:882] failed", "failed", "", "E"),
    ("(raylet) [2025-08-21 06:51:00,280 E 1 2] (raylet) node_manager.cc:3: gone", "gone", "(raylet)", "E"),
    ("2026-11-23 11:07:06,274\tINFO worker.py:1691 -- Using", "Using", "", "I"),
    ("2026-11-23 11:07:06,274\tWARNING worker.py:2037 -- A worker died", "A worker died", "", ""),
    ("2026-11-23 11:07:06,274\tWARNING node.py:16 -- slow", "slow", "", "W"),
    ("[2025-11-28 16:00:45 TP0] Scheduler hit", "Scheduler hit", "", ""),
    ("ERROR:2025-12-12 10:42:30,016:loop error", "loop error", "", "E"),
    ("ERROR:root:boom", "boom", "", "E"),
    ("WARNING:Error executing tool 'a': 'q'", "Error executing tool 'a': 'q'", "", "W"),
    ("ERROR:RuntimeError: x", "RuntimeError: x", "", "E"),
    ("ERROR:    Exception in ASGI application", "Exception in ASGI application", "", "E"),
    ("[2025-01-01 10:00:00,123][__main__][ERROR] - boom", "boom", "", "E"),
    ("2025-01-01 10:00:00,123 - a.b - WARNING - boom", "boom", "", "W"),
    ("wandb: ERROR api_key not configured", "api_key not configured", "", "E"),
    ("  | ValueError: x", "ValueError: x", "", ""),
    ("[../gloo/tcp/pair.cc:547] Connection closed", "[../gloo/tcp/pair.cc:547] Connection closed", "", ""),
    ("step:5 - a:1", "step:5 - a:1", "", ""),
    ("vllm-openai-1  | ERROR 06-14 07:04:12 worker_base.py:148] boom", "boom", "", "E"),
    ("Feb 04 08:47:07 server sudo[477960]: (VllmWorker rank=0 pid=7) x", "x", "(VllmWorker rank=0 pid=7)", ""),
    ("[pod/train-0/main] ValueError: x", "ValueError: x", "", ""),
    ("2025-12-02 03:58:17.856 | ERROR    | a.b:_run:88 - boom", "boom", "", "E"),
    ("[2023-06-09 01:52:53,319 E 9906 9971] (raylet) agent_manager.cc:135: gone", "gone", "(raylet)", "E"),
    ("[2025-04-28 23:37:56,039] [WARNING] [real_accelerator.py:194:get] No GPU", "No GPU", "", "W"),
    ("[INFO|tokenization.py:2058] 2025-08-08 09:30:46,782 >> loading", "loading", "", "I"),
    ("[WARNING|2025-05-29 14:43:18] llamafactory.data.converter:154 >> gone", "gone", "", "W"),
    ("[rank0]: [ERROR] boom", "boom", "[rank0]", "E"),
    ("(W pid=7) [2025-07-06 07:14:27,052 C 7 7] a.cc:219:  Check failed: x", " Check failed: x", "(W pid=7)", "F"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "text", "by", "level"), LINES)
def test_a_line_without_its_prefixes(line: str, text: str, by: str, level: str):
    found = read_line(line)
    assert (found.text, found.by, found.level) == (text, by, level)


def test_the_outermost_process():
    found = read_line("(Server pid=1, ip=10.0.0.2) (EngineCore_DP0 pid=2) x")
    assert (found.name, found.pid, found.ip) == ("Server", 1, "10.0.0.2")
    assert read_line("(raylet, ip=10.0.0.2) x").name == "raylet"


@pytest.mark.parametrize(
    "line",
    [
        "INFO 10-12 11:00:00 [core.py:1] ValueError: x",
        "(W pid=1) {'reward': {'custom_reward_function': {'path': None}},",
        "Error executing job with overrides: ['reward.custom_reward_function.path=/a.py']",
        "Running entrypoint for job x: python3 -m verl reward.custom_reward_function.path=/a.py",
        "(W pid=1) node-1:100:200 [0] NCCL INFO NET/Plugin: Failed to initialize any NET plugin",
        "'(MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443)\"))' thrown while requesting HEAD https://x",
        "HTTP Error 503 thrown while requesting GET https://huggingface.co/x",
        "[response] The loss is nan.",
    ],
)
def test_what_reports_no_failure(line: str):
    assert read_line(line).is_quiet


@pytest.mark.parametrize(
    "line",
    ["node-1:100:200 [0] NCCL WARN Cuda failure 'out of memory'", "ConnectionError: HTTPSConnectionPool(host='x')"],
)
def test_what_reports_one(line: str):
    assert not read_line(line).is_quiet


def test_lines_of_processes_that_print_at_once():
    streams = read_streams(["(A pid=1) one", "mine", "(A pid=1) two", "[rank1]: his", "(A pid=2) other"])
    assert [(each.texts, each.places, each.is_own) for each in streams] == [
        (("one", "two"), (0, 2), False),
        (("mine",), (1,), True),
        (("his",), (3,), True),
        (("other",), (4,), False),
    ]


def test_a_line_of_any_length():
    assert len(shortened("a" * 10**8)) == 2000
    assert shortened("a" * 2000) == "a" * 2000
    assert shortened("start" + "a" * 5000 + "end").startswith("start")
    assert shortened("start" + "a" * 5000 + "end").endswith("end")


PIECES = [
    "(",
    "pid=",
    "(a pid=1) ",
    "[rank1]: ",
    "ERROR ",
    "10-12 11:00:00 ",
    "[2025-01-01 10:00:00",
    "| ",
    "1: ",
    " ",
    "a.py:1: ",
]


@pytest.mark.parametrize("piece", PIECES)
def test_prefixes_without_end_are_read_at_once(piece: str):
    before_s = time.process_time()
    for _ in range(100):
        read_line(piece * 100_000)
    assert time.process_time() - before_s < 2


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=20), max_size=12).map("".join))
def test_no_line_makes_it_fail(line: str):
    assert line.rstrip().endswith(read_line(line).text.strip()) or "\x1b" in line


@pytest.mark.parametrize(
    "line",
    [
        '/verl/engine/__init__.py:60: UserWarning: megatron is not available: ModuleNotFoundError("No module named")',
        "FutureWarning: `torch.load` with `weights_only=False`",
        "(W pid=7) a.py:1: Warning: x",
    ],
)
def test_warnings_of_python_are_no_failures(line: str):
    assert read_line(line).is_quiet
    assert not read_line("ValueError: Warning: x").is_quiet


@pytest.mark.parametrize(
    ("line", "is_error", "is_fatal"),
    [
        ("srun: error: CPU binding outside of job step allocation, allocated CPUs are: 0x34.", True, False),
        ("srun: error: node01: task 0: Exited with exit code 1", False, False),
        ("slurmstepd: error: *** STEP 1.0 ON node1 CANCELLED AT 2026-03-01T12:00:00 ***", False, False),
        ("slurmd: fatal: can't stat gres.conf file /dev/nvidia0: No such file or directory", True, False),
        ("tar: error: it is not an archive", True, False),
        ("docker: Error response from daemon: failed to create shim task: OCI runtime create failed", True, False),
        ("node:1:2 [0] transport/p2p.cc:239 NCCL WARN hipIpcGetMemHandle failed : invalid argument", True, False),
        ("node:1:2 [0] NCCL INFO transport/p2p.cc:700 -> 1", False, False),
        ("(raylet) node_manager.cc:3557:  Check failed: done", True, True),
        ("F1123 09:30:03.123000 12 a.cc:8] boom", True, True),
        ("CRITICAL:root:boom", True, False),
        ("2025-08-30 10:00:00.123 | ERROR    | a.b:f:227 - [FATAL] No fallback, skipping", True, False),
        ("the error: none", False, False),
    ],
)
def test_what_says_by_its_form_that_it_has_failed(line: str, is_error: bool, is_fatal: bool):
    printed = read_line(line)
    assert (printed.is_error, printed.is_fatal) == (is_error, is_fatal)
