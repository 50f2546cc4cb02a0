"""Searching and choosing in sorted lists."""


def find(numbers, wanted):
    """The place of a number in a sorted list, or -1, by halving."""
    low, high = 0, len(numbers) - 1
    while low <= high:
        middle = (low + high) // 2
        if numbers[middle] == wanted:
            return middle
        if numbers[middle] < wanted:
            low = middle + 1
        else:
            high = middle - 1
    return -1


def below(numbers, limit):
    """How many numbers of a sorted list are less than the limit."""
    count = 0
    while count < len(numbers) and numbers[count] < limit:
        count += 1
    return count


def merge(one, other):
    """Two sorted lists as one."""
    merged = []
    i = j = 0
    while i < len(one) and j < len(other):
        if one[i] <= other[j]:
            merged.append(one[i])
            i += 1
        else:
            merged.append(other[j])
            j += 1
    return merged + one[i:] + other[j:]


def pair(numbers, total):
    """The first two places i < j of numbers that add up to the total, or None."""
    for i in range(len(numbers)):
        for j in range(i + 1, len(numbers)):
            if numbers[i] + numbers[j] == total:
                return [i, j]
    return None


def best_sum(numbers):
    """The largest sum of numbers in a row, at least one; None for no numbers."""
    best = now = None
    for number in numbers:
        now = number if now is None or now < 0 else now + number
        best = now if best is None else max(best, now)
    return best


def climb(numbers):
    """The length of the longest stretch in a row that goes up at every step."""
    best = run = 0
    for place, number in enumerate(numbers):
        run = run + 1 if place > 0 and number > numbers[place - 1] else 1
        best = max(best, run)
    return best


def unique(numbers):
    """Without repetitions, in the order of first occurrence."""
    kept = []
    for number in numbers:
        if number not in kept:
            kept.append(number)
    return kept
