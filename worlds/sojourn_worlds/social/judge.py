"""Computes the judgement of a negotiation."""

from __future__ import annotations

from collections.abc import Mapping

from sojourn_worlds.social.talk import OTHER, Talk

GAINED = ("goal", "relationship", "knowledge", "material")  # above 0 where there is a deal
LOST = ("secret", "rules")


def parts(talk: Talk, seat: str) -> dict[str, float]:
    """Returns the judgement of a seat, by dimension."""
    done, other, deal, scene = talk.seats[seat], OTHER[seat], talk.deal, talk.scene
    return {
        "goal": scene.goal(seat, deal) if deal else 0.0,
        "relationship": scene.goal(other, deal) if deal else -0.5 * done.left,
        "knowledge": len(done.learnt) / len(scene.issues) if deal else 0.0,
        "material": scene.material(seat, deal) if deal else 0.0,
        "secret": -float(bool(done.told)),
        "rules": -min(1.0, 0.5 * done.wrongs),
    }


def reward(talk: Talk, seat: str, weights: Mapping[str, float]) -> float:
    """Returns the weighted sum of the parts: gains share 1, losses are subtracted."""
    judged = parts(talk, seat)
    whole = sum(weights[name] for name in GAINED)
    gained = sum(weights[name] * judged[name] for name in GAINED) / whole
    return max(-1.0, min(1.0, gained + sum(weights[name] * judged[name] for name in LOST)))
