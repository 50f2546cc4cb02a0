"""Who presses the button that the goal names."""

import re


def press(goal, page):
    name = re.search(r'"(.*)" button', goal)[1]
    number = re.search(rf"\[(\w+)\] button '{re.escape(name)}'", page)[1]
    return f"click('{number}')"
