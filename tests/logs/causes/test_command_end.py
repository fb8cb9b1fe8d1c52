"""How a job's command ended: the last words of shells and interpreters, as they print them, and exit codes alone."""

import pytest
from failed_job import driver, find

from cloudrl.logs.causes import Cause

COMMAND = "Running entrypoint for job x: ./train.sh"
WORDS = {
    "program-missing": [
        "/bin/sh: 1: torchrun: not found",
        "./train.sh: line 4: torchrun: command not found",
        "bash: ray: command not found",
        "/bin/sh: 1: exec: torchrun: not found",
        "/usr/bin/env: \u2018python\u2019: No such file or directory",
        "timeout: failed to run command 'torchrun': No such file or directory",
    ],
    "path-missing": [
        "/bin/sh: 1: ./train.sh: not found",
        "bash: train.sh: No such file or directory",
        "sh: 0: cannot open train.sh: No such file",
        "./train.sh: line 3: ./env.sh: No such file or directory",
        "train.sh: 1: .: cannot open ./env.sh: No such file",
        "/bin/bash: line 1: cd: /workspace/verl: No such file or directory",
        "/bin/sh: 1: cd: can't cd to /workspace/verl",
        "python3: can't open file '/job/train.py': [Errno 2] No such file or directory",
        "cp: cannot stat '/data/config.yaml': No such file or directory",
    ],
    "not-executable": ["/bin/sh: 1: ./train.sh: Permission denied", "/bin/bash: line 1: ./recipe: Is a directory"],
    "windows-line-ends": [
        "env: \u2018bash\\r\u2019: No such file or directory",
        "train.sh: line 2: $'\\r': command not found",
    ],
    "bad-interpreter": ["/bin/bash: line 1: ./train.sh: cannot execute: required file not found"],
    "needs-bash": ["train.sh: 1: source: not found", "train.sh: 3: [[: not found", "train.sh: 1: Bad substitution"],
    "shell-syntax": [
        "train.sh: line 4: syntax error: unexpected end of file",
        'train.sh: 4: Syntax error: "fi" unexpected (expecting "then")',
        "bash: -c: line 1: unexpected EOF while looking for matching `''",
    ],
    "variable-unset": ["./train.sh: line 3: MODEL_PATH: unbound variable", "train.sh: 3: MODEL: parameter not set"],
    "access-denied": ["mkdir: cannot create directory '/data/checkpoints': Permission denied"],
    "server-unreachable": [
        "curl: (6) Could not resolve host: huggingface.co",
        "fatal: unable to access 'https://localhost:1/x/': Failed to connect to localhost port 1",
    ],
    "arguments": ["train.py: error: unrecognized arguments: --modl x"],
    "exec-format": ["/bin/sh: 1: ./train: Exec format error"],
    "module-missing": ["/usr/bin/python3: No module named mine.trainer"],
    "known-package-missing": ["/usr/bin/python3: No module named verl.trainer.main_ppo"],
}


def end(code: int | None, *lines: str) -> Cause | None:
    job = {"driver_exit_code": code, "end_time": 5000.0}
    found: Cause | None = find([driver(COMMAND, *lines)], job=job)
    return found


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in WORDS.items() for line in lines])
def test_the_last_words_of_a_shell(name: str, line: str):
    cause = end(2, "preparing", line)
    assert cause is not None
    assert (cause.signature, cause.error, cause.process) == (name, line, "driver")
    assert cause.lines[-2:] == ("preparing", line)


def test_a_message_of_a_shell_counts_only_at_the_end_and_without_a_better_cause():
    missing = WORDS["program-missing"][0]
    cause = end(1, missing, *(f"step:{step} - x:1" for step in range(10)))
    assert cause is not None
    assert (cause.signature, cause.error.partition(";")[0]) == (None, "the job's command ended with exit code 1")
    cause = end(127, "Traceback (most recent call last):", '  File "/a.py", line 1, in f', "KeyError: 'a'", missing)
    assert cause is not None
    assert cause.error == "KeyError: 'a'"
    cause = end(None, missing)
    assert cause is not None
    assert cause.signature == "program-missing"
    assert find([driver(missing)], job={"status": "RUNNING"}) is None


@pytest.mark.parametrize(
    ("code", "how", "signature"),
    [
        (137, "Killed                 ", "process-killed"),
        (1, "Killed                 ", "process-killed"),
        (139, "Segmentation fault      (core dumped)", "segmentation-fault"),
        (134, "Aborted                 (core dumped)", "aborted"),
        (143, "Terminated             ", "terminated"),
    ],
)
def test_a_program_of_a_script_that_a_signal_ended(code: int, how: str, signature: str):
    cause = end(
        code, "step:1 - x:1", f"./train.sh: line 7:  5643 {how} python3 -m verl.trainer.main_ppo", "cleaning up"
    )
    assert cause is not None
    assert cause.signature == signature
    assert cause.error.startswith(
        "`python3 -m verl.trainer.main_ppo` (pid 5643, ./train.sh line 7) was killed by signal "
    )


@pytest.mark.parametrize(
    ("code", "error", "signature"),
    [
        (1, "the job's command ended with exit code 1 and has printed nothing", None),
        (127, "the job's command ended with exit code 127 (a shell's for a program that it does not find)", None),
        (124, "the job's command ended with exit code 124", "time-limit"),
        (143, "the job's command was ended by signal 15, SIGTERM (exit code 143)", "terminated"),
        (-15, "the job's command was ended by signal 15, SIGTERM (exit code -15)", "terminated"),
        (134, "the job's driver was killed by signal 6, SIGABRT (exit code 134)", "aborted"),
        (135, "the job's driver was killed by signal 7, SIGBUS (exit code 135)", "shared-memory"),
        (132, "the job's driver was killed by signal 4, SIGILL (exit code 132)", "illegal-instruction"),
    ],
)
def test_an_exit_code_without_any_words(code: int, error: str, signature: str | None):
    cause = end(code)
    assert cause is not None
    assert (cause.error[: len(error)], cause.signature) == (error, signature)


def test_the_last_line_is_shown_with_an_exit_code():
    cause = end(1, "loading", "config.yaml has no model")
    assert cause is not None
    assert cause.error.endswith("exit code 1; the last line of its log is: config.yaml has no model")


def test_an_exit_code_is_no_cause_beside_what_only_follows():
    assert end(1, "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.") is None
    assert end(0) is None
    assert end(None) is None


def test_the_command_is_shown_above_a_long_log():
    cause = end(127, *(f"line {number}" for number in range(100)), WORDS["program-missing"][0])
    assert cause is not None
    assert (len(cause.lines), cause.lines[0], cause.lines[1]) == (40, COMMAND, "line 62")


def test_a_file_that_python_cannot_read():
    cause = end(1, '  File "/job/train.py", line 3', "    x = (", "        ^", "SyntaxError: '(' was never closed")
    assert cause is not None
    assert (cause.signature, cause.code) == ("python-syntax", "/job/train.py, line 3")
    answer = (
        "Traceback (most recent call last):", '  File "/job/tool.py", line 4, in run', "    eval(code)",
        '  File "<string>", line 1', "    1 +", "       ^", "SyntaxError: invalid syntax",
    )  # fmt: skip
    cause = end(1, *answer)
    assert cause is not None
    assert cause.signature is None
