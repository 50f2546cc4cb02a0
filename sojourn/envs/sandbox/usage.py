"""Looks, from process 1 of a sandbox, at all others: at what they hold, and at whether they stand still.

It runs inside, beside `inside.py`, under the system's own Python.
"""

import os

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SOCKET_BYTES = (
    2**19
)  # what one may hold at most, with buffers of the sizes that they begin with (TCP's grow: see below)
AREA_BYTES = 256  # of the kernel's, for each of the areas that a process may map
MOST_AREAS = 2**16
MOST_DESCRIPTORS = 256  # of one process: its RLIMIT_NOFILE
MOST_LOCKS = 8_000  # of parts of files, which the kernel keeps one by one
EXITING = 0x4  # PF_EXITING, a flag of a task


def others():
    """The numbers of all processes but this one."""
    return [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def held():
    """Bytes of memory that the others hold: their own, what the kernel keeps for them, and in sockets."""
    return sum(map(held_by, others())) + in_sockets()


def held_by(name):
    """Pages in memory and in swap, page tables, and what describes the areas, at most as many as there are pages."""
    total = 0
    for line in read(f"/proc/{name}/status").splitlines():
        if line.startswith((b"VmRSS:", b"VmSwap:", b"VmPTE:")):
            total += int(line.split()[1]) * 1024
        elif line.startswith(b"VmSize:"):
            areas = int(line.split()[1]) * 1024 // PAGE_BYTES
            total += min(areas, MOST_AREAS) * AREA_BYTES
    return total


def in_sockets():
    """Returns the bytes that all sockets may hold, also those that are on their way from one process to another.

    TCP's buffers grow, and the kernel says what they hold for the whole machine alone: so that is the most.
    """
    words = read("/proc/net/sockstat").split()
    if len(words) < 3:
        return 0
    count, machine = int(words[2]), 0
    for place, word in enumerate(words):
        if word == b"mem":
            machine += int(words[place + 1]) * PAGE_BYTES
    return count * SOCKET_BYTES + (min(machine, count * growing()) if count else 0)


def growing():
    """Returns to how many bytes TCP's buffers of one socket may grow."""
    sizes = [read(f"/proc/sys/net/ipv4/{name}").split()[-1:] for name in ("tcp_rmem", "tcp_wmem")]
    return sum(int(size[0]) if size else 2**24 for size in sizes)


def descriptors():
    """Returns how many files are open in all; of a process that hides them, as many as it may have."""
    count = 0
    for name in others():
        try:
            count += len(os.listdir(f"/proc/{name}/fd"))
        except PermissionError:
            count += 0 if ended(name) else MOST_DESCRIPTORS
        except OSError:
            pass  # it has ended meanwhile
    return count


def locks():
    """Counts the locks of parts of files: those of each open file, and for who hides them a thousand at most."""
    count = 0
    for name in others():
        try:
            files = os.listdir(f"/proc/{name}/fdinfo")
        except PermissionError:
            count += 0 if ended(name) else 1_000
            continue
        except OSError:
            continue
        count += sum(read(f"/proc/{name}/fdinfo/{fd}").count(b"lock:") for fd in files)
    return count


def inodes(path):
    found = os.statvfs(path)
    return found.f_files - found.f_ffree


def standing():
    """Returns whether no task of another process can run before it gets a signal.

    One that waits within the kernel (D), as a parent does for its vfork, is stopped before it is back from there,
    unless it is ending: then it never stops, and what its end does may wake others.
    """
    for name in others():
        try:
            tasks = os.listdir(f"/proc/{name}/task")
        except OSError:
            continue  # it has ended meanwhile
        for task in tasks:
            words = words_of(f"{name}/task/{task}")
            if words and words[0] not in b"TZX" and not (words[0] == b"D" and not int(words[6]) & EXITING):
                return False
    return True


def ended(name):
    """Returns whether a process is on its way out: its files are, or will be, nobody's."""
    words = words_of(name)
    return not words or words[0] in b"ZX" or bool(int(words[6]) & EXITING)


def words_of(task):
    """Returns what the kernel says of a task, from its state on; empty where it is gone."""
    return read(f"/proc/{task}/stat").rpartition(b")")[2].split()


def read(path):
    """A file of the kernel's; empty where what it is about has ended."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 16) or b""
    except OSError:
        return b""
