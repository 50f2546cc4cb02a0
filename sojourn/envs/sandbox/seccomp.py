"""The filter of system calls in a sandbox.

It refuses calls that hold memory which no limit counts, that would wake a stopped process, that use up resources which
the agent's user shares with ours (inotify, epoll, asynchronous I/O), or that give access to more of the kernel. A call
that programs can do without fails as if the kernel did not have it (ENOSYS), so that they fall back to an older one.

The numbers are those of Linux on x86-64 and arm64 (man 2 syscalls). On other processors there is no filter, and the
other protections remain. The filter is written as BPF here and not by libseccomp (pyseccomp), which cannot refuse a
range of numbers and so lets later calls through, nor say "none of these values" of an argument.
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import NamedTuple

LOAD, AND, JUMP_EQUAL, JUMP_AT_LEAST, RETURN = 0x20, 0x54, 0x15, 0x35, 0x06  # classic BPF
ALLOW, ERROR, KILL = 0x7FFF0000, 0x00050000, 0x80000000
NEWER = 453  # calls from here on came after Linux 6.6 and were not reviewed; the numbers of x32 are in this range too

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "io_uring_setup": (425, 425),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "fsopen": (430, 430),
    "open_tree": (428, 428),
    "open_by_handle_at": (304, 265),
    "modify_ldt": (154, None),
    "syslog": (103, 116),
    "vmsplice": (278, 75),  # a pipe would keep pages that no process has any more
}
ABSENT: dict[str, tuple[int | None, int | None]] = {
    "timer_create": (222, 107),  # its signal may be SIGCONT
    "clone3": (435, 435),  # its arguments lie in memory, where a filter cannot look
    "epoll_create": (213, None),
    "epoll_create1": (291, 20),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "io_setup": (206, 0),
    "landlock_create_ruleset": (444, 444),
}


class Check(NamedTuple):
    """A condition on an argument of a call: `argument & mask` is one of `values`, or none of them where not `among`."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    among: bool = True


class Rule(NamedTuple):
    """A call that fails with `error` where all of its checks hold; with error 0 it returns 0 and does nothing."""

    numbers: tuple[int, int]
    error: int
    checks: tuple[Check, ...]


SOCKET, SOCKETPAIR, SETSOCKOPT, CLONE, FCNTL = (41, 198), (53, 199), (54, 208), (56, 220), (72, 25)
PRCTL, SECCOMP, MMAP = (157, 167), (317, 277), (9, 222)
RULES = (
    Rule(SOCKET, errno.EAFNOSUPPORT, (Check(0, (1, 2, 10), among=False),)),  # AF_UNIX, AF_INET, AF_INET6
    Rule(SOCKET, errno.ESOCKTNOSUPPORT, (Check(1, (1, 2), 0xF, among=False),)),  # SOCK_STREAM, SOCK_DGRAM
    Rule(SOCKET, errno.EPROTONOSUPPORT, (Check(2, (0, 1, 6, 17, 58), among=False),)),  # any, ICMP, TCP, UDP, ICMPv6
    Rule(SOCKETPAIR, errno.EAFNOSUPPORT, (Check(0, (1,), among=False),)),
    Rule(SOCKETPAIR, errno.ESOCKTNOSUPPORT, (Check(1, (1, 2), 0xF, among=False),)),
    Rule(SETSOCKOPT, 0, (Check(1, (1,)), Check(2, (7, 8)))),  # SO_SNDBUF, SO_RCVBUF: buffers stay as they are
    Rule(CLONE, errno.EPERM, (Check(0, (0,), 0x7E020000, among=False),)),  # namespaces
    Rule(CLONE, errno.EPERM, (Check(0, (0, 17), 0xFF, among=False),)),  # a signal at its end other than SIGCHLD
    Rule(CLONE, errno.EPERM, (Check(0, (0x10000,), 0x10400),)),  # a thread with files of its own, not to be counted
    Rule(FCNTL, errno.EPERM, (Check(1, (10, 1024, 1026, 1031)),)),  # F_SETSIG, F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ
    Rule(PRCTL, errno.EPERM, (Check(0, (1,)),)),  # PR_SET_PDEATHSIG
    Rule(PRCTL, errno.EINVAL, (Check(0, (22,)),)),  # PR_SET_SECCOMP, whose descriptors hold whole filters
    Rule(PRCTL, errno.EPERM, (Check(0, (41,)), Check(1, (0,)))),  # PR_SET_THP_DISABLE, back to 0
    Rule(SECCOMP, errno.EINVAL, ()),
    Rule(MMAP, errno.EPERM, (Check(3, (0x21,), 0x21),)),  # MAP_SHARED | MAP_ANONYMOUS stays when most is unmapped
    Rule(MMAP, errno.ENOMEM, (Check(3, (0x40000,), 0x40000),)),  # MAP_HUGETLB: counted nowhere
)


def program() -> bytes:
    """Returns the filter as the kernel reads it; empty where the architecture is not known."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        return b""
    column = list(ARCHITECTURES).index(machine)
    lines = [
        (LOAD, 0, 0, 4),  # the architecture of the call
        (JUMP_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, 0),  # its number
        (JUMP_AT_LEAST, 0, 1, NEWER),
        (RETURN, 0, 0, ERROR | errno.ENOSYS),
    ]
    for calls, error in ((REFUSED, errno.EPERM), (ABSENT, errno.ENOSYS)):
        for numbers in calls.values():
            if (number := numbers[column]) is not None:
                lines += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, ERROR | error)]
    for rule in RULES:
        lines += _lines(rule, column)
    lines.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _lines(rule: Rule, column: int) -> list[tuple[int, int, int, int]]:
    """Returns the instructions of a rule. They expect the number of the call in the accumulator and leave it there,
    unless the rule refuses the call."""
    last = [(RETURN, 0, 0, ERROR | rule.error), (LOAD, 0, 0, 0)]
    lines: list[tuple[int, int, int, int]] = []
    for check in reversed(rule.checks):
        away = len(lines) + 1  # the jump from the end of this check to the last line
        values = [(JUMP_EQUAL, len(check.values) - place, 0, v) for place, v in enumerate(check.values, 1)]
        if check.among:  # where the last value is not equal either, the check does not hold
            values[-1] = (JUMP_EQUAL, 0, away, check.values[-1])
        else:
            values = [(JUMP_EQUAL, away + jump, 0, v) for _, jump, _, v in values]
        head = [(LOAD, 0, 0, 16 + 8 * check.argument), (AND, 0, 0, check.mask)]
        lines = [*head, *values, *lines]
    lines += last
    return [(JUMP_EQUAL, 0, len(lines), rule.numbers[column]), *lines]
