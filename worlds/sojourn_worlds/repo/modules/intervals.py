"""Intervals of whole numbers as pairs [start, end], of which the end does not belong to them."""


def overlap(one, other):
    """How many numbers are in both."""
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))


def contains(interval, number):
    """Whether a number is in an interval."""
    return interval[0] <= number < interval[1]


def merge(intervals):
    """The same numbers in as few intervals as possible, sorted; those that touch become one."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def length(intervals):
    """How many numbers are in at least one of the intervals."""
    total = 0
    for start, end in merge(intervals):
        total += end - start
    return total


def gaps(intervals, start, end):
    """The parts from start to end that are in none of the intervals."""
    free = []
    here = start
    for low, high in merge(intervals):
        if low >= end:
            break
        if low > here:
            free.append([here, low])
        here = max(here, high)
    if here < end:
        free.append([here, end])
    return free


def busiest(intervals):
    """The most intervals that have a number in common."""
    events = []
    for start, end in intervals:
        events.append((start, 1))
        events.append((end, -1))
    now = most = 0
    for _, change in sorted(events):
        now += change
        most = max(most, now)
    return most
