"""Looks at real processes: notes of their phase, stacks by SIGUSR2, and what their counters say."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import SLOWER

from cloudrl.child_process import descendants
from cloudrl.node import looks as looks_module
from cloudrl.node.job_processes import JobProcesses, Listed
from cloudrl.node.look_hook import PhaseNotes
from cloudrl.node.looks import Looks, outside_sockets
from cloudrl.node.masking import Masker

pytestmark = pytest.mark.io

TRAINER = """
import sys, time, types
import importlib.util, importlib.abc, importlib.machinery

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("verl", "verl.utils", "verl.utils.profiler"):
            return importlib.machinery.ModuleSpec(name, Loader(), is_package=True)

class Loader(importlib.abc.Loader):
    def exec_module(self, module):
        if module.__name__ == "verl.utils.profiler":
            import contextlib
            @contextlib.contextmanager
            def marked_timer(name, timing, color=None):
                began = time.time()
                yield
                timing[name] = time.time() - began
            module.marked_timer = marked_timer

sys.meta_path.append(Finder())
from verl.utils.profiler import marked_timer

def waits_for_a_password_hunter22():
    print("up", flush=True)
    sys.stdin.read(1)

timing = {}
with marked_timer("step", timing):
    with marked_timer("gen", timing, color="red"):
        pass
    with marked_timer("reward", timing):
        waits_for_a_password_hunter22()
