"""Files that are made to hurt whoever reads them, and checks that are hurt."""

import ctypes
import gzip
import io
import os
import resource
import sys
import tarfile
import tempfile
import time

from sojourn_worlds.terminal.job import LARGEST_ARCHIVE, pack_archive, parse_json, unpack_archive


def sparse(members: int, size: int) -> bytes:
    """A tar.gz of GNU-sparse members of `size` bytes each, all of them holes."""
    blocks = b""
    for number in range(members):
        member = tarfile.TarInfo(f"data/{number}.txt")
        member.type = tarfile.GNUTYPE_SPARSE
        head = bytearray(member.tobuf(tarfile.GNU_FORMAT))
        head[386:410] = b"%011o\0%011o\0" % (size, 0)  # one piece of no bytes, at the end
        head[483:495] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)
        head[148:156] = b" " * 8
        head[148:156] = b"%06o\0 " % sum(head)
        blocks += bytes(head)
    return gzip.compress(blocks + b"\0" * 1024)


def archive(sizes, headers=None, depth: int = 1) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as file:
        for number, size in enumerate(sizes):
            member = tarfile.TarInfo(f"data/{number}")
            member.size, member.pax_headers = size, headers or {}
            file.addfile(member, io.BytesIO(b"\0" * size))
    data = raw.getvalue()
    for _ in range(depth):
        data = gzip.compress(data)
    return data


ARCHIVES = {
    "sparse members": sparse(250, LARGEST_ARCHIVE),  # a gigabyte in all
    "one sparse member": sparse(1, 8 * 2**30 - 1),
    "many members": archive([0] * 1_001),
    "long members": archive([LARGEST_ARCHIVE // 2] * 3),
    "a member that is not there": gzip.compress(gzip.decompress(archive([600]))[:600]),
    "a sparse map without end": archive([512], {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}),
    "digits without end": archive([1], {"GNU.sparse.size": "9" * 5_000, "GNU.sparse.map": "0,1"}),
    "gzip in gzip": archive([1], depth=3),
}
TEXTS = {
    "lines": b"\n" * 2**24,
    "one line": b"x" * 2**24,
    "spaces": b" " * 2**24,
    "no text": b"\xff" * 2**24,
    "depth": b"[" * 2**20,
    "depth of objects": b'{"a":' * 90_000 + b"1" + b"}" * 90_000,
    "digits": b'{"port": ' + b"9" * 10**6 + b"}",
    "keys": b"{" + b",".join(b'"%d":0' % n for n in range(10**6)) + b"}",
    "numbers": b"[" + b"0," * 2**22 + b"0]",
    "an exponent": b'{"port": 1e999999999}',
}


# Checks, for the process that judges


def right(wanted: str):
    return lambda tree: tree.text("a.txt") == wanted


def reads(name: str):
    """What a reader makes of a file."""
    return lambda tree: {"archive": unpack_archive, "json": parse_json}[name](tree.data("a")) is None


def bounds():
    """What the kernel lets the judge of: processes, and bytes of its memory when it crashes."""
    return lambda tree: [resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_NPROC, resource.RLIMIT_CORE)]


def hurt(how: str):
    return {
        "raises": lambda tree: 1 / 0,
        "leaves": lambda tree: sys.exit(0),
        "leaves at once": lambda tree: os._exit(0),
        "memory": lambda tree: len(b"x" * 2**34),
        "memory that is not touched": lambda tree: len(bytes(2**30)),
        "memory bit by bit": lambda tree: [bytearray(2**20) for _ in range(2**14)],
        "crashes": lambda tree: ctypes.string_at(0),
        "recursion": lambda tree: _forever(),
        "computes": lambda tree: _computes(),
        "sleeps": lambda tree: time.sleep(10**6),
        "writes": lambda tree: _writes(),
        "no JSON": lambda tree: object(),
        "a long answer": lambda tree: "x" * 2**24,
        "opens": lambda tree: [open(os.devnull) for _ in range(100)] and True,
    }[how]


def _forever():
    return [_forever()]


def _computes():
    while True:
        pass


def _writes():
    with tempfile.TemporaryFile("w") as file:
        file.write("written")
    return True


HURTS = (
    *("raises", "leaves", "leaves at once", "memory", "memory that is not touched", "memory bit by bit", "crashes"),
    *("recursion", "computes", "sleeps", "writes", "no JSON", "a long answer", "opens"),
)
HONEST = pack_archive({"data/0.txt": "honest"})
