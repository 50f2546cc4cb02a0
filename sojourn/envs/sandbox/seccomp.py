"""System calls that are refused in a sandbox: those that hold memory that no limit counts, and doors into the kernel.

Numbers are of Linux on x86-64 and arm64 (man 2 syscalls); elsewhere there is no filter, and the other walls remain.
"""

from __future__ import annotations

import errno
import platform
import struct

LOAD, JUMP_EQUAL, JUMP_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # classic BPF
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
X32 = 0x40000000  # calls of a second table of x86-64

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
REFUSED = {
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
    "unshare": (272, 97),
    "mount": (165, 40),
    "open_by_handle_at": (304, 265),
}


def program() -> bytes:
    """The filter as the kernel reads it; empty where the architecture is not known."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        return b""
    column = list(ARCHITECTURES).index(machine)
    numbers = sorted(pair[column] for pair in REFUSED.values())
    lines = [
        (LOAD, 0, 0, 4),  # the architecture of the call
        (JUMP_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, 0),  # its number
        (JUMP_AT_LEAST, len(numbers) + 1, 0, X32),
    ]
    lines += [(JUMP_EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    lines += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
