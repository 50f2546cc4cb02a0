"""Kinds of jobs over logs and text files."""

from __future__ import annotations

import random
from collections import Counter

from sojourn.envs.sandbox import Tree
from sojourn_worlds.terminal.job import CITIES, NAMES, SERVICES, WORDS, Job, Kind, lines_are, size, texts

LEVELS = ("DEBUG", "INFO", "WARN", "ERROR")
PATHS = ("/", "/about", "/cart", "/help", "/login", "/pay", "/search", "/shop")


def _log(rng: random.Random, count: int) -> list[tuple[str, str, str]]:
    """Draws the day, level and service of each line."""
    return [(f"2024-03-{rng.randint(1, 5):02}", rng.choice(LEVELS), rng.choice(SERVICES)) for _ in range(count)]


def _said(rng: random.Random, line: tuple[str, str, str]) -> str:
    day, level, service = line
    clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    return f"{day} {clock} {level} {service}: {rng.choice(WORDS)} {rng.randint(1, 99)}"


def count_lines(rng: random.Random, level: int) -> Job:
    wanted, service = rng.choice(LEVELS), rng.choice(SERVICES)
    names = ["server.log"] if level < 3 else [f"logs/{service}-{n}.log" for n in range(3)]
    logs = {name: [*_log(rng, size(level)), *[("2024-03-01", wanted, service)] * rng.randint(1, 5)] for name in names}
    matching = [
        line for log in logs.values() for line in log if line[1] == wanted and (level == 1 or line[2] == service)
    ]
    files = {name: [_said(rng, line) for line in rng.sample(log, len(log))] for name, log in logs.items()}
    where = "server.log" if level < 3 else "the files in logs, together,"
    what = f"of level {wanted}" + (f" and service {service}" if level > 1 else "")
    pattern = f" {wanted} " + (f"{service}:" if level > 1 else "")
    source = "server.log" if level < 3 else "logs/*.log"
    return Job(
        f"Count the lines of {where} that are {what}. Write the number to count.txt.",
        texts(files),
        (f"cat {source} | grep -c '{pattern}' > count.txt",),
        lines_are("count.txt", [len(matching)]),
    )


