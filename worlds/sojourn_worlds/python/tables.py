"""Kinds of problems over text, tables, JSON, grids and graphs in files."""

from __future__ import annotations

import datetime
import json
import random
import string
from collections import defaultdict

from sojourn_worlds.python.problem import Kind, Problem

CITIES = ["berlin", "lima", "oslo", "paris", "quito", "rome", "tunis", "vienna"]
FRUITS = ["apple", "banana", "cherry", "fig", "grape", "kiwi", "lemon", "mango", "orange", "peach", "pear", "plum"]
WORDS = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbor", "inlet", "jasper", "kelp", "lagoon"]
READ = "import csv\nrows = list(csv.DictReader(open('sales.csv')))\n"


def _sales(rng: random.Random, level: int) -> tuple[list[tuple[str, str, int]], dict[str, str]]:
    rows = [(rng.choice(CITIES), rng.choice(FRUITS), rng.randint(1, 999)) for _ in range(60 * level)]
    return rows, {"sales.csv": "city,fruit,amount\n" + "".join(f"{c},{f},{a}\n" for c, f, a in rows)}


def mean(rng: random.Random, level: int) -> Problem:
    rows, files = _sales(rng, level)
    city = rng.choice(sorted({row[0] for row in rows}))
    fruits = sorted({row[1] for row in rows if row[0] == city})
    fruit = rng.choice(fruits) if level > 1 else ""
    amounts = [a for c, f, a in rows if c == city and fruit in ("", f)]
    of = f" of {fruit}" if fruit else ""
    more = f" and r['fruit'] == '{fruit}'" if fruit else ""
    return Problem(
        f"In sales.csv (city, fruit, amount), what is the mean amount{of} in {city}, rounded to two decimals?",
        sum(amounts) / len(amounts),
        f"{READ}found = [int(r['amount']) for r in rows if r['city'] == '{city}'{more}]\n"
        "print(f'{sum(found) / len(found):.2f}')",
        files,
    )


def best(rng: random.Random, level: int) -> Problem:
    rows, files = _sales(rng, level)
    totals: dict[tuple[str, str], int] = defaultdict(int)
    for city, fruit, amount in rows:
        totals[city, fruit] += amount
    (city, fruit), total = max(totals.items(), key=lambda item: (item[1], item[0]))
    return Problem(
        "In sales.csv (city, fruit, amount), add up the amounts for every pair of city and fruit. What is the largest "
        "of these totals?",
        total,
        f"{READ}from collections import Counter\ntotals = Counter()\nfor r in rows:\n"
        "    totals[r['city'], r['fruit']] += int(r['amount'])\nprint(max(totals.values()))",
        files,
    )


def spread(rng: random.Random, level: int) -> Problem:
    rows, files = _sales(rng, level)
    totals = {city: sum(a for c, _, a in rows if c == city) for city in {row[0] for row in rows}}
    return Problem(
        "In sales.csv (city, fruit, amount), add up the amounts of each city. What is the difference between the "
        "largest and the smallest of these totals?",
        max(totals.values()) - min(totals.values()),
        f"{READ}totals = {{}}\nfor r in rows:\n    totals[r['city']] = totals.get(r['city'], 0) + int(r['amount'])\n"
        "print(max(totals.values()) - min(totals.values()))",
        files,
    )


def weekdays(rng: random.Random, level: int) -> Problem:
    start = datetime.date(2023, 1, 1)
    events = [(start + datetime.timedelta(rng.randrange(700)), rng.randint(1, 99)) for _ in range(40 * level)]
    number = rng.randrange(7)
    name = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"][number]
    total = sum(value for day, value in events if (day - datetime.date(1970, 1, 5)).days % 7 == number)
    return Problem(
        f"events.csv has a date and a value in each row. What is the sum of the values of the events on a {name}?",
        total,
        "import csv, datetime\nrows = csv.DictReader(open('events.csv'))\n"
        "print(sum(int(r['value']) for r in rows\n"
        f"          if datetime.date.fromisoformat(r['date']).strftime('%A') == '{name}'))",
        {"events.csv": "date,value\n" + "".join(f"{day.isoformat()},{value}\n" for day, value in events)},
    )


def nested(rng: random.Random, level: int) -> Problem:
    numbers: list[int] = []

    def grow(depth: int) -> object:
        if depth == 0 or rng.random() < 0.2:
            if rng.random() < 0.25:
                return rng.choice(WORDS)
            numbers.append(rng.randint(1, 999))
            return numbers[-1]
        if rng.random() < 0.5:
            return [grow(depth - 1) for _ in range(rng.randint(2, 4))]
        return {name: grow(depth - 1) for name in rng.sample(FRUITS, rng.randint(2, 4))}

    tree = {name: grow(2 + level) for name in rng.sample(WORDS, 3)}
    return Problem(
        "tree.json has objects and lists within each other. What is the sum of all numbers in it?",
        sum(numbers),
        "import json\ndef total(x):\n    if isinstance(x, dict):\n        x = list(x.values())\n"
        "    if isinstance(x, list):\n        return sum(map(total, x))\n    return x if isinstance(x, int) else 0\n"
        "print(total(json.load(open('tree.json'))))",
        {"tree.json": json.dumps(tree)},
    )


