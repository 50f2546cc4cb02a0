"""Days of the calendar, as lists of year, month and day."""

LENGTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def leap(year):
    """Whether a year has 366 days."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def month_length(year, month):
    """How many days a month has; ValueError for no month."""
    if month < 1 or month > 12:
        raise ValueError(f"there is no month {month}")
    if month == 2 and leap(year):
        return 29
    return LENGTHS[month - 1]


def day_of_year(date):
    """The first of January is 1."""
    year, month, day = date
    for before in range(1, month):
        day += month_length(year, before)
    return day


def next_day(date):
    """The day after."""
    year, month, day = date
    if day < month_length(year, month):
        return [year, month, day + 1]
    if month < 12:
        return [year, month + 1, 1]
    return [year + 1, 1, 1]


def days_between(one, other):
    """How many days later the other date is; negative where it is earlier."""
    if other < one:
        return -days_between(other, one)
    days = day_of_year(other) - day_of_year(one)
    for year in range(one[0], other[0]):
        days += 366 if leap(year) else 365
    return days


def weekday(date):
    """0 for Monday to 6 for Sunday; 1 January 2024 was a Monday."""
    return days_between([2024, 1, 1], date) % 7


def age(born, today):
    """In whole years."""
    years = today[0] - born[0]
    if today[1:] < born[1:]:
        years -= 1
    return years
