"""Expressions: brackets, and sums in reverse notation."""

PAIRS = {")": "(", "]": "[", "}": "{"}


def balanced(text):
    """Whether every bracket is closed by one of its kind, in the right order."""
    stack = []
    for letter in text:
        if letter in PAIRS.values():
            stack.append(letter)
        elif letter in PAIRS:
            if not stack or stack[-1] != PAIRS[letter]:
                return False
            stack.pop()
    return not stack


def depth(text):
    """How many round brackets are open at most."""
    now = most = 0
    for letter in text:
        if letter == "(":
            now += 1
            most = max(most, now)
        elif letter == ")":
            now -= 1
    return most


def evaluate(text):
    """The value of numbers and + - * in reverse notation, as in 1 2 + 3 *; ValueError for what is none."""
    stack = []
    for word in text.split():
        if word in ("+", "-", "*"):
            if len(stack) < 2:
                raise ValueError("a number is missing")
            right = stack.pop()
            left = stack.pop()
            if word == "+":
                stack.append(left + right)
            elif word == "-":
                stack.append(left - right)
            else:
                stack.append(left * right)
        else:
            stack.append(int(word))
    if len(stack) != 1:
        raise ValueError("there is not one number left")
    return stack[0]


def matching(text, start):
    """The place of the round bracket that closes the one at `start`, or -1."""
    level = 0
    for place in range(start, len(text)):
        if text[place] == "(":
            level += 1
        elif text[place] == ")":
            level -= 1
            if level == 0:
                return place
    return -1
