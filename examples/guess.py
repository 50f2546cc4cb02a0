import random


class Guess:
    """Find the hidden number, from 1 to 15, in four guesses."""

    def __init__(self, seed: int):
        self.secret = random.Random(seed).randint(1, 15)
        self.low, self.high, self.left, self.found = 1, 15, 4, False

    def guess(self, number: int) -> str:
        """Answers higher or lower."""
        self.left -= 1
        self.found = number == self.secret
        if number < self.secret:
            self.low = max(self.low, number + 1)
            return "higher"
        self.high = min(self.high, number - 1)
        return "lower"

    def reward(self) -> float | None:
        return 1.0 if self.found else 0.0 if self.left == 0 else None

    def expert(self) -> str:
        return f"guess({(self.low + self.high) // 2})"
