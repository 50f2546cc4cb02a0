"""Judges what agents prove: by the evidence alone that each chose for its judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.config.fields import Range
from sojourn.rewards.judgements import Bench, Judgement, questions, together
from sojourn.rewards.transcripts import chosen
from sojourn.rewards.verdicts import Rule

RELEVANT, IRRELEVANT = "relevant", "irrelevant"
YES, NO = "yes", "no"
RULES: Mapping[str, Rule] = {"evidence": (RELEVANT, IRRELEVANT), "success": (YES, NO)}
ASKS = (
    "{rubric}\nYou are shown the task, then of what the world showed only what the agent chose as evidence, and its "
    "last message. Say first whether the evidence is relevant: whether it bears on the task, so that it lets you "
    "decide, also if what it shows is a failure. Then say whether the agent succeeded: only if the evidence proves all "
    "that the task asks for. Assume nothing that is not shown; where it is not enough, or irrelevant, or the agent "
    "says that it failed or gave up, it did not succeed."
)


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Says what evidence is worth (SmartSnap: Cai et al. 2025, arXiv:2512.22322): a success that it proves is 1; what
    it does not prove is 0, or minus `irrelevant` where it has nothing to do with the task; each piece of evidence
    beyond those that are free takes `excess` away. An agent whose last message names no turn, or one that is not there,
    has minus `invalid`, and nobody is asked about it."""

    invalid: Annotated[float, Range(0)] = 1.0
    irrelevant: Annotated[float, Range(0)] = 1.0
    excess: Annotated[float, Range(0)] = 0.1


async def proven(bench: Bench, proof: Proof, free: int) -> dict[int, Judgement]:
    """Returns the judgement of each trajectory alone, by its number; `free` pieces of evidence cost nothing."""
    named = {number: chosen(bench.group.trajectories[number]) for number in bench.transcripts}
    valid = [number for number, one in named.items() if one.turns and not one.unknown]
    asked = dict(zip(bench.transcripts, questions(bench, ASKS.format(rubric=bench.config.rubric)), strict=True))
    found = await together([bench.verdicts(asked[number]) for number in valid])
    judged = dict(zip(valid, found, strict=True))
    return {
        number: _judgement(proof, len(one.turns) + one.unknown, free, judged.get(number, []))
        for number, one in named.items()
    }


def _judgement(proof: Proof, pieces: int, free: int, verdicts: Sequence[Mapping[str, str]]) -> Judgement:
    """Returns what so many pieces of evidence are worth by the verdicts on them; without any, they are not valid."""
    relevant = most(one["evidence"] == RELEVANT for one in verdicts)
    success = most(one["evidence"] == RELEVANT and one["success"] == YES for one in verdicts)
    parts = {
        "judge_evidence": float(pieces),
        "judge_valid": float(bool(verdicts)),
        "judge_relevant": float(relevant),
        "judge_success": float(success),
    }
    if not verdicts:
        return Judgement(-proof.invalid, parts)
    worth = 1.0 if success else 0.0 if relevant else -proof.irrelevant
    return Judgement(worth - proof.excess * max(0, pieces - free), parts)


def most(votes: Iterable[bool]) -> bool:
    """Returns whether more than half of the votes are for it."""
    counts = Counter(votes)
    return counts[True] > counts[False]
