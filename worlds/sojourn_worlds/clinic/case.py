"""A case: the patient, their answers, and the conclusions of a doctor who knows the table."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any

from sojourn.errors import InfrastructureError
from sojourn.tasks.splits import draw_for_seed
from sojourn_worlds.clinic.table import NORMAL, Disease, diseases

BIASES = ("none", "withholding", "self_diagnosis", "recency")
ATTEMPTS = 1_000


@dataclass(frozen=True)
class Case:
    candidates: tuple[str, ...]  # the diseases that it may be, sorted
    disease: str
    bias: str
    complaint: str  # a symptom that the disease always has; true whatever the bias
    belief: str  # the other disease that a patient with "self_diagnosis" or "recency" has in mind
    answers: Mapping[str, bool | None]  # of every symptom that could be asked; None where the patient will not say

    @property
    def illness(self) -> Disease:
        return diseases()[self.disease]

    @property
    def opening(self) -> str:
        opening_words = f"Patient: My complaint: {self.complaint}."
        if self.bias == "self_diagnosis":
            return f"{opening_words} I am sure that it is {self.belief}."
        return f"{opening_words} A neighbour had {self.belief} last week." if self.bias == "recency" else opening_words


@dataclass(frozen=True)
class Doctor:
    """Draws conclusions from answers and results. With `trusts` it uses the patient's answers, else the complaint and
    tests alone.
    """

    case: Case
    trusts: bool
    test_turns: int

    def left(self, asked: Iterable[str], tested: Iterable[str]) -> list[Disease]:
        """Returns the candidates that agree with what is known."""
        known = [(symptom, self.case.answers[symptom]) for symptom in asked] if self.trusts else []
        known.append((self.case.complaint, True))
        rest = [diseases()[name] for name in self.case.candidates]
        for symptom, answer in known:
            if answer is not None:
                rest = [d for d in rest if d.has(symptom) != float(not answer)]
        results = self.case.illness.results
        return [d for d in rest if all(d.results[test] == results[test] for test in tested)]

    def next(self, asked: Sequence[str], tested: Sequence[str], turns: int) -> str:
        """Returns the question or test that tells most for its turns, or the diagnosis."""
        left = self.left(asked, tested)
        worth: dict[str, float] = {}
        if self.trusts and turns > 1:
            for symptom in sorted(set(self.case.answers) - set(asked) - {self.case.complaint}):
                worth[f'ask("{symptom}")'] = _gain([d.has(symptom) for d in left])
        if turns > self.test_turns:
            for test in sorted(set(NORMAL) - set(tested)):
                worth[f'test("{test}")'] = _entropy([d.results[test] for d in left]) / self.test_turns
        best = max(worth, key=lambda action: worth[action], default="")
        if len(left) == 1 or not best or worth[best] <= 1e-9:
            return f'diagnose("{self._likeliest(left, asked)}")'
        return best

    def _likeliest(self, left: Sequence[Disease], asked: Sequence[str]) -> str:
        def agreement(disease: Disease) -> float:
            chances = [(disease.has(s), self.case.answers[s]) for s in asked if self.case.answers[s] is not None]
            return sum(chance if answer else 1 - chance for chance, answer in chances)

        return max(left, key=agreement).name


def _entropy(outcomes: Sequence[str]) -> float:
    """Returns the entropy, in bits, of the outcome of a test, where all diseases are equally likely."""
    shares = [outcomes.count(outcome) / len(outcomes) for outcome in set(outcomes)]
    return -sum(sorted(share * math.log2(share) for share in shares))


def _gain(chances: Sequence[float]) -> float:
    """Returns the mutual information, in bits, of a yes or no and the disease, where all diseases are equally
    likely."""
    mean = sum(chances) / len(chances)
    return _binary(mean) - sum(map(_binary, chances)) / len(chances)


def _binary(chance: float) -> float:
    return -sum(p * math.log2(p) for p in (chance, 1 - chance) if p > 0)


@lru_cache(512)
def draw(seed: int, size: tuple[tuple[str, Any], ...]) -> Case:
    """Returns the first of the seed's cases that a player who knows the table can identify within its turns. What is
    shown first and the disease are, together, in one split alone."""
    fields = dict(size)
    for attempt in count():
        case = draw_for_seed(seed, f"clinic {attempt}", lambda rng: _draw(rng, fields), _content)
        if _identifiable(case, fields):
            return case
        if attempt > ATTEMPTS:
            raise InfrastructureError(f"clinic: no case of seed {seed} can be told apart with {fields}: add turns")
    raise AssertionError("unreachable: count() does not end")


def _content(case: Case) -> str:
    return f"{case.candidates} {case.opening} {case.disease}"


def trusts(fields: Mapping[str, Any]) -> bool:
    return fields["noise"] == 0 and fields["bias"] in ("none", "withholding")


def _draw(rng: random.Random, fields: Mapping[str, Any]) -> Case:
    disease, *others = rng.sample(sorted(diseases()), len(diseases()))
    illness = diseases()[disease]
    complaint = rng.choice(sorted(illness.always))
    others.sort(key=lambda name: diseases()[name].has(complaint) == 0)  # what begins alike comes first
    candidates = [disease, *others[: fields["diseases"] - 1]]
    belief = rng.choice(candidates[1:])
    feared = diseases()[belief]
    bias = rng.choice(BIASES) if fields["bias"] == "mixed" else fields["bias"]
    answers: dict[str, bool | None] = {}
    for symptom in sorted({s for name in candidates for s in diseases()[name].always | diseases()[name].some}):
        truth = rng.random() < illness.has(symptom)
        noisy, shy, recent = (rng.random() for _ in range(3))
        answer = truth != (noisy < fields["noise"])
        if bias == "self_diagnosis":
            answer = answer or symptom in feared.always
        elif bias == "recency":
            answer = answer or (recent < 0.5 and feared.has(symptom) > 0)
        answers[symptom] = None if bias == "withholding" and shy < 0.4 else answer
    answers[complaint] = True
    return Case(tuple(sorted(candidates)), disease, bias, complaint, belief, answers)


def _identifiable(case: Case, fields: Mapping[str, Any]) -> bool:
    doctor = Doctor(case, trusts(fields), fields["test_turns"])
    asked: list[str] = []
    tested: list[str] = []
    turns = fields["turns"]
    while True:
        action, _, name = doctor.next(asked, tested, turns).partition("(")
        if action == "diagnose":
            return [d.name for d in doctor.left(asked, tested)] == [case.disease]
        (asked if action == "ask" else tested).append(name.strip('")'))
        turns -= 1 if action == "ask" else doctor.test_turns
