"""Measures, from process 1 of a sandbox, what all other processes use, and whether they are stopped.

It runs inside, beside `inside.py`, under the system's own Python.
"""

import os

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SOCKET_BYTES = 2**19  # the most that a socket holds with buffers of their initial sizes; those of TCP grow, see below
AREA_BYTES = 256  # what the kernel needs to describe a mapped area of a process's memory
MAX_AREAS = 2**16  # of one process
MAX_DESCRIPTORS = 256  # of one process: its RLIMIT_NOFILE
MAX_LOCKS = 8_000  # locks on parts of files, each of which takes memory of the kernel
EXITING = 0x4  # PF_EXITING, a flag of a task


def other_processes():
    """Returns the ids of all processes but this one."""
    return [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def memory_bytes():
    """Returns the bytes of memory that the other processes use: their own, the kernel's for them, and in sockets."""
    return sum(map(process_bytes, other_processes())) + socket_bytes()


def process_bytes(name):
    """Returns the bytes of a process: its pages in memory and in swap, its page tables, and the descriptions of its
    areas, of which there are at most as many as pages."""
    total = 0
    for line in read_file(f"/proc/{name}/status").splitlines():
        if line.startswith((b"VmRSS:", b"VmSwap:", b"VmPTE:")):
            total += int(line.split()[1]) * 1024
        elif line.startswith(b"VmSize:"):
            areas = int(line.split()[1]) * 1024 // PAGE_BYTES
            total += min(areas, MAX_AREAS) * AREA_BYTES
    return total


def socket_bytes():
    """Returns the bytes that all sockets may hold, also those in flight from one process to another.

    TCP's buffers grow, and the kernel reports their use only for the whole machine, which is taken as an upper bound.
    """
    words = read_file("/proc/net/sockstat").split()
    if len(words) < 3:
        return 0
    count, machine = int(words[2]), 0
    for place, word in enumerate(words):
        if word == b"mem":
            machine += int(words[place + 1]) * PAGE_BYTES
    return count * SOCKET_BYTES + (min(machine, count * tcp_buffer_bytes()) if count else 0)


def tcp_buffer_bytes():
    """Returns the bytes to which the TCP buffers of one socket may grow."""
    sizes = [read_file(f"/proc/sys/net/ipv4/{name}").split()[-1:] for name in ("tcp_rmem", "tcp_wmem")]
    return sum(int(size[0]) if size else 2**24 for size in sizes)


def open_files():
    """Counts the open files of all processes; a process that hides them counts with as many as it may have."""
    count = 0
    for name in other_processes():
        try:
            count += len(os.listdir(f"/proc/{name}/fd"))
        except PermissionError:
            count += 0 if has_ended(name) else MAX_DESCRIPTORS
        except OSError:
            pass  # the process has ended meanwhile
    return count


def file_locks():
    """Counts the locks on parts of files; a process that hides its open files counts with a thousand."""
    count = 0
    for name in other_processes():
        try:
            files = os.listdir(f"/proc/{name}/fdinfo")
        except PermissionError:
            count += 0 if has_ended(name) else 1_000
            continue
        except OSError:
            continue
        count += sum(read_file(f"/proc/{name}/fdinfo/{fd}").count(b"lock:") for fd in files)
    return count


def used_inodes(path):
    status = os.statvfs(path)
    return status.f_files - status.f_ffree


def all_stopped():
    """Returns whether no task of another process can run before it gets a signal.

    A task that waits within the kernel (D), as a parent does for its vfork, stops before it leaves the kernel, unless
    it is exiting: then it never stops, and its end may wake others.
    """
    for name in other_processes():
        try:
            tasks = os.listdir(f"/proc/{name}/task")
        except OSError:
            continue  # the process has ended meanwhile
        for task in tasks:
            words = stat_fields(f"{name}/task/{task}")
            if words and words[0] not in b"TZX" and not (words[0] == b"D" and not int(words[6]) & EXITING):
                return False
    return True


def has_ended(name):
    """Returns whether a process has ended or is exiting, so that its files are, or will be, closed."""
    words = stat_fields(name)
    return not words or words[0] in b"ZX" or bool(int(words[6]) & EXITING)


def stat_fields(task):
    """Returns the fields of a task's `stat` file from its state on; empty where the task is gone."""
    return read_file(f"/proc/{task}/stat").rpartition(b")")[2].split()


def read_file(path):
    """Returns the content of a file in /proc; empty where its process has ended."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 16) or b""
    except OSError:
        return b""
