"""Roman numerals."""

SIGNS = [
    (1000, "M"),
    (900, "CM"),
    (500, "D"),
    (400, "CD"),
    (100, "C"),
    (90, "XC"),
    (50, "L"),
    (40, "XL"),
    (10, "X"),
    (9, "IX"),
    (5, "V"),
    (4, "IV"),
    (1, "I"),
]


def write(number):
    """The numeral of a number from 1 to 3999; ValueError for others."""
    if number < 1 or number > 3999:
        raise ValueError(f"{number} has no numeral")
    text = ""
    for value, sign in SIGNS:
        while number >= value:
            text += sign
            number -= value
    return text


def read(text):
    """The number of a numeral; a smaller sign before a larger one is subtracted."""
    values = [value for letter in text for value, sign in SIGNS if sign == letter]
    total = 0
    for place, value in enumerate(values):
        if place + 1 < len(values) and value < values[place + 1]:
            total -= value
        else:
            total += value
    return total


def valid(text):
    """Whether it is how the number is written."""
    number = read(text)
    return 0 < number < 4000 and write(number) == text


def order(texts):
    """Numerals from the smallest to the largest."""
    return sorted(texts, key=read)


def longest(low, high):
    """The first number from low to high, both included, whose numeral is longest."""
    best = low
    for number in range(low, high + 1):
        if len(write(number)) > len(write(best)):
            best = number
    return best
