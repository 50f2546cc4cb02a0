"""Functions on text."""


def wrap(text, width):
    """Lines of at most `width` characters, broken between words; a longer word has a line of its own."""
    lines = []
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    if line:
        lines.append(line)
    return lines


def slug(title):
    """Lower-case words of letters and digits, joined by single dashes."""
    parts = []
    part = ""
    for letter in title.lower():
        if letter.isalnum():
            part += letter
        elif part:
            parts.append(part)
            part = ""
    if part:
        parts.append(part)
    return "-".join(parts)


def count_words(text):
    """How often each word occurs, in lower case."""
    counts = {}
    for word in text.lower().split():
        counts[word] = counts.get(word, 0) + 1
    return counts


def longest_run(text):
    """The length of the longest run of one character."""
    best = run = 0
    last = None
    for letter in text:
        run = run + 1 if letter == last else 1
        best = max(best, run)
        last = letter
    return best


def palindrome(text):
    """Whether the letters read the same backwards; other characters and capitals do not count."""
    letters = [letter for letter in text.lower() if letter.isalpha()]
    low, high = 0, len(letters) - 1
    while low < high:
        if letters[low] != letters[high]:
            return False
        low += 1
        high -= 1
    return True


def shorten(text, limit):
    """The text, or its beginning and three dots, in all at most `limit` characters."""
    if len(text) <= limit:
        return text
    return text[: max(limit - 3, 0)] + "..."
