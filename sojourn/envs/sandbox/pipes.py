"""The pipes between process 1 of a sandbox and the programs that it runs: nothing here ever waits for one of them.

It runs inside, beside `inside.py`, under the system's own Python.
"""

import os


class Feed:
    """Bytes that are written to a pipe as fast as its reader takes it, and never waited for."""

    def __init__(self, fd, data, last=False):
        os.set_blocking(fd, False)
        self.fd, self.data, self.last = fd, memoryview(data), last

    def done(self):
        """Writes what fits; whether nothing is left, or nobody there to read it."""
        try:
            self.data = self.data[os.write(self.fd, self.data) :]
        except BlockingIOError:
            return False
        except OSError:
            return True
        return not self.data

    def end(self):
        """Lets the reader know that nothing comes after it."""
        if self.last and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def taken(fd):
    """Returns the bytes in a pipe now; None where somebody else has taken it, and no bytes at its end."""
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return None


def drained(fd):
    """Returns the bytes in a pipe."""
    data = bytearray()
    while len(data) < 1 << 20 and (new := taken(fd)):
        data += new
    return bytes(data)


class Output:
    """The first and the last bytes of what was said, half each."""

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
        """Returns how many bytes were left out, and after which."""
        return max(self.total - 2 * self.half, 0), len(self.head)

    def text(self):
        return bytes(self.head + self.tail[-self.half :])
