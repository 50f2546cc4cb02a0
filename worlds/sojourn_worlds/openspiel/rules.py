"""The rules of the games that were tried, in our words, and which of OpenSpiel's texts shows a player the game best."""

from __future__ import annotations

from typing import Literal, NamedTuple

Shows = Literal["state", "observation", "information"]


class Rules(NamedTuple):
    text: str
    shows: Shows = "state"


CARDS = "The cards are numbers, a higher one is better."
RULES = {
    "tic_tac_toe": Rules("Tic-tac-toe: three in a row, column or diagonal win. The first player is x."),
    "ultimate_tic_tac_toe": Rules("Ultimate tic-tac-toe: win three small boards in a row. The first player is x."),
    "connect_four": Rules(
        "Connect four: drop a piece into a column, 0 is the leftmost; four in a row, column or diagonal win. "
        "The first player is x."
    ),
    "nim": Rules("Nim: take any number from one pile; whoever takes the last one loses."),
    "hex": Rules(
        "Hex: join two opposite sides of the board with your stones. The first player is x and joins top and bottom, "
        "the second is o and joins left and right."
    ),
    "y": Rules("The game of Y: join all three sides of the triangle with your stones. The first player is O."),
    "breakthrough": Rules(
        "Breakthrough: move one step forward or diagonally forward, capture diagonally; the first to reach the far row "
        "wins. The first player is b and comes from the top."
    ),
    "clobber": Rules("Clobber: move onto a neighbouring piece of the other's; whoever cannot move loses."),
    "checkers": Rules("Checkers: jumps must be taken; whoever cannot move loses. The first player is o."),
    "chess": Rules("Chess, shown in Forsyth-Edwards notation; moves are said in algebraic notation."),
    "othello": Rules("Othello: enclose the other's discs to turn them; most discs win. The first player is x."),
    "go": Rules("Go: the larger area wins, white has a komi of 7.5. The first player is black, X."),
    "mancala": Rules(
        "Mancala: sow the seeds of one of your pits; a last seed in your store moves again; most seeds win. "
        "The first player has the lower row, and its pits are 1 to 6."
    ),
    "oware": Rules("Oware: sow the seeds of one of your houses, capture twos and threes; most seeds win."),
    "dots_and_boxes": Rules(
        "Dots and boxes: draw a line; whoever closes a box has it and draws again; most boxes win."
    ),
    "pentago": Rules("Pentago: place a stone, then turn a quarter of the board; five in a row win."),
    "backgammon": Rules("Backgammon: bring all of your checkers home and off. The first player is x."),
    "pig": Rules("Pig: roll as often as you dare; a 1 loses what this turn brought, stop keeps it; first to 100 wins."),
    "kuhn_poker": Rules(
        f"Kuhn poker: each of two has one of three cards. {CARDS} You see your card, then p for each pass, b for each "
        "bet so far. A bet that is answered with a pass wins the pot.",
        "information",
    ),
    "leduc_poker": Rules(
        "Leduc poker: one private card each, two rounds of betting, one public card in between. A pair with the public "
        f"card wins, else the higher rank: cards 0 and 1 are jacks, 2 and 3 queens, 4 and 5 kings. {CARDS}",
        "information",
    ),
    "liars_dice": Rules(
        "Liar's dice: one hidden die each. You see your die, then the bids. A bid such as 2-5 says that there are at "
        "least two dice of face 5; sixes count as any face. Bid higher, or say Liar to doubt the last bid.",
        "information",
    ),
    "phantom_ttt": Rules(
        "Tic-tac-toe where you do not see the other's marks until you try their fields. The first player is x.",
        "observation",
    ),
    "dark_hex": Rules(
        "Hex where you do not see the other's stones until you try their fields. The first player is x and joins top "
        "and bottom, the second is o and joins left and right.",
        "observation",
    ),
    "goofspiel": Rules("Goofspiel: bid a card for the point card, both unseen; most points win.", "observation"),
    "blackjack": Rules("Blackjack: come as close to 21 as you can, not above, and beat the dealer.", "observation"),
    "catch": Rules("Catch the falling ball o with the paddle x in the lowest row.", "observation"),
    "hanabi": Rules(
        "Hanabi: together, play the cards of each colour from 1 to 5 in order. You see the hands of all but yourself.",
        "observation",
    ),
}


def rules_of(short_name: str, long_name: str, perfect: bool, simultaneous: bool) -> Rules:
    """Returns the rules of a game; for one that was not tried, its name and the text of what a player may see."""
    if short_name in RULES:
        return RULES[short_name]
    return Rules(f"{long_name}.", "state" if perfect and not simultaneous else "observation")
