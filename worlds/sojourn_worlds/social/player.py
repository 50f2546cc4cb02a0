"""Scripted negotiators: an expert, a random player, and the list of choices."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping

from sojourn_worlds.social.judge import reward
from sojourn_worlds.social.scene import written
from sojourn_worlds.social.talk import OTHER, Talk

ROUNDS = 3  # offers in which the expert comes from what is best for itself to what is fair


def expert(talk: Talk, weights: Mapping[str, float], rounds: int = ROUNDS) -> str:
    """Returns the expert's action.

    It answers truly, asks where knowing counts, moves from its own best deal to the fair one in so many `rounds`, and
    accepts what is as good as that, or, when time is short, what is better than nothing. It concedes to offers alone,
    not to one who waits.
    """
    me, left = talk.seats[talk.current_seat], talk.turns - talk.turns_taken
    if talk.asked and talk.asked not in talk.seats[OTHER[talk.current_seat]].learnt and left > 4:
        return f'tell("{talk.asked}", "{talk.scene.favourites(talk.current_seat, talk.asked)[0]}")'
    unknown = [issue for issue in talk.scene.issues if issue not in me.learnt]
    if weights["knowledge"] > 0 and unknown and left > 4:
        return f'ask("{unknown[0]}")'
    if talk.bid is not None and _good(talk, talk.bid, weights, hurry=left <= 2):
        return "accept()"
    theirs = talk.seats[OTHER[talk.current_seat]].offers
    answered = left <= 4 and theirs >= me.offers - 1  # all but one of its offers, by an offer
    steps = min(me.offers, theirs)
    share = steps / rounds if steps < rounds and not answered else 1.0
    return f'offer("{written(_next(talk, share))}")'


def chance(talk: Talk, rng: random.Random) -> str:
    """Returns a random action: it offers anything, and accepts every second offer, and the last."""
    if talk.bid is not None and (rng.random() < 0.5 or talk.turns - talk.turns_taken <= 2):
        return "accept()"
    return f'offer("{written(rng.choice(talk.scene.deals))}")'


def choices(talk: Talk) -> list[str]:
    """Returns all possible actions, except free words."""
    asks = [f'ask("{issue}")' for issue in talk.scene.issues]
    tells = [f'tell("{talk.asked}", "{option}")' for option in talk.scene.issues.get(talk.asked, ())]
    offers = [f'offer("{written(deal)}")' for deal in talk.scene.deals]
    return [*asks, *tells, *offers, *(["accept()"] if talk.bid else []), "leave()"]


def private_system_text(talk: Talk, seat: str) -> str:
    """Returns the private part of a seat's system prompt."""
    scene = talk.scene
    lines = [f"{scene.about} You are {seat.capitalize()}. Your points:"]
    for issue, points in scene.points[seat].items():
        lines.append(f"{issue}: {', '.join(f'{option} {value}' for option, value in points.items())}")
    lines.append(f"Without a deal you have {scene.fallback[seat]}.")
    return "\n".join([*lines, f"Your secret: {scene.secrets[seat]}."])


def _next(talk: Talk, share: float) -> dict[str, str]:
    """Returns the best deal for the current seat that leaves the other this fraction of its fair gain, or any of it."""
    if share == 1:
        return talk.scene.fair
    fitting = [deal for deal in talk.scene.deals if talk.scene.goal(OTHER[talk.current_seat], deal) >= max(share, 0.1)]
    return max(fitting, key=lambda deal: talk.scene.gain(talk.current_seat, deal))


def _good(talk: Talk, offered: dict[str, str], weights: Mapping[str, float], hurry: bool) -> bool:
    """Returns whether a deal is worth as much as the fair one, all parts considered; in a hurry, whether it is worth
    anything.
    """
    now, fair = copy.copy(talk), copy.copy(talk)
    now.deal, fair.deal = offered, talk.scene.fair
    as_good = reward(now, talk.current_seat, weights) >= reward(fair, talk.current_seat, weights) - 1e-9
    return as_good or (hurry and talk.scene.gain(talk.current_seat, offered) > 0)