def substrings(rng: random.Random, level: int) -> Problem:
    length = 1 + level
    text = "".join(rng.choice("abcde"[: 2 + level]) for _ in range(rng.randint(100, 300) * level))
    counts: dict[str, int] = defaultdict(int)
    for i in range(len(text) - length + 1):
        counts[text[i : i + length]] += 1
    return Problem(
        f"Of all strings of {length} letters that occur in text.txt, how often does the most frequent one occur? Count "
        f"overlapping places, too. Multiply the result by the number of different strings of {length} letters there.",
        max(counts.values()) * len(counts),
        f"from collections import Counter\ns = open('text.txt').read().strip()\n"
        f"c = Counter(s[i:i + {length}] for i in range(len(s) - {length - 1}))\nprint(max(c.values()) * len(c))",
        {"text.txt": text + "\n"},
    )


def cipher(rng: random.Random, level: int) -> Problem:
    letters = string.ascii_lowercase
    shift, secret = rng.randint(1, 25), "".join(rng.choice(letters) for _ in range(4 + 2 * level))
    words = [*rng.choices(WORDS, k=3 * level), "the", "secret", "is", secret]
    table = str.maketrans(letters, letters[shift:] + letters[:shift])
    return Problem(
        "Every letter of cipher.txt was moved forward in the alphabet by the same number of places (z is followed by "
        'a). The plain text ends in "the secret is", followed by one more word. What is that word?',
        secret,
        "s = open('cipher.txt').read().strip()\nfor k in range(26):\n"
        "    t = ''.join(c if c == ' ' else chr((ord(c) - 97 - k) % 26 + 97) for c in s)\n"
        "    if ' the secret is ' in t:\n        print(t.split()[-1])",
        {"cipher.txt": " ".join(words).translate(table) + "\n"},
    )


def grid_paths(rng: random.Random, level: int) -> Problem:
    size = 5 + 2 * level
    while True:
        grid = [["#" if rng.random() < 0.15 else "." for _ in range(size)] for _ in range(size)]
        grid[0][0] = grid[-1][-1] = "."
        ways = [[0] * (size + 1) for _ in range(size + 1)]
        for y in range(1, size + 1):
            for x in range(1, size + 1):
                if grid[y - 1][x - 1] == ".":
                    ways[y][x] = 1 if x == y == 1 else ways[y - 1][x] + ways[y][x - 1]
        if ways[size][size] > 20:
            break
    return Problem(
        "grid.txt is a map. How many ways lead from its top left to its bottom right, if one goes only right or down, "
        "and never onto a #?",
        ways[size][size],
        "from functools import lru_cache\ng = open('grid.txt').read().split()\n@lru_cache(None)\ndef ways(y, x):\n"
        "    if y < 0 or x < 0 or g[y][x] == '#':\n        return 0\n"
        "    return 1 if y == x == 0 else ways(y - 1, x) + ways(y, x - 1)\nprint(ways(len(g) - 1, len(g[0]) - 1))",
        {"grid.txt": "".join("".join(row) + "\n" for row in grid)},
    )


def shortest(rng: random.Random, level: int) -> Problem:
    count = 8 + 6 * level
    edges = [(rng.randrange(n), n, rng.randint(5, 99)) for n in range(1, count)]
    pairs = {(a, b) for a, b, _ in edges}
    while len(pairs) < 2 * count:
        a, b = sorted(rng.sample(range(count), 2))
        if (a, b) not in pairs:
            pairs.add((a, b))
            edges.append((a, b, rng.randint(20, 199)))
    far = [[0 if i == j else 10**9 for j in range(count)] for i in range(count)]
    for a, b, length in edges:
        far[a][b] = far[b][a] = length
    for k in range(count):
        for i in range(count):
            for j in range(count):
                far[i][j] = min(far[i][j], far[i][k] + far[k][j])
    ends = rng.sample(range(count), 2)
    return Problem(
        "roads.csv has two places and the length of the road between them in each row; roads can be taken both ways. "
        f"How long is the shortest way from {ends[0]} to {ends[1]}?",
        far[ends[0]][ends[1]],
        "import csv, heapq\nroads = {}\nfor r in csv.DictReader(open('roads.csv')):\n"
        "    a, b, n = r['a'], r['b'], int(r['length'])\n    roads.setdefault(a, []).append((b, n))\n"
        "    roads.setdefault(b, []).append((a, n))\n"
        f"queue, seen = [(0, '{ends[0]}')], set()\nwhile queue:\n    far, place = heapq.heappop(queue)\n"
        f"    if place == '{ends[1]}':\n        print(far)\n        break\n    if place not in seen:\n"
        "        seen.add(place)\n        for to, n in roads[place]:\n            heapq.heappush(queue, (far + n, to))",
        {"roads.csv": "a,b,length\n" + "".join(f"{a},{b},{n}\n" for a, b, n in rng.sample(edges, len(edges)))},
    )


KINDS: dict[str, Kind] = {
    "mean": mean,
    "best": best,
    "spread": spread,
    "weekdays": weekdays,
    "nested": nested,
    "substrings": substrings,
    "cipher": cipher,
    "grid_paths": grid_paths,
    "shortest": shortest,
}
