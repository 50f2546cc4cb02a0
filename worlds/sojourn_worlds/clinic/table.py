"""Diseases, what patients tell of them and what tests show: invented for play, NOT MEDICAL ADVICE.

It is common knowledge of textbooks in coarse strokes, made so that a set of diseases can be told apart. No source was
copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

NORMAL = {
    "blood count": "normal",
    "chest x-ray": "clear",
    "urine test": "normal",
    "blood sugar": "normal",
    "thyroid test": "normal",
    "throat swab": "negative",
    "ultrasound": "normal",
    "heart trace": "regular",
    "liver test": "normal",
    "stool test": "normal",
    "uric acid": "normal",
    "breathing test": "normal",
}

# disease | symptoms it always has | symptoms it has in some | what tests show, where not normal
TABLE = """
cold | runny nose | cough, sore throat, headache |
flu | fever, muscle ache, tiredness | cough, headache, runny nose | throat swab: flu virus
strep throat | sore throat, fever | headache, swollen glands | throat swab: strep, blood count: many white cells
glandular fever | sore throat, tiredness, swollen glands | fever, headache | blood count: odd white cells
pneumonia | cough, fever | breathlessness, chest pain | chest x-ray: patch, blood count: many white cells
tuberculosis | cough, night sweats, weight loss | fever, tiredness | chest x-ray: cavity
asthma | breathlessness, wheezing | cough | breathing test: blocked
heart failure | breathlessness, swollen legs | tiredness, cough | chest x-ray: large heart
heart attack | chest pain, sweating | breathlessness, nausea | heart trace: raised
atrial fibrillation | palpitations | tiredness, breathlessness | heart trace: irregular
anaemia | tiredness, pale skin | breathlessness, palpitations | blood count: few red cells
diabetes | thirst, frequent urination | tiredness, weight loss | blood sugar: high, urine test: sugar
overactive thyroid | weight loss, sweating | palpitations, diarrhoea | thyroid test: high
underactive thyroid | tiredness, weight gain | dry skin, swollen legs | thyroid test: low
appendicitis | belly pain, nausea | fever | ultrasound: swollen appendix, blood count: many white cells
gallstones | belly pain | nausea, yellow skin | ultrasound: gallstones
kidney stone | back pain | nausea, red urine | ultrasound: kidney stone, urine test: blood
bladder infection | burning urination, frequent urination | red urine, belly pain | urine test: white cells
hepatitis | tiredness, yellow skin | nausea, belly pain | liver test: raised
stomach flu | diarrhoea, nausea | belly pain, fever |
stomach ulcer | belly pain | nausea, dark stool | stool test: blood
giardiasis | diarrhoea, bloating | belly pain, weight loss | stool test: parasites
gout | joint pain, swollen joint | fever | uric acid: high
migraine | headache, light hurts | nausea |
"""


@dataclass(frozen=True)
class Disease:
    name: str
    always: frozenset[str]
    some: frozenset[str]
    results: Mapping[str, str]  # of all tests

    def has(self, symptom: str) -> float:
        """Returns the probability of a symptom."""
        return 1.0 if symptom in self.always else 0.5 if symptom in self.some else 0.0

    def page(self) -> str:
        """Returns what a book says of the disease."""
        abnormal = [f"{test} {result}" for test, result in self.results.items() if NORMAL[test] != result]
        some = f"; some have {', '.join(sorted(self.some))}" if self.some else ""
        return f"{self.name}: {', '.join(sorted(self.always))}{some}; {', '.join(abnormal) or 'all tests normal'}"


@cache
def diseases() -> dict[str, Disease]:
    return {disease.name: disease for disease in map(_read, TABLE.strip().splitlines())}


def _read(line: str) -> Disease:
    name, always, some, findings = (part.strip() for part in line.split("|"))
    results = dict(entry.split(": ") for entry in findings.split(", ")) if findings else {}
    return Disease(name, _names(always), _names(some), {**NORMAL, **results})


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split(", ")) if text else frozenset()
