"""Versions such as 1.10.2."""


def parse(text):
    """Three numbers; those that are missing are 0. ValueError for more, or for other than digits."""
    parts = text.split(".")
    if len(parts) > 3:
        raise ValueError(f"{text} has more than three numbers")
    numbers = [int(part) for part in parts]
    while len(numbers) < 3:
        numbers.append(0)
    return numbers


def compare(one, other):
    """-1 where the first is older, 1 where it is newer, and else 0."""
    left, right = parse(one), parse(other)
    if left < right:
        return -1
    if left > right:
        return 1
    return 0


def newest(texts):
    """The newest of several, the first of equal ones; None for none."""
    best = None
    for text in texts:
        if best is None or compare(text, best) > 0:
            best = text
    return best


def bump(text, part):
    """The next version: "major", "minor" or "patch" goes up by one, and what follows it becomes 0."""
    major, minor, patch = parse(text)
    if part == "major":
        return f"{major + 1}.0.0"
    if part == "minor":
        return f"{major}.{minor + 1}.0"
    if part == "patch":
        return f"{major}.{minor}.{patch + 1}"
    raise ValueError(f"{part} is no part")


def fits(text, wanted):
    """Whether a version fits "1.2" (equal), ">=1.2" (at least) or "^1.2" (at least, with the same first number)."""
    if wanted.startswith(">="):
        return compare(text, wanted[2:]) >= 0
    if wanted.startswith("^"):
        least = wanted[1:]
        return compare(text, least) >= 0 and parse(text)[0] == parse(least)[0]
    return compare(text, wanted) == 0


def best_fit(texts, wanted):
    """The newest that fits, or None."""
    return newest([text for text in texts if fits(text, wanted)])
