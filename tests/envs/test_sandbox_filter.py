"""The filter of system calls, interpreted as the kernel does it: it refuses what its tables say, and nothing else."""

import random
import struct

import pytest

from sojourn.envs.sandbox import seccomp
from sojourn.envs.sandbox.seccomp import ABSENT, ALLOW, ARCHITECTURES, ERROR, KILL, NEWER, REFUSED, RULES

WORDS = (0, 1, 2, 3, 5, 6, 7, 8, 10, 16, 17, 18, 22, 40, 41, 58, 0x21, 0x22, 0x31, 1024, 1026, 1031, 0x10000, 0x10400)
FLAGS = (0x40022, 0x3D0F00, 0x1200011, 0x10000011, 0x80001, 0x80002, 0xFFFFFFFF, 1 << 40)


def answer(program: bytes, architecture: int, number: int, arguments: list[int]) -> int:
    """What a program in classic BPF returns for a call."""
    data = struct.pack("=iIQ6Q", number, architecture, 0, *arguments)
    place, word = 0, 0
    while True:
        code, yes, no, value = struct.unpack_from("=HBBI", program, 8 * place)
        place += 1
        if code == seccomp.LOAD:
            (word,) = struct.unpack_from("=I", data, value)
        elif code == seccomp.AND:
            word &= value
        elif code == seccomp.JUMP_EQUAL:
            place += yes if word == value else no
        elif code == seccomp.JUMP_AT_LEAST:
            place += yes if word >= value else no
        else:
            assert code == seccomp.RETURN
            return value


def wanted(column: int, number: int, arguments: list[int]) -> int:
    if number >= NEWER:
        return ERROR | 38
    for calls, error in ((REFUSED, 1), (ABSENT, 38)):
        if any(numbers[column] == number for numbers in calls.values()):
            return ERROR | error
    for rule in RULES:
        holds = [((arguments[c.argument] & c.mask) in c.values) is c.among for c in rule.checks]
        if rule.numbers[column] == number and all(holds):
            return ERROR | rule.error
    return ALLOW


@pytest.mark.parametrize(("column", "processor"), enumerate(ARCHITECTURES))
def test_the_filter_does_what_its_tables_say(monkeypatch, column, processor):
    monkeypatch.setattr("platform.machine", lambda: processor)
    program, rng = seccomp.program(), random.Random(0)
    architecture = ARCHITECTURES[processor]
    with_rules = {rule.numbers[column] for rule in RULES}
    for number in range(NEWER + 20):
        for _ in range(300 if number in with_rules else 3):
            arguments = [rng.choice(WORDS + FLAGS) for _ in range(6)]
            assert answer(program, architecture, number, arguments) == wanted(column, number, arguments)
    assert answer(program, architecture, 0x40000000 + 41, [16] * 6) == ERROR | 38  # the second table of x86-64
    assert answer(program, architecture ^ 1, 1, [0] * 6) == KILL


def test_another_processor_has_no_filter(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert seccomp.program() == b""
