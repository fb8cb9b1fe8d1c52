"""What a host and a container live in: a private, copy-on-write root file system over another one.

Everything happens in the mount namespace of the caller, which must be new, and ends with it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

_PRIVATE = ("/root", "/home", "/tmp", "/var/tmp")  # nothing of the machine's shows through
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
          ("stderr", "/proc/self/fd/2"), ("ptmx", "pts/ptmx"))  # fmt: skip


def enter_root(
    disk: Path,
    lower: Path,
    *,
    read_only: Iterable[tuple[str, str]] = (),
    binds: Iterable[tuple[str, str]] = (),
    shm_bytes: int | None = None,
) -> None:
    """Make `disk` over `lower` this process's root.

    Args:
        disk: holds what is written; on a file system that overlay accepts, so not on an overlay.
        lower: the root that shows through, without what is mounted in it.
        read_only: (source, target) pairs bound read-only; a target that does not exist is made.
        binds: the same, bound read-write.
        shm_bytes: size of /dev/shm, None for half of the memory.
    """
    run("mount", "--make-rprivate", "/")
    root = _overlay(disk, lower)
    _private_folders(disk, root)
    _kernel_file_systems(root, shm_bytes)
    for source, target in read_only:
        _bind(source, root + target)
        run("mount", "-o", "remount,bind,ro", root + target)
    for source, target in binds:
        _bind(source, root + target)
    _pivot(root)


def reap_until(main_pid: int) -> int:
    """Collect children until `main_pid` has ended; its exit status, 128 + N after signal N."""
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            return 0
        if pid == main_pid:
            return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def run(*words: str) -> None:
    """Run a command of the system. Raises CalledProcessError, or TimeoutExpired after half a minute."""
    subprocess.run(words, check=True, timeout=30)


def _overlay(disk: Path, lower: Path) -> str:
    upper, work, root = (str(disk / name) for name in ("upper", "work", "root"))
    for folder in (upper, work, root):
        os.makedirs(folder, exist_ok=True)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    run("mount", "-t", "overlay", "overlay", "-o", options, root)
    return root


def _private_folders(disk: Path, root: str) -> None:
    for folder in _PRIVATE:
        own = f"{disk}/private{folder}"
        if not os.path.isdir(own):
            os.makedirs(own)
            os.chmod(own, {"/root": 0o700, "/home": 0o755}.get(folder, 0o1777))
        _bind(own, root + folder)


def _kernel_file_systems(root: str, shm_bytes: int | None) -> None:
    run("mount", "-t", "proc", "proc", f"{root}/proc")
    run("mount", "-t", "sysfs", "sysfs", f"{root}/sys")  # new, so that it shows this network namespace
    if os.path.isdir("/sys/fs/cgroup"):
        run("mount", "--rbind", "/sys/fs/cgroup", f"{root}/sys/fs/cgroup")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", f"{root}/dev")
    for name in _DEVICES:
        Path(f"{root}/dev/{name}").touch()
        run("mount", "--bind", f"/dev/{name}", f"{root}/dev/{name}")
    for name, target in _LINKS:
        os.symlink(target, f"{root}/dev/{name}")
    os.mkdir(f"{root}/dev/pts")
    os.mkdir(f"{root}/dev/shm")
    options = "newinstance,ptmxmode=0666,mode=0620,gid=5"
    run("mount", "-t", "devpts", "-o", options, "devpts", f"{root}/dev/pts")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", f"{root}/run")
    size = "" if shm_bytes is None else f",size={shm_bytes}"
    run("mount", "-t", "tmpfs", "-o", f"mode=1777{size}", "tmpfs", f"{root}/dev/shm")


def _bind(source: str, target: str) -> None:
    if os.path.isfile(source):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    else:
        os.makedirs(target, exist_ok=True)
    run("mount", "--bind", source, target)


def _pivot(root: str) -> None:
    os.makedirs(f"{root}/.old", exist_ok=True)
    os.chdir(root)
    run("pivot_root", ".", ".old")
    os.chdir("/")
    run("umount", "--lazy", "/.old")
    os.rmdir("/.old")
