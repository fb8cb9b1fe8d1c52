"""The child that runs a script where it can harm nothing: a program of its own, started by `cloudrl.scripts.sandbox`.

It reads what to run as JSON from standard input, and writes what came of it as JSON to standard output. Exit status 77
means that this kernel gives no isolation here; the reason stands on standard error.

The script sees a file system in memory with copies of a project's files, the system's libraries (read-only), and the
few programs that it is given. It has no network, no process but its own, no capability and no way to get one
(namespaces(7), pivot_root(2), capabilities(7), prctl(2): PR_SET_NO_NEW_PRIVS), and the kernel refuses it the system
calls that `cloudrl.scripts.syscalls` lists. Started by root it runs as another user,
because root without capabilities may still write files of the kernel's that root owns, such as
/proc/sys/kernel/core_pattern.

Standard library only, and no import from cloudrl: `python -I -S jail.py` starts in some 15 ms.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import stat
import struct
import sys
import time
from typing import Any, NoReturn

NOT_ISOLATED = 77
NOBODY = 65534
"""The user that a script runs as where root starts it."""
OWN = "/.cloudrl"
"""In the script's file system: what is ours."""
RECORDS, OUTPUT = f"{OWN}/records", f"{OWN}/output"

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_DETACH = 2
_PDEATHSIG, _CAPBSET_DROP, _CHILD_SUBREAPER, _NO_NEW_PRIVS, _CAP_AMBIENT, _CLEAR_ALL = 1, 24, 36, 38, 47, 4
_SET_SECCOMP, _SECCOMP_FILTER = 22, 2
_CAPABILITIES = 64
_V3 = 0x20080522
"""_LINUX_CAPABILITY_VERSION_3 (linux/capability.h)."""
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
_POLL_S = 0.05
_LINGER_S = 2.0
"""How long what a script left in the background may go on."""
_RECORDS_AT_MOST, _RECORD_BYTES, _RECORDS_BYTES, _OUTPUT_BYTES = 4000, 2 << 20, 24 << 20, 256 << 10


class _NotIsolated(Exception):
    pass


def main() -> int:
    """Run what standard input says; 0, or `NOT_ISOLATED`."""
    request = json.load(sys.stdin)
    _die_with_parent()
    try:
        if not request["isolated"]:
            _LIBC.prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)  # what the script leaves behind comes to this process
            return _supervise(request, None)
        if request["as_nobody"]:
            _become_nobody()
        _unshare(with_user=request["with_user"])
    except (OSError, _NotIsolated) as why:
        sys.stderr.write(f"{why}\n")
        return NOT_ISOLATED
    ready, failed = os.pipe()
    first = os.fork()  # process 1 of the new namespace: all others end with it
    if first == 0:
        os.close(ready)
        _first_process(request, failed)
    os.close(failed)
    reason = os.read(ready, 1000).decode()
    status = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    if reason:
        sys.stderr.write(f"{reason}\n")
        return NOT_ISOLATED
    return status


def _first_process(request: dict[str, Any], failed: int) -> NoReturn:
    try:
        _die_with_parent()
        _make_root(request)
        os.close(failed)
        status = _supervise(request, NOBODY if request["drop"] else None)
    except OSError as why:
        with contextlib.suppress(OSError):
            os.write(failed, f"{why}"[:1000].encode())
        status = 1
    os._exit(status)


def _die_with_parent() -> None:
    _LIBC.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    _die_with_parent()  # setuid forgets it


def _unshare(*, with_user: bool) -> None:
    uid, gid = os.geteuid(), os.getegid()
    flags = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET | (_NEWUSER if with_user else 0)
    _check(_LIBC.unshare(flags), "unshare")
    if with_user:
        for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)


