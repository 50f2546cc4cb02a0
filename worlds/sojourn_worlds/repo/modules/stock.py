"""A shop's stock: items as lists of name, count and price."""


def find(stock, name):
    """The place of the item with this name, or -1."""
    for place, item in enumerate(stock):
        if item[0] == name:
            return place
    return -1


def add(stock, name, count, price):
    """The stock with more of an item; a new item comes last, a known one takes the new price."""
    place = find(stock, name)
    if place < 0:
        return [*stock, [name, count, price]]
    old = stock[place]
    return [*stock[:place], [name, old[1] + count, price], *stock[place + 1 :]]


def take(stock, name, count):
    """The stock with fewer of an item, which goes when none is left; ValueError where there are not enough."""
    place = find(stock, name)
    if place < 0 or stock[place][1] < count:
        raise ValueError(f"there are not {count} of {name}")
    left = stock[place][1] - count
    rest = [[name, left, stock[place][2]]] if left > 0 else []
    return stock[:place] + rest + stock[place + 1 :]


def value(stock):
    """What the whole stock is worth."""
    total = 0
    for _, count, price in stock:
        total += count * price
    return total


def scarce(stock, least):
    """Names of the items of which there are fewer than `least`, fewest first."""
    few = [(count, name) for name, count, _ in stock if count < least]
    return [name for _, name in sorted(few)]


def cheapest(stock):
    """The name of the item with the lowest price, the first of several; None where there is no item."""
    best = None
    for name, _, price in stock:
        if best is None or price < best[1]:
            best = (name, price)
    return best[0] if best else None
