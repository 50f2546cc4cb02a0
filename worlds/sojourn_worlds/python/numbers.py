"""Kinds of problems about counting, sequences and numbers."""

from __future__ import annotations

import math
import random

from sojourn_worlds.python.problem import Kind, Problem


def divisible(rng: random.Random, level: int) -> Problem:
    a, b, c = rng.sample([2, 3, 5, 7, 11, 13], 3)
    top = rng.randint(200, 900) * 10 ** (level - 1)

    def both(*of: int) -> int:
        return top // math.lcm(*of)

    total = both(a) + both(b) - both(a, b) - both(a, c) - both(b, c) + both(a, b, c)
    return Problem(
        f"How many whole numbers from 1 to {top} are divisible by {a} or {b} (or both), but not by {c}?",
        total,
        f"print(sum((n % {a} == 0 or n % {b} == 0) and n % {c} != 0 for n in range(1, {top} + 1)))",
    )


def digit_sum(rng: random.Random, level: int) -> Problem:
    top = rng.randint(300, 900) * 5 ** (level - 1)
    wanted = rng.randint(6, 12 + 3 * level)
    sums = list(range(10))
    for n in range(10, top + 1):
        sums.append(sums[n // 10] + n % 10)
    total = sum(n for n in range(top + 1) if sums[n] == wanted)
    return Problem(
        f"What is the sum of all whole numbers from 1 to {top} whose digits add up to {wanted}?",
        total,
        f"print(sum(n for n in range(1, {top} + 1) if sum(map(int, str(n))) == {wanted}))",
    )


def primes(rng: random.Random, level: int) -> Problem:
    low = rng.randint(10, 300) * level
    high = low + rng.randint(200, 600) * level
    modulus = rng.choice((3, 4, 5, 7))
    rest = rng.randint(1, modulus - 1)
    sieve = bytearray(b"\1") * (high + 1)
    for n in range(2, math.isqrt(high) + 1):
        sieve[n * n :: n] = bytes(len(sieve[n * n :: n]))
    total = sum(n for n in range(max(low, 2), high + 1) if sieve[n] and n % modulus == rest)
    return Problem(
        f"What is the sum of the prime numbers from {low} to {high} that leave the remainder {rest} when divided by "
        f"{modulus}?",
        total,
        "def prime(n):\n    return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))\n"
        f"print(sum(n for n in range({low}, {high} + 1) if prime(n) and n % {modulus} == {rest}))",
    )


def recurrence(rng: random.Random, level: int) -> Problem:
    a, b, first, second = (rng.randint(1, 9) for _ in range(4))
    modulus, count = rng.choice((997, 1009, 9973, 10007)), rng.randint(30, 99) * 10 ** (level - 1)
    x, y = first, second
    for _ in range(count - 1):
        x, y = y, (a * y + b * x) % modulus
    return Problem(
        f"x(1) = {first}, x(2) = {second}, and x(n) = {a} * x(n-1) + {b} * x(n-2), divided by {modulus}, of which the "
        f"remainder is taken. What is x({count})?",
        x,
        f"x = [0, {first}, {second}]\nwhile len(x) <= {count}:\n"
        f"    x.append(({a} * x[-1] + {b} * x[-2]) % {modulus})\nprint(x[{count}])",
    )


def collatz(rng: random.Random, level: int) -> Problem:
    low = rng.randint(1, 500) * level
    high = low + rng.randint(100, 400) * level
    lengths = {1: 0}

    def steps(n: int) -> int:
        path = []
        while n not in lengths:
            path.append(n)
            n = n // 2 if n % 2 == 0 else 3 * n + 1
        for count, number in enumerate(reversed(path), lengths[n] + 1):
            lengths[number] = count
        return lengths[path[0]] if path else lengths[n]

    total = sum(steps(n) for n in range(low, high + 1))
    return Problem(
        "An even n becomes n / 2 and an odd n becomes 3n + 1, until it is 1. How many steps do the numbers from "
        f"{low} to {high} take in all?",
        total,
        "def steps(n):\n    count = 0\n    while n != 1:\n        n = n // 2 if n % 2 == 0 else 3 * n + 1\n"
        f"        count += 1\n    return count\nprint(sum(steps(n) for n in range({low}, {high} + 1)))",
    )


def coins(rng: random.Random, level: int) -> Problem:
    kinds = sorted(rng.sample([2, 3, 5, 7, 10, 20, 25], 2 + level))
    amount = rng.randint(40, 90) * level
    ways = [1] + [0] * amount
    for coin in kinds:
        for total in range(coin, amount + 1):
            ways[total] += ways[total - coin]
    listed = ", ".join(map(str, kinds[:-1])) + f" and {kinds[-1]}"
    return Problem(
        f"With coins of {listed} cents, as many of each as one likes, in how many ways can {amount} cents be paid? "
        "(The order of coins does not count.)",
        ways[amount],
        "from functools import lru_cache\n@lru_cache(None)\ndef ways(amount, coins):\n    if not coins:\n"
        "        return amount == 0\n    coin = coins[0]\n"
        "    return sum(ways(amount - k * coin, coins[1:]) for k in range(amount // coin + 1))\n"
        f"print(int(ways({amount}, {tuple(kinds)})))",
    )


def ones(rng: random.Random, level: int) -> Problem:
    top, wanted = rng.randint(300, 900) * 4 ** (level - 1), rng.randint(3, 5)
    total = sum(n for n in range(top + 1) if n.bit_count() == wanted)
    return Problem(
        f"What is the sum of the whole numbers up to {top} that have exactly {wanted} ones in binary?",
        total,
        f"print(sum(n for n in range({top} + 1) if bin(n).count('1') == {wanted}))",
    )


def divisors(rng: random.Random, level: int) -> Problem:
    top, wanted = rng.randint(200, 600) * level, rng.choice((4, 6, 8))
    counts = [0] * (top + 1)
    for d in range(1, top + 1):
        for n in range(d, top + 1, d):
            counts[n] += 1
    return Problem(
        f"What is the sum of the whole numbers from 1 to {top} that have exactly {wanted} divisors?",
        sum(n for n, count in enumerate(counts) if count == wanted),
        f"print(sum(n for n in range(1, {top} + 1) if sum(n % d == 0 for d in range(1, n + 1)) == {wanted}))",
    )


def matrix_power(rng: random.Random, level: int) -> Problem:
    size, exponent, modulus = 1 + level, rng.randint(10, 60), rng.choice((997, 1009, 9973))
    matrix = [[rng.randint(0, 9) for _ in range(size)] for _ in range(size)]
    vector = [1] * size
    for _ in range(exponent):
        vector = [sum(a * b for a, b in zip(row, vector, strict=True)) % modulus for row in matrix]
    return Problem(
        f"The matrix A is {matrix}. What is the sum of the entries of A to the power {exponent}, divided by {modulus}: "
        "the remainder?",
        sum(vector) % modulus,
        f"A, P = {matrix}, {[[int(i == j) for j in range(size)] for i in range(size)]}\nfor _ in range({exponent}):\n"
        f"    P = [[sum(a * b for a, b in zip(r, c)) for c in zip(*A)] for r in P]\n"
        f"print(sum(map(sum, P)) % {modulus})",
    )


KINDS: dict[str, Kind] = {
    "divisible": divisible,
    "digit_sum": digit_sum,
    "primes": primes,
    "recurrence": recurrence,
    "collatz": collatz,
    "coins": coins,
    "ones": ones,
    "divisors": divisors,
    "matrix_power": matrix_power,
}
