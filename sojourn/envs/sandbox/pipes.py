"""Reads and writes the pipes between process 1 of a sandbox and the programs that it runs, without ever blocking.

It runs inside, beside `inside.py`, under the system's own Python.
"""

import os


class PipeWriter:
    """Writes bytes to a pipe as fast as its reader takes them, without blocking."""

    def __init__(self, fd, data, last=False):
        os.set_blocking(fd, False)
        self.fd, self.data, self.last = fd, memoryview(data), last

    def write_some(self):
        """Writes what fits; returns whether nothing is left to write, or nobody is left to read it."""
        try:
            self.data = self.data[os.write(self.fd, self.data) :]
        except BlockingIOError:
            return False
        except OSError:
            return True
        return not self.data

    def close_last(self):
        """Closes the pipe where nothing follows (`last`), so that its reader sees the end."""
        if self.last and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def read_available(fd):
    """Returns the bytes in a pipe now: None where there are none, and no bytes at its end."""
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return None


def drain(fd):
    """Returns all bytes that are in a pipe now, about a million at most."""
    data = bytearray()
    while len(data) < 1 << 20 and (new := read_available(fd)):
        data += new
    return bytes(data)


class Output:
    """Keeps the first and the last bytes of an output, half each."""

    def __init__(self, kept):
        self.half = kept // 2
        self.head, self.tail, self.total = bytearray(), bytearray(), 0

    def __iadd__(self, data):
        self.total += len(data)
        room = self.half - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 2 * self.half:
            del self.tail[: -self.half]
        return self

    @property
    def cut(self):
        """Returns how many bytes were left out, and the position where."""
        return max(self.total - 2 * self.half, 0), len(self.head)

    def text(self):
        return bytes(self.head + self.tail[-self.half :])