def _check(status: int, what: str) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() if kind else None)
    _check(_LIBC.mount(*words, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


def _make_root(request: dict[str, Any]) -> None:
    """The script's whole file system, in memory. The mounts of the machine are private here and go away."""
    base = next(folder for folder in ("/tmp", "/mnt", "/var/tmp", "/run") if os.path.isdir(folder))  # noqa: S108
    _mount("none", "/", None, _REC | _PRIVATE)
    limits = f"size={request['files_bytes']},nr_inodes={request['files']},mode=755"
    sources = {name: os.open(path, os.O_PATH | os.O_CLOEXEC) for name, path in request["tools"].items()}
    folders = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in request["libraries"]]
    devices = [(name, os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC)) for name in _DEVICES]
    _mount("tmpfs", base, "tmpfs", _NOSUID | _NODEV, limits)
    _fill(base, request)
    for path, source in folders:
        os.makedirs(base + path, exist_ok=True)
        _bind(source, base + path, _NOSUID | _NODEV)
    for name, source in sources.items():
        _touch(base + name)
        _bind(source, base + name, _NOSUID | _NODEV)
    for name, source in devices:
        _touch(f"{base}/dev/{name}")
        _mount(f"/proc/self/fd/{source}", f"{base}/dev/{name}", None, _BIND)
    for name, place in _LINKS.items():
        os.symlink(place, f"{base}/dev/{name}")
    with contextlib.suppress(OSError):  # a container hides parts of it, and then gives no other
        _mount("proc", f"{base}/proc", "proc", _RDONLY | _NOSUID | _NODEV | _NOEXEC)
    os.mkdir(f"{base}/.old")
    os.chdir(base)
    _check(_LIBC.pivot_root(b".", b".old"), "pivot_root")
    os.chdir("/")
    _check(_LIBC.umount2(b"/.old", _DETACH), "umount")
    os.rmdir("/.old")
    name = request["hostname"].encode()
    _LIBC.sethostname(name, len(name))
    if request["drop"]:
        os.chown("/", NOBODY, NOBODY)
        _give_away("/", NOBODY)


def _bind(source: int, target: str, flags: int) -> None:
    _mount(f"/proc/self/fd/{source}", target, None, _BIND)
    kept = os.statvfs(target).f_flag & (os.ST_NOEXEC | os.ST_NOATIME | os.ST_RELATIME | os.ST_NODIRATIME)
    _mount("none", target, None, _BIND | _REMOUNT | _RDONLY | flags | kept)


def _touch(path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))


