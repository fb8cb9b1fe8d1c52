"""Hostile scripts do no harm: each is really run, as root and as an ordinary user."""

import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from other_user import UID
from patience import SLOWER

from cloudrl.errors import InputError
from cloudrl.scripts import isolation, jail, sandbox
from cloudrl.scripts.isolation import NotIsolated, read_ended
from cloudrl.scripts.observe import observe
from cloudrl.scripts.sandbox import Call, Play, Recording
from cloudrl.scripts.syscalls import script_filter

pytestmark = pytest.mark.io

Run = Callable[..., Recording]
SYSTEM_PYTHON = "/usr/bin/python3"
"""One that every user may run; the tests' own may be below /root."""


def _as_ordinary_user(play: Play, **options: float) -> Recording:
    """What `sandbox.run` does, by a process of another user."""
    request = {**sandbox._request(play), "isolated": True, "with_user": True, "as_nobody": False, "drop": False}
    request |= {"seconds": options.get("seconds", 10), "memory_bytes": sandbox._MEMORY_BYTES}
    done = subprocess.run(
        [SYSTEM_PYTHON, "-I", "-S", "-c", Path(jail.__file__).read_text()], input=json.dumps(request).encode(),
        capture_output=True, user=UID, group=UID, extra_groups=[], env={}, cwd="/", timeout=60,
    )  # fmt: skip
    if done.returncode == jail.NOT_ISOLATED:
        pytest.skip(f"no namespaces for an ordinary user here: {done.stderr.decode()}")
    assert done.returncode == 0, done.stderr
    return sandbox._recording(read_ended(done.stdout))


def _as_this_user(play: Play, **options: float) -> Recording:
    try:
        return sandbox.run(play, **options)
    except NotIsolated as why:
        pytest.skip(f"no namespaces here: {why.message}")


