"""Who finds the number of the toy taskset by halving."""

from itertools import pairwise


def halve(messages):
    low, high = 1, 8
    for said, told in pairwise(messages):
        if told.text == "higher":
            low = int(said.text) + 1
        elif told.text == "lower":
            high = int(said.text) - 1
    return str((low + high) // 2)
