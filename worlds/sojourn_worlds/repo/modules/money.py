"""Amounts of money in cents."""


def show(cents):
    """As in 12.05; a minus comes first."""
    sign = "-" if cents < 0 else ""
    whole, part = divmod(abs(cents), 100)
    return f"{sign}{whole}.{part:02d}"


def read(text):
    """The cents of a text such as 12.05 or 12; ValueError for more than two places."""
    whole, dot, part = text.partition(".")
    if dot and len(part) != 2:
        raise ValueError(f"{text} has not two places")
    cents = abs(int(whole)) * 100 + int(part or 0)
    return -cents if whole.startswith("-") else cents


def split(cents, people):
    """Fair shares that add up; the first people pay the cents that are left over. ValueError for nobody."""
    if people < 1:
        raise ValueError("nobody pays")
    share, left = divmod(cents, people)
    return [share + 1 if place < left else share for place in range(people)]


def change(cents, coins):
    """Coins that add up to the amount, largest first, always the largest that fits; None where that fails."""
    paid = []
    for coin in sorted(coins, reverse=True):
        while cents >= coin:
            paid.append(coin)
            cents -= coin
    return paid if cents == 0 else None


def grow(cents, percent, years):
    """With interest, added at the end of each year, cut to whole cents."""
    for _ in range(years):
        cents += cents * percent // 100
    return cents


def discount(prices):
    """The sum of the prices; of every three in a row, the cheapest is free."""
    total = 0
    for start in range(0, len(prices), 3):
        three = prices[start : start + 3]
        total += sum(three)
        if len(three) == 3:
            total -= min(three)
    return total