def _fill(base: str, request: dict[str, Any]) -> None:
    """Folders, files and links of the script's file system; contents are bytes in Latin-1."""
    for folder in ("/proc", "/dev/shm", "/tmp", RECORDS, *request["folders"]):  # noqa: S108
        os.makedirs(base + folder, exist_ok=True)
    for folder in ("/tmp", "/dev/shm"):  # noqa: S108
        os.chmod(base + folder, 0o1777)  # noqa: S103
    for path, place in request["links"].items():
        os.makedirs(os.path.dirname(base + path), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.symlink(place, base + path)
    for path, content, mode in request["contents"]:
        os.makedirs(os.path.dirname(base + path), exist_ok=True)
        descriptor = os.open(base + path, os.O_WRONLY | os.O_CREAT, mode)
        os.write(descriptor, content.encode("latin-1"))
        os.close(descriptor)


def _give_away(folder: str, uid: int) -> None:
    """What was copied belongs to the user that the script runs as; what is bound stays as it is."""
    device = os.stat(folder).st_dev
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.stat(follow_symlinks=False).st_dev == device:
                os.chown(entry.path, uid, uid, follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    _give_away(entry.path, uid)


def _drop_rights(uid: int | None) -> None:
    for capability in range(_CAPABILITIES):
        _LIBC.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    _LIBC.prctl(_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header, data = (ctypes.c_uint32 * 2)(_V3, 0), (ctypes.c_uint32 * 6)()
    _check(_LIBC.capset(header, data), "capset")
    _check(_LIBC.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def _filter_calls(instructions: list[list[int]]) -> None:
    """Let the kernel refuse system calls (seccomp(2)); a kernel without it leaves the other walls."""
    if not instructions:
        return
    code = b"".join(struct.pack("HBBI", *each) for each in instructions)
    kept = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HP", len(instructions), ctypes.addressof(kept))  # struct sock_fprog
    _LIBC.prctl(_SET_SECCOMP, _SECCOMP_FILTER, program, 0, 0)


def _limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        which = getattr(resource, f"RLIMIT_{name}", None)
        if which is not None:
            hard = resource.getrlimit(which)[1]
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (most, most))


def _start(request: dict[str, Any], uid: int | None, output: str) -> int:
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and that is inherited
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open("/dev/null", os.O_RDONLY)
        written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(nothing, 0)
        os.dup2(written, 1)
        os.dup2(written, 2)
        os.closerange(3, 1024)
        os.umask(0o022)
        os.chdir(request["cwd"])
        if request["isolated"]:
            _drop_rights(uid)
        _die_with_parent()
        _limit(request["limits"])
        _filter_calls(request.get("system_calls", []))
        os.execve(  # noqa: S606
            request["argv"][0], request["argv"], request["env"]
        )
    except BaseException as why:  # noqa: BLE001
        with contextlib.suppress(OSError):
            os.write(2, f"cannot start: {why}\n".encode())
    os._exit(126)


def _supervise(request: dict[str, Any], uid: int | None) -> int:
    """Start the script, end it and all it started at the limits of time and memory, and write what came of it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    output = request.get("output", OUTPUT)
    child, ended = _start(request, uid, output), None
    deadline, over = time.monotonic() + request["seconds"], ""
    while True:
        done = _reap()
        ended = ended if ended is not None else done.get(child)
        if done.get(0) is not None:  # no child is left
            break
        if ended is not None:
            deadline = min(deadline, time.monotonic() + _LINGER_S)
        if time.monotonic() > deadline:
            over = "" if ended is not None else "time"
            break
        most = request["memory_bytes"]
        if request["isolated"] and _used_bytes() > most and _used_bytes(without_shared=True) > most:
            over = "memory"
            break
        signal.sigtimedwait([signal.SIGCHLD], _POLL_S)
    _end_all(isolated=request["isolated"])
    records = _read_records(request.get("records", RECORDS))
    said = _read(output, _OUTPUT_BYTES, tail=True) or b""
    answer = {"status": ended, "over": over, "output": said.decode("latin-1"), "records": records}
    json.dump(answer, sys.stdout)
    sys.stdout.flush()
    return 0


def _reap() -> dict[int, int]:
    """Status by process id of those that ended; 0 stands for "none is left"."""
    done: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return {**done, 0: 0}
        if pid == 0:
            return done
        done[pid] = os.waitstatus_to_exitcode(status)


def _end_all(*, isolated: bool) -> None:
    """End all processes of the namespace; without one, those whose parent this process is, until none comes to it."""
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline and 0 not in _reap():
        for pid in [-1] if isolated else _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _children() -> list[int]:
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/1") else ():
        with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat") as file:
            if int(file.read().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(name))
    return found


def _used_bytes(*, without_shared: bool = False) -> int:
    """Memory of all processes in the namespace; 0 where it has no /proc.

    What forked processes share counts in each of them, or, which takes the kernel longer, once (proc(5), smaps_rollup).
    """
    used = 0
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit() and name != "1":
                with contextlib.suppress(OSError, IndexError, ValueError):
                    used += _share_of(name) if without_shared else _resident(name)
    return used


def _resident(pid: str) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _share_of(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration):  # closed to us, or a kernel before 4.14
        return _resident(pid)


def _read_records(folder: str) -> list[str]:
    """What the stand-ins have written, in the order of time; within bounds, for a script may write there as well."""
    records: list[str] = []
    total = 0
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder), key=_moment)[:_RECORDS_AT_MOST]:
            content = _read(f"{folder}/{name}", _RECORD_BYTES)
            if content is not None and total + len(content) <= _RECORDS_BYTES:
                total += len(content)
                records.append(content.decode("latin-1"))
    return records


def _moment(name: str) -> tuple[float, str]:
    try:
        return float(".".join(name.split(".")[:2])), name
    except ValueError:
        return 0.0, name


def _read(path: str, limit: int, *, tail: bool = False) -> bytes | None:
    """A plain file's content, or its end; None for anything else, and for one that is too large."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode) or (info.st_size > limit and not tail):
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, info.st_size - limit))
        return file.read(limit)


if __name__ == "__main__":
    sys.exit(main())
