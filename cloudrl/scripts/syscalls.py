"""The system calls that a script in the sandbox may not make, as a filter that the kernel runs (seccomp(2)).

What it refuses answers with "not permitted": making namespaces and mounts, tracing, keys, BPF, io_uring, loading of
kernel code, and sockets of other families than unix and internet. bash and the programs of the sandbox need none of
them. It stands behind the namespaces: a flaw of the kernel's in one of these calls cannot be reached.
"""

import platform
from typing import NamedTuple

# linux/filter.h, linux/bpf_common.h, linux/seccomp.h
_LOAD_WORD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NOT_PERMITTED, _NO_SUCH_CALL, _NO_FAMILY = 1, 38, 97
_NUMBER_AT, _MACHINE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # struct seccomp_data, little-endian
_X32 = 0x40000000
"""Numbers of x86-64's second interface begin here."""
_NEW_NAMESPACES = 0x7E020080
"""The flags CLONE_NEW* (linux/sched.h) but that of time, which only clone3 and unshare take."""
_UNIX, _INTERNET, _INTERNET_6 = 1, 2, 10

Instruction = tuple[int, int, int, int]
"""Code, steps if true, steps if false, value: a `struct sock_filter`."""


class _Machine(NamedTuple):
    """How a processor numbers its system calls.

    Attributes:
        audit: AUDIT_ARCH_* (linux/audit.h).
        clone: Number of clone.
        socket: Number of socket.
        refused: Numbers of those that are refused.
    """

    audit: int
    clone: int
    socket: int
    refused: tuple[int, ...]


_CLONE_3 = 435
_SAME_EVERYWHERE = (425, 426, 427, 428, 429, 430, 431, 432, 433, 434, 438, 440, 442, 443, 467)
"""io_uring_setup, _enter, _register; open_tree, move_mount, fsopen, fsconfig, fsmount, fspick; pidfd_open,
pidfd_getfd, process_madvise, mount_setattr, quotactl_fd, open_tree_attr.
"""
# unshare, setns, mount, umount2, pivot_root, chroot, ptrace, process_vm_readv, _writev, kcmp, add_key, request_key,
# keyctl, bpf, perf_event_open, userfaultfd, open_by_handle_at, name_to_handle_at, init_module, finit_module,
# delete_module, kexec_load, kexec_file_load, reboot, swapon, swapoff, acct, quotactl, personality, vhangup, syslog,
# move_pages, migrate_pages, mbind (arch/x86/entry/syscalls/syscall_64.tbl; include/uapi/asm-generic/unistd.h)
_MACHINES = {
    "x86_64": _Machine(
        0xC000003E, 56, 41,
        (272, 308, 165, 166, 155, 161, 101, 310, 311, 312, 248, 249, 250, 321, 298, 323, 304, 303, 175, 313, 176, 246,
         320, 169, 167, 168, 163, 179, 135, 153, 103, 279, 256, 237),
    ),
    "aarch64": _Machine(
        0xC00000B7, 220, 198,
        (97, 268, 40, 39, 41, 51, 117, 270, 271, 272, 217, 218, 219, 280, 241, 282, 265, 264, 105, 273, 106, 104, 294,
         142, 224, 225, 89, 60, 92, 58, 116, 239, 238, 235),
    ),
}  # fmt: skip


def script_filter(machine: str | None = None) -> list[Instruction]:
    """The filter for this machine's processor; empty for one whose numbers are not known here.

    Args:
        machine: As `uname -m` says it.
    """
    known = _MACHINES.get(machine or platform.machine())
    return [] if known is None else _filter(known)


def _filter(machine: _Machine) -> list[Instruction]:
    refuse = [(_RETURN, 0, 0, _ERROR | _NOT_PERMITTED)]
    program: list[Instruction] = [
        (_LOAD_WORD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, machine.audit), *refuse,  # 32-bit programs have other numbers
        (_LOAD_WORD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32), *refuse,
        (_EQUAL, 0, 1, _CLONE_3), (_RETURN, 0, 0, _ERROR | _NO_SUCH_CALL),  # the C library then calls clone
    ]  # fmt: skip
    for number in (*machine.refused, *_SAME_EVERYWHERE):
        program += [(_EQUAL, 0, 1, number), *refuse]
    program += [
        (_EQUAL, 0, 4, machine.clone), (_LOAD_WORD, 0, 0, _FIRST_ARGUMENT_AT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES), *refuse, (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 5, machine.socket), (_LOAD_WORD, 0, 0, _FIRST_ARGUMENT_AT),
        (_EQUAL, 3, 0, _UNIX), (_EQUAL, 2, 0, _INTERNET), (_EQUAL, 1, 0, _INTERNET_6),
        (_RETURN, 0, 0, _ERROR | _NO_FAMILY),
        (_RETURN, 0, 0, _ALLOW),
    ]  # fmt: skip
    return program
