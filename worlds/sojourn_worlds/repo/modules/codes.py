"""Codes and counts in sequences."""


def pack(text):
    """Runs as count and letter, as in 3a1b for aaab."""
    packed = ""
    start = 0
    for place in range(1, len(text) + 1):
        if place == len(text) or text[place] != text[start]:
            packed += f"{place - start}{text[start]}"
            start = place
    return packed


def unpack(packed):
    """The text of such runs."""
    text = ""
    count = 0
    for letter in packed:
        if letter.isdigit():
            count = count * 10 + int(letter)
        else:
            text += letter * count
            count = 0
    return text


def shift(text, places):
    """Small letters moved forward in the alphabet, round and round; all else stays."""
    moved = ""
    for letter in text:
        if "a" <= letter <= "z":
            letter = chr((ord(letter) - 97 + places) % 26 + 97)
        moved += letter
    return moved


def check_digit(digits):
    """The digit that makes the weighted sum a multiple of ten; weights are 1, 3, 1, 3 and so on."""
    total = 0
    for place, digit in enumerate(digits):
        total += int(digit) * (1 if place % 2 == 0 else 3)
    return (10 - total % 10) % 10


def distance(one, other):
    """In how many places two texts differ; each place that only one has counts, too."""
    different = abs(len(one) - len(other))
    for left, right in zip(one, other, strict=False):
        if left != right:
            different += 1
    return different


def bits(number, width):
    """Binary digits, filled with zeros; ValueError where the width is too small."""
    text = ""
    while number > 0:
        text = str(number % 2) + text
        number //= 2
    if len(text) > width:
        raise ValueError(f"{width} digits are too few")
    return "0" * (width - len(text)) + text