def distinct(rng: random.Random, level: int) -> Job:
    hosts = [f"10.0.{rng.randint(0, 3)}.{rng.randint(1, 99)}" for _ in range(size(level) // 3)]
    rows = [(rng.choice(hosts), rng.choice(PATHS), rng.choice((200, 200, 404, 500))) for _ in range(size(level))]
    rows.append((hosts[0], "/gone", 404))
    counts = Counter(host for host, _, code in rows if level == 1 or code == 404)
    least = 1 if level < 3 else 2
    if level == 3:
        rows.append((hosts[0], "/gone", 404))
        counts[hosts[0]] += 1
    which = "" if level == 1 else " that got a 404" if level == 2 else " that got at least two 404s"
    test = "" if level == 1 else "$3==404"
    return Job(
        f"access.log has lines of address, path and status. Write the distinct addresses{which} to addresses.txt, one "
        "a line, in the order of the command sort.",
        texts({"access.log": [f"{host} {path} {code}" for host, path, code in rows]}),
        (f"awk '{test}{{n[$1]++}} END{{for(a in n) if(n[a]>={least}) print a}}' access.log | sort > addresses.txt",),
        lines_are("addresses.txt", sorted(host for host, count in counts.items() if count >= least)),
    )


def most_frequent(rng: random.Random, level: int) -> Job:
    words, top = rng.sample(WORDS, 4 + 2 * level), (1, 2, 3)[level - 1]
    counts = dict(zip(words, rng.sample(range(2, 8 + 6 * level), len(words)), strict=True))
    text_words = [word for word, count in counts.items() for _ in range(count)]
    rng.shuffle(text_words)
    width = 1 if level == 1 else 6
    ordered = sorted(counts, key=lambda word: -counts[word])[:top]
    which = "the word that is most frequent in words.txt, with its count," if top == 1 else ""
    which = which or f"the {top} words that are most frequent in words.txt, most frequent first, each with its count,"
    return Job(
        f"Write {which} to top.txt, as in: amber 7",
        texts({"words.txt": [" ".join(text_words[i : i + width]) for i in range(0, len(text_words), width)]}),
        (
            "tr -s ' ' '\\n' < words.txt | sort | uniq -c | sort -rn | head -n "
            f"{top} | awk '{{print $2, $1}}' > top.txt",
        ),
        lines_are("top.txt", [f"{word} {counts[word]}" for word in ordered]),
    )


def split_by_day(rng: random.Random, level: int) -> Job:
    lines = [_said(rng, line) for line in _log(rng, size(level))]
    wanted = [line for line in lines if level < 3 or " DEBUG " not in line]
    days = {line[:10]: [other for other in wanted if other[:10] == line[:10]] for line in wanted}
    less = "" if level < 3 else " Leave the lines of level DEBUG out."
    filter_ = "" if level < 3 else "!/ DEBUG /"

    def check(tree: Tree) -> bool:
        return tree.files("days") == sorted(f"{day}.log" for day in days) and all(
            lines_are(f"days/{day}.log", log_lines)(tree) for day, log_lines in days.items()
        )

    return Job(
        f"Split server.log by day: days/2024-03-01.log and so on, each with the lines of its day in their order.{less}",
        texts({"server.log": lines}),
        ("rm -rf days", "mkdir days", f'awk \'{filter_}{{print > ("days/" $1 ".log")}}\' server.log'),
        check,
    )


def sort_lines(rng: random.Random, level: int) -> Job:
    names = [f"{rng.choice(NAMES)}{n}" for n in range(size(level))]
    rows = [(name, score) for name, score in zip(names, rng.sample(range(1, 900), len(names)), strict=True)]
    ordered = sorted(rows, key=lambda row: -row[1])
    few = {1: len(rows), 2: 5, 3: 7}[level]
    what = "all lines" if level == 1 else f"the {few} lines of the highest scores"
    return Job(
        f"scores.txt has lines of name and score. Write {what} to sorted.txt, highest score first.",
        texts({"scores.txt": [f"{name} {score}" for name, score in rows]}),
        (f"sort -k2,2nr scores.txt | head -n {few} > sorted.txt",),
        lines_are("sorted.txt", [f"{name} {score}" for name, score in ordered[:few]]),
    )


def users(rng: random.Random, level: int) -> Job:
    shells = ("/bin/bash", "/bin/sh", "/usr/sbin/nologin")
    names = rng.sample(NAMES, 6 + 4 * level)
    rows = [(name, rng.randint(100, 2000), rng.choice(shells)) for name in names]
    rows[0] = (names[0], 1500, "/bin/bash")
    wanted = [name for name, number, shell in rows if shell == "/bin/bash" and (level < 2 or number >= 1000)]
    more = "" if level < 2 else " and whose user id is at least 1000"
    test = '$7=="/bin/bash"' + ("" if level < 2 else " && $3>=1000")
    return Job(
        f"users.txt is written like /etc/passwd. Write the names of users whose shell is /bin/bash{more} to names.txt, "
        "one a line, sorted.",
        texts({"users.txt": [f"{n}:x:{i}:{i}:{n} of {rng.choice(CITIES)}:/home/{n}:{s}" for n, i, s in rows]}),
        (f"awk -F: '{test}{{print $1}}' users.txt | sort > names.txt",),
        lines_are("names.txt", sorted(wanted)),
    )


def config_difference(rng: random.Random, level: int) -> Job:
    keys = [f"{a}.{b}" for a in SERVICES for b in ("host", "port", "user", "size")][: 6 * level]
    old = {key: rng.randint(1, 99) for key in keys}
    new = dict(old)
    for key in rng.sample(keys, 2 * level):
        new[key] += rng.randint(1, 9)
    changed = sorted(key for key in keys if old[key] != new[key])
    mixed = rng.sample(keys, len(keys)) if level > 1 else keys
    return Job(
        "Write the keys whose values differ between old.conf and new.conf to changed.txt, one a line, sorted.",
        texts({"old.conf": [f"{k}={old[k]}" for k in keys], "new.conf": [f"{k}={new[k]}" for k in mixed]}),
        ("awk -F= 'NR==FNR{v[$1]=$2;next} v[$1]!=$2{print $1}' old.conf new.conf | sort > changed.txt",),
        lines_are("changed.txt", changed),
    )


KINDS: dict[str, Kind] = {
    "count_lines": count_lines,
    "distinct": distinct,
    "most_frequent": most_frequent,
    "split_by_day": split_by_day,
    "sort_lines": sort_lines,
    "users": users,
    "config_difference": config_difference,
}