print(sorted(timing), flush=True)
sys.stdin.read(1)
"""


@pytest.fixture
def looks(tmp_path: Path) -> Looks:
    return Looks(tmp_path, 0)


@pytest.fixture
def start(looks: Looks) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    started = []
    env = {**os.environ, **looks.prepare({})}

    def start_one(code: str) -> "subprocess.Popen[str]":
        command = [sys._base_executable, "-c", code]  # type: ignore[attr-defined]  # without the packages of ours
        process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def processes_of(*processes: "subprocess.Popen[str]", **more: object) -> JobProcesses:
    pids = {process.pid for process in processes}
    return JobProcesses(lambda: None, lambda: False, belongs=lambda: pids, **more)  # type: ignore[arg-type]


def look_by_signal(looks: Looks, process: "subprocess.Popen[str]", patch: pytest.MonkeyPatch) -> tuple[str, str]:
    patch.setattr(looks_module, "_py_spy", lambda _: "")
    patch.setattr(JobProcesses, "listed", lambda _: (Listed(process.pid, "ray::TaskRunnerV1.run", "S"),))
    [looked] = looks.look(processes_of(process), Masker(["hunter22"]), ())
    return looked.source, looked.stacks


def test_the_phase_of_a_training_is_noted(looks: Looks, start: Callable[[str], "subprocess.Popen[str]"]):
    process = start(TRAINER)
    note = looks.note()
    assert note is not None
    assert (note.phase, note.job_id) == ("reward", "")
    assert [(ended.number, ended.phase) for ended in note.ended] == [(1, "gen")]
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("x")
    process.stdin.flush()
    assert process.stdout.readline() == "['gen', 'reward', 'step']\n"  # verl's own timer has done its part
    after = looks.note()
    assert after is not None
    assert [ended.phase for ended in after.ended] == ["gen", "reward", "step"]


def test_stacks_by_signal_are_masked_and_harm_nothing(
    looks: Looks, start: Callable[[str], "subprocess.Popen[str]"], monkeypatch: pytest.MonkeyPatch
):
    process = start(TRAINER)
    for _ in range(3):
        source, text = look_by_signal(looks, process, monkeypatch)
        assert source == "SIGUSR2"
        assert "in waits_for_a_password_***" in text
        assert text.count("most recent call first") == 1
    assert process.poll() is None


def test_a_look_ends_though_py_spy_cannot_be_killed(
    looks: Looks, start: Callable[[str], "subprocess.Popen[str]"], monkeypatch: pytest.MonkeyPatch
):
    """While the kernel holds the memory that it reads, py-spy is killed and does not end."""
    process, free, reads = start(TRAINER), threading.Event(), []

    def stuck(pid: int) -> str:
        reads.append(pid)
        free.wait(30)
        return ""

    monkeypatch.setattr(looks_module, "_PY_SPY_S", 0.05)
    monkeypatch.setattr(looks_module, "_py_spy", stuck)
    monkeypatch.setattr(JobProcesses, "listed", lambda _: (Listed(process.pid, "ray::TaskRunnerV1.run", "D"),))
    began = time.monotonic()
    for _ in range(3):
        [looked] = looks.look(processes_of(process), Masker([]), ())
        assert looked.stacks == ""
    assert time.monotonic() - began < 20
    assert reads == [process.pid]
    free.set()


def test_a_process_that_does_not_catch_the_signal_gets_none(
    looks: Looks, start: Callable[[str], "subprocess.Popen[str]"], monkeypatch: pytest.MonkeyPatch
):
    process = start(
        "import signal, sys; signal.signal(signal.SIGUSR2, signal.SIG_DFL); print('up', flush=True); input()"
    )
    assert look_by_signal(looks, process, monkeypatch) == ("", "")
    time.sleep(0.2)
    assert process.poll() is None


def test_a_file_that_is_not_open_any_more_is_not_trusted(
    looks: Looks, start: Callable[[str], "subprocess.Popen[str]"], monkeypatch: pytest.MonkeyPatch
):
    process = start("import os, sys; os.closerange(3, 64); print('up', flush=True); input()")
    assert look_by_signal(looks, process, monkeypatch) == ("", "")


def test_a_process_that_computes_is_not_signalled(
    looks: Looks, start: Callable[[str], "subprocess.Popen[str]"], monkeypatch: pytest.MonkeyPatch
):
    process = start("print('up', flush=True)\nwhile True: pass")
    assert look_by_signal(looks, process, monkeypatch) == ("", "")


def test_a_process_that_takes_the_signal_for_itself_gets_none(
    looks: Looks, start: Callable[[str], "subprocess.Popen[str]"], monkeypatch: pytest.MonkeyPatch
):
    handler = "import os, signal, sys; signal.signal(signal.SIGUSR2, lambda *_: os._exit(3))"
    process = start(f"{handler}\nprint('up', flush=True); sys.stdin.read()")
    assert look_by_signal(looks, process, monkeypatch) == ("", "")
    assert process.poll() is None


@pytest.mark.parametrize(
    ("title", "is_listed"),
    [
        ("ray::DashboardAgent", False),
        ("ray::RuntimeEnvAgent", False),
        ("ray::AgentLoopWorkerTQ", True),
        ("ray::DashboardAgents.run", True),
    ],
)
def test_rays_own_agents_belong_to_no_job(tmp_path: Path, title: str, *, is_listed: bool):
    process = tmp_path / "proc" / "7"
    process.mkdir(parents=True)
    (process / "cmdline").write_text(title)
    (process / "stat").write_text("7 (ray) S 1 0 0")
    processes = JobProcesses(lambda: None, lambda: False, belongs=lambda: {7}, root=tmp_path)
    assert [listed.title for listed in processes.listed()] == ([title] if is_listed else [])


def test_secrets_in_titles_are_masked(monkeypatch: pytest.MonkeyPatch, looks: Looks):
    monkeypatch.setattr(JobProcesses, "listed", lambda _: (Listed(1 << 30, "sh -c KEY=hunter22 verl", "S"),))
    assert looks.look(processes_of(), Masker(["hunter22"]), ())[0].title == "sh -c KEY=*** verl"


def test_timers_of_coroutines_end_in_any_order(tmp_path: Path):
    times = iter(range(100))
    notes = PhaseNotes(str(tmp_path), clock=lambda: next(times))
    gen, update = notes.begin("gen"), notes.begin("update_actor")
    notes.end(gen)
    text = (tmp_path / f"{os.getpid()}.phase").read_text()
    assert (json.loads(text)["phase"], json.loads(text)["ended"]) == ("update_actor", [[1, "gen", 2]])
    notes.end(update)


def test_files_of_the_dead_are_removed(looks: Looks, start: Callable[[str], "subprocess.Popen[str]"], tmp_path: Path):
    process = start(TRAINER)
    process.kill()
    process.wait()
    assert looks.note() is None
    assert list((tmp_path / "looks-0").iterdir()) == []


def test_what_is_not_a_note_is_passed_over(looks: Looks, tmp_path: Path):
    looks.prepare({})
    folder, pid = tmp_path / "looks-0", os.getpid()
    (tmp_path / "target").write_text('{"phase": "gen", "since": 1, "ended": [], "job_id": ""}')
    (folder / f"{pid}.phase").symlink_to(tmp_path / "target")
    assert looks.note() is None
    (folder / f"{pid}.phase").unlink()
    for text in ('{"phase": 3, "ended": [[1]]}', '{"phase": "gen"}', "[" * 100_000):
        (folder / f"{pid}.phase").write_text(text)
        assert looks.note() is None


def test_a_stopped_process_is_seen_with_its_age(start: Callable[[str], "subprocess.Popen[str]"]):
    times = iter([0.0, 5.0, 70.0])
    process = start("import sys; 'verl'; print('up', flush=True); sys.stdin.read()")
    processes = processes_of(process, clock=lambda: next(times), now=lambda: 1000.0)
    assert processes.sample().halted == ()
    os.kill(process.pid, signal.SIGSTOP)
    deadline = time.monotonic() + 5 * SLOWER
    while Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "T":
        assert time.monotonic() < deadline
    assert [halted.seconds for halted in processes.sample().halted] == [0.0]
    [halted] = processes.sample().halted
    assert (halted.pid, halted.title, halted.state, halted.seconds) == (process.pid, sys._base_executable, "T", 65.0)  # type: ignore[attr-defined]


def test_a_process_that_computes_counts_and_one_that_waits_does_not(start: Callable[[str], "subprocess.Popen[str]"]):
    busy = start("'verl'; print('up', flush=True)\nwhile True: pass")
    idle = start("import sys; 'verl'; print('up', flush=True); sys.stdin.read()")
    both, one = processes_of(busy, idle), processes_of(idle)
    both.sample()
    one.sample()
    time.sleep(1)
    busiest = both.sample().cores
    for _ in range(20):  # another program may have the CPUs for a second
        if busiest > 0.05:
            break
        time.sleep(1)
        busiest = both.sample().cores
    assert busiest > 0.05
    assert one.sample().cores < 0.02  # it may end its own start


def test_what_a_process_of_a_job_has_started_counts():
    compiles = (
        f"import subprocess; subprocess.run([{sys.executable!r}, '-c', 'print(1, flush=True)\\nwhile True: pass'])"
    )
    command = ["bash", "-c", f'exec -a ray::WorkerDict.train {sys._base_executable} -c "$0"', compiles]  # type: ignore[attr-defined]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE) as worker:
        try:
            assert worker.stdout is not None
            worker.stdout.readline()
            processes = JobProcesses(
                lambda: None, lambda: False, belongs=lambda: {worker.pid, *descendants(worker.pid)}
            )
            processes.sample()
            time.sleep(1)
            assert processes.sample().cores > 0.05
        finally:
            os.killpg(worker.pid, signal.SIGKILL)


def test_only_a_process_that_never_wakes_is_halted_in_the_kernel(tmp_path: Path):
    folder, at = tmp_path / "proc/7", [0.0]
    folder.mkdir(parents=True)
    (folder / "cmdline").write_text("VLLM::EngineCore")
    (folder / "stat").write_text("7 (VLLM) D " + " ".join(["1"] * 40))
    (folder / "wchan").write_text("folio_wait_bit_common")
    processes = JobProcesses(
        lambda: None, lambda: False, belongs=lambda: {7}, root=tmp_path, clock=lambda: at[0], now=lambda: 0.0
    )

    def seconds(wakes: int) -> float:
        at[0] += 60
        (folder / "status").write_text(f"Name:\tVLLM\nvoluntary_ctxt_switches:\t{wakes}\n")
        return processes.sample().halted[0].seconds

    assert [seconds(10), seconds(20), seconds(30)] == [0, 0, 0]  # it reads a model from a slow share
    assert [seconds(30), seconds(30)] == [60, 120]


def test_how_long_processes_wait_for_a_cpu(tmp_path: Path):
    processes = JobProcesses(lambda: None, lambda: False, belongs=set, root=tmp_path)
    assert processes.sample().cpu_wait_percent == 0  # a kernel that does not count it
    file = tmp_path / "proc/pressure/cpu"
    file.parent.mkdir(parents=True)
    file.write_text("some avg10=99.42 avg60=99.59 avg300=99.78 total=40915438511\nfull avg10=0.00 avg60=0.00\n")
    assert processes.sample().cpu_wait_percent == 99.42
    file.write_text("")
    assert processes.sample().cpu_wait_percent == 0


def test_connections_out_of_the_cluster():
    with socket.create_server(("127.0.0.1", 0)) as outside:
        address = "{}:{}".format(*outside.getsockname())
        with socket.create_connection(outside.getsockname()), outside.accept()[0]:
            assert address in outside_sockets([], ()).values()
            assert address not in outside_sockets([], ("127.0.0.1",)).values()
            assert address not in outside_sockets([os.getpid()], ()).values()  # both ends are the cluster's
