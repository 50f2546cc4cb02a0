"""How the digits are said and found."""


def count_up(observation):
    return f"act(digit={10 - observation['left']})"


def words(observation):
    return f"The number is {observation['shown']}, {observation['left']} guesses are left."
