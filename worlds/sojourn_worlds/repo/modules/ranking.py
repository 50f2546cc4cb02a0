"""Scores and ranks."""


def median(numbers):
    """The middle of the sorted numbers, or the mean of the two middle ones; None for no numbers."""
    if not numbers:
        return None
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def ranks(scores):
    """The rank of each score; the highest has rank 1, and equal scores share the better rank."""
    found = []
    for score in scores:
        better = [other for other in scores if other > score]
        found.append(len(better) + 1)
    return found


def top(scores, count):
    """Names with the highest scores, best first, those with equal scores by name."""
    ordered = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return [name for name, _ in ordered[:count]]


def mode(values):
    """The most frequent value, the smallest of several."""
    best, most = None, 0
    for value in sorted(set(values)):
        count = values.count(value)
        if count > most:
            best, most = value, count
    return best


def moving(numbers, width):
    """The sums of every `width` numbers in a row."""
    sums = []
    for start in range(len(numbers) - width + 1):
        sums.append(sum(numbers[start : start + width]))
    return sums


def passed(scores, least):
    """How many scores reach `least`, and the share of them in percent, rounded down."""
    count = 0
    for score in scores:
        if score >= least:
            count += 1
    return [count, 100 * count // len(scores) if scores else 0]


def streak(results):
    """The most true values in a row."""
    best = now = 0
    for result in results:
        now = now + 1 if result else 0
        best = max(best, now)
    return best