@pytest.fixture(params=["this user", "ordinary user"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a script in the sandbox."""
    if request.param == "this user":
        return _as_this_user
    if os.geteuid() != 0 or not Path(SYSTEM_PYTHON).exists():
        pytest.skip("needs root and a Python that every user may run")
    return _as_ordinary_user


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """A file that everybody may write, in a folder that everybody may write: it stays as it is."""
    folder = Path("/var/tmp") / f"cloudrl-canary-{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o777)
    file = folder / "file"
    file.write_text("as it was")
    file.chmod(0o666)
    yield file
    assert sorted(path.name for path in folder.iterdir()) == ["file"]
    assert file.read_text() == "as it was"
    file.unlink()
    folder.rmdir()


def play(text: str, **fields: object) -> Play:
    return Play("/project/run.sh", text.encode(), cwd="/project", **fields)


@pytest.mark.parametrize(
    "text",
    [
        "rm -rf {folder}; rm -rf / --no-preserve-root; rm -rf /*",
        "echo changed > {file}; echo new > {folder}/new; cp /etc/passwd {folder}/copy",
        "mkdir -p {folder}; echo changed > {file}; ln -s / {folder}/link; chmod 000 {folder}",
        "cd /proc/1/root{folder} && echo changed > file; cd /proc/1/cwd/{folder} && echo changed > file",
        "for n in /proc/[0-9]*; do echo changed > $n/root{file}; done",
        "exec 9<>{file} && echo changed >&9",
        "find / -name file -exec rm {{}} \\;; find / -type f -delete",
        "while read -r _ place _; do echo changed > $place{file}; done < /proc/mounts",
        'eval "$(printf "echo changed > %s" {file})"',
        "exec -a python3 /bin/sh -c 'echo changed > {file}'",
    ],
)
def test_nothing_outside_is_changed(run: Run, canary: Path, text: str) -> None:
    run(play(text.format(file=canary, folder=canary.parent)), seconds=1.0)


def test_nothing_outside_is_seen(run: Run, canary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of a user, no variable of this shell, no process."""
    monkeypatch.setenv("MY_SECRET_TOKEN", "s3cret")
    seen = run(
        play(f"cat {canary} /etc/shadow; ls /home /work; printenv; cat /proc/1/environ; ls -d /proc/[0-9]* | wc -l")
    ).output
    assert "as it was" not in seen
    assert "s3cret" not in seen
    assert "root:$" not in seen
    assert int(seen.splitlines()[-1]) < 8


def test_no_socket_leads_out(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind("\0cloudrl-canary")
        local.listen()
        server.settimeout(0.1)
        port = server.getsockname()[1]
        said = run(
            play(
                f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo out >&3; exec 4<>/dev/udp/127.0.0.1/53; cat /proc/net/unix"
            )
        ).output
        with pytest.raises(TimeoutError):
            server.accept()
    assert "unreachable" in said
    assert "cloudrl-canary" not in said


@pytest.mark.parametrize(
    ("text", "over"),
    [
        ("while :; do :; done", "time"),
        ("trap '' TERM INT HUP; while :; do sleep 1; kill -STOP $$; done", "time"),
        (":(){ :|:& };: ; while :; do :; done", "time"),
        ("x=x; while :; do x=$x$x; done", None),  # bash itself gives up at its limit
        ("for n in 1 2 3 4 5 6 7 8; do (x=x; while :; do x=$x$x; done) & done; wait", None),
        ("yes > /tmp/full; yes > /tmp/other; echo $?", ""),
        ("for ((n = 0; n < 100000; n++)); do : > /tmp/$n; done 2>/dev/null", None),
        ("setsid bash -c 'while :; do :; done' & exit 0", ""),
        ("kill -9 -1; kill -9 1; kill -9 $PPID", ""),
    ],
)  # fmt: skip
def test_it_ends_and_leaves_no_process(run: Run, text: str, over: str | None) -> None:
    began = time.monotonic()
    marked = f"# cloudrl-hostile-{os.getpid()}\n{text}\n"
    recording = run(play(marked), seconds=1.0)
    assert time.monotonic() - began < 30 * SLOWER
    assert over is None or recording.over == over
    assert [line for line in _command_lines() if "/project/run.sh" in line] == []


def _command_lines() -> list[str]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_text(errors="replace"))
        except OSError:
            continue
    return lines


def test_it_has_no_rights(run: Run) -> None:
    status = run(play("cat /proc/self/status; echo 1 > /proc/sys/kernel/core_pattern")).output
    words = {
        line.split(":")[0]: line.split()[1:] for line in status.splitlines() if line.startswith(("Cap", "NoNew", "Uid"))
    }
    assert {name: value for name, value in words.items() if name.startswith("Cap")} == {
        name: ["0" * 16] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    }
    assert words["NoNewPrivs"] == ["1"]
    assert "0" not in words["Uid"], "root's files in /proc would be open to it"
    assert "Read-only file system" in status or "Permission denied" in status


CALLS = r"""
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def name(result):
    return "allowed" if result >= 0 else errno.errorcode[ctypes.get_errno()]
print("unshare", name(libc.unshare(0x10000000)))
print("ptrace", name(libc.ptrace(0, 0, 0, 0)))
print("keyctl", name(libc.syscall({"x86_64": 250, "aarch64": 219}[os.uname().machine], 0, -3, 0)))
print("io_uring", name(libc.syscall(425, 1, 0)))
print("clone3", name(libc.syscall(435, 0, 0)))
print("clone", name(libc.syscall({"x86_64": 56, "aarch64": 220}[os.uname().machine], 0x20000 | 17, 0, 0, 0, 0)))
for family in (socket.AF_NETLINK, socket.AF_PACKET, 38, socket.AF_UNIX, socket.AF_INET):
    print("socket", int(family), name(libc.socket(int(family), 2, 0)))
pid = os.fork()
if pid == 0:
    os._exit(0)
print("fork", os.waitpid(pid, 0)[1])
"""


def test_the_kernel_refuses_what_no_script_needs(tmp_path: Path) -> None:
    """By a child that has the filter and nothing else: bash could not make these calls."""
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("no filter for this processor")
    started = "import jail, json, sys\njail._LIBC.prctl(38, 1, 0, 0, 0)\njail._filter_calls(json.loads(sys.argv[1]))\n"
    done = subprocess.run(
        [sys.executable, "-c", started + CALLS, json.dumps(script_filter())], capture_output=True, text=True,
        cwd=Path(jail.__file__).parent, timeout=60, check=True,
    )  # fmt: skip
    said = [line.rpartition(" ")[::2] for line in done.stdout.splitlines()]
    assert said == [
        ("unshare", "EPERM"), ("ptrace", "EPERM"), ("keyctl", "EPERM"), ("io_uring", "EPERM"), ("clone3", "ENOSYS"),
        ("clone", "EPERM"), ("socket 16", "EAFNOSUPPORT"), ("socket 17", "EAFNOSUPPORT"),
        ("socket 38", "EAFNOSUPPORT"), ("socket 1", "allowed"), ("socket 2", "allowed"), ("fork", "0"),
    ]  # fmt: skip


def test_a_script_has_the_filter(run: Run) -> None:
    [line] = [line for line in run(play("cat /proc/self/status")).output.splitlines() if line.startswith("Seccomp:")]
    assert line.split()[1] == "2"


def test_records_that_a_script_forges_are_none(run: Run) -> None:
    """It may write where the stand-ins do: what comes of it is a call more, or nothing, and no error."""
    text = """
        cd $CLOUDRL_RECORDS
        printf 'x' > 1.1; printf 'a\\0b\\0c\\0d\\0e\\0999999999999\\0' > 1.2; mkfifo 1.3; ln -s /dev/zero 1.4; mkdir 1.5
        head -c 5000000 /dev/zero > 1.6; printf '\\xff\\xfe' > 1.7; ln -s /proc/1/environ 1.8
        python3 -m verl.trainer.main_ppo a.b=1
    """
    calls = run(play(text)).calls
    assert [call.arguments for call in calls if call.program == "python3"] == [("-m", "verl.trainer.main_ppo", "a.b=1")]


def test_what_a_call_was(run: Run) -> None:
    text = (
        "export A='two words'\ncd /tmp\nfoo() {\n  B=2 python3 -c 'x' \\\n    more\n}\n"
        "foo\nsrun -N1 bash -c 'ray stop'\npython3 - <<< 'code'\nunknown-program x | tee log\n"
    )
    recorded = run(play(text)).calls
    calls = {call.program: call for call in recorded}
    assert set(calls) == {"srun", "ray", "python3", "tee", "unknown-program"}
    assert calls["ray"] == Call(
        calls["ray"].name, ("stop",), "/tmp", 8, "/project/run.sh", ("srun",), calls["ray"].env, {}
    )
    first = next(call for call in recorded if call.program == "python3")
    assert (first.line, first.env["A"], first.env["B"], first.cwd) == (4, "two words", "2", "/tmp")
    assert calls["python3"].attached == {"stdin": "code"}
    assert calls["unknown-program"].arguments == ("x",)


def test_a_script_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Recording((), None, "time")
    with pytest.raises(InputError, match="did not end"):
        observe(play("while :; do :; done"), shown="run.sh", play_once=lambda _play, **_: endless)


def test_without_isolation_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_ways", lambda: ())
    with pytest.raises(NotIsolated, match="was not run") as refused:
        sandbox.run(play("true"))
    assert "--no-sandbox" in str(refused.value)


def test_without_isolation_stand_ins_are_all_there_is(tmp_path: Path) -> None:
    """What is asked for explicitly: no program of a script changes anything, but bash itself could."""
    (tmp_path / "kept").write_text("x")
    script = tmp_path / "run.sh"
    script.write_text(
        f"rm -rf {tmp_path}/kept; mkdir {tmp_path}/new\nexport A=1\npython3 -m verl.trainer.main_ppo a.b=1\n"
    )
    recording = sandbox.run(Play(str(script), script.read_bytes(), cwd=str(tmp_path)), isolated=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "run.sh"]
    trained = [call for call in recording.calls if call.program == "python3"]
    assert [(call.line, call.env["A"]) for call in trained] == [(3, "1")]
