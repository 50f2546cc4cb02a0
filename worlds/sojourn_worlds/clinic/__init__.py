"""A doctor asks a patient, orders tests and names the disease. A game on an invented table: NOT MEDICAL ADVICE.

A task is a patient with a disease. An action asks about a symptom, orders a test, or names a disease, which ends the
episode; an observation is the answer or the result. The reward is 1 for the right diagnosis, else 0, and 0 when the
turns run out.

After AgentClinic (Schmidgall et al. 2024, arXiv:2405.07960): doctor, patient and measurement, and patients with biases.
There all of them are language models and cases come from licensing exams; here patient and measurement are scripted,
cases are generated from our own small table (`clinic.table`), and each can be identified.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.tasks.splits import make_tasks_from_data
from sojourn.types import Task
from sojourn_worlds.clinic.case import BIASES, Case, Doctor, draw, trusts
from sojourn_worlds.clinic.table import NORMAL, diseases
from sojourn_worlds.tool_env_info import ToolsEnvWithInfo, cached_interface

MOST = 12  # diseases of a case
DIFFICULTY = ("diseases", "book", "bias", "noise", "test_turns", "turns", "choices")


@dataclass(frozen=True, kw_only=True)
class Clinic:
    """A doctor's interviews: ask the patient, order tests, name the disease; a game, not medical advice.

    The disease is one of `diseases`, first of those that may have the same complaint; with `book` the first message
    says how each shows. A question takes one of `turns`, a test `test_turns`; without turns left the episode ends with
    reward 0. The reward is 1 for the right diagnosis, 0 for a wrong one. Tests never err; patients do by chance
    (`noise`) and by `bias`: "withholding" (they will not speak of some symptoms), "self_diagnosis" (they are sure of
    another disease, and say yes to what it always has), "recency" (a neighbour's disease colours some answers), or
    "mixed", any of these or none. The complaint that they open with is always true.

    `Task.data["answer"]` is the disease (`information_gain.before = 'diagnose("'`, `after = '")'`). In the info of a
    question or test `subgoal` is 1 where it ruled something out, and `tool_score` then 1, else -1; `verified` is 0 for
    a diagnosis that does not yet follow, right or wrong.
    """

    diseases: Annotated[int, Range(2, MOST)] = 6
    book: bool = True
    bias: Literal["none", "withholding", "self_diagnosis", "recency", "mixed"] = "none"
    noise: Annotated[float, Range(0, 0.5)] = 0.0
    test_turns: Annotated[int, Range(1)] = 2
    turns: Annotated[int, Range(4)] = 16
    choices: bool = False
    form: Literal["both", "text", "native"] = "both"
    train: Annotated[int, Range(1)] = 100_000
    test: Annotated[int, Range(1)] = 1_000

    about: ClassVar[About] = About(
        source="Ours, after AgentClinic (Schmidgall et al. 2024, arXiv:2405.07960); invented table, no medical advice",
        licence="Apache-2.0",
        smallest={"diseases": 3, "choices": True},
    )

    def __post_init__(self) -> None:
        least = 1 + self.diseases * self.test_turns  # enough for one test for each disease, and the diagnosis
        limits = {"diseases": (2, MOST), "noise": (0, 0.5), "test_turns": (1, 1_000), "turns": (least, 10**6)}
        require_within("clinic", self, {**limits, **SIZES})
        require_one_of("clinic", self, {"bias": (*BIASES, "mixed"), "form": ("both", "text", "native")})

    def tasks(self, split: str) -> Sequence[Task]:
        data = {name: getattr(self, name) for name in DIFFICULTY}
        return make_tasks_from_data(
            "clinic", self, split, lambda s: {**data, "answer": draw(s, tuple(data.items())).disease}
        )

    def make(self, task: Task) -> ToolsEnvWithInfo:
        fields = {name: task.data[name] for name in DIFFICULTY}
        case = draw(task.seed, tuple(fields.items()))
        return ToolsEnvWithInfo(cached_interface(Visit, "clinic", self.form), Visit(case, fields))


@dataclass
class Visit:
    """You are a doctor in a game. Find out which disease the patient has, then diagnose it.

    Patients may err or hold things back, tests do not. A wrong diagnosis is worth nothing, nor is a guess.
    """

    case: Case
    data: Mapping[str, Any]
    asked: tuple[str, ...] = ()
    tested: tuple[str, ...] = ()
    named: str = ""
    follows: bool = False  # whether the diagnosis did when it was named
    info: dict[str, float] = field(default_factory=dict)

    def goal(self) -> str:
        possible = [diseases()[name] for name in self.case.candidates]
        lines = ["It may be:", *(d.page() if self.data["book"] else d.name for d in possible)]
        lines.append(f"Symptoms to ask about: {', '.join(sorted(self.case.answers))}.")
        lines.append(f"Tests: {', '.join(NORMAL)}.")
        cost = f"A question takes 1 turn, a test {self.data['test_turns']}, you have {self.data['turns']}."
        by = "Complaint, answers and tests" if trusts(self.data) else "Complaint and tests, without the answers,"
        counts = f"{by} must rule out every other disease before a diagnosis counts."
        return "\n".join([*lines, cost, counts, self.case.opening])

    def ask(self, symptom: str) -> str:
        """Ask the patient whether they have a symptom."""
        name = symptom.strip().lower()
        if name not in self.case.answers:
            raise ValueError(f"the patient knows nothing of {symptom[:30]!r}, ask about a symptom of the list")
        before = len(self._left())
        self.asked += (name,)
        self._tell(before)
        answer = self.case.answers[name]
        return f"Patient: {'I would rather not say' if answer is None else 'Yes' if answer else 'No'}.{self._turns()}"

    def test(self, name: str) -> str:
        """Order a test."""
        wanted = name.strip().lower()
        if wanted not in NORMAL:
            raise ValueError(f"there is no test {name[:30]!r}, use one of {', '.join(NORMAL)}")
        if self.left < self.data["test_turns"]:
            raise ValueError(f"a test takes {self.data['test_turns']} turns, but only {self.left} are left")
        before = len(self._left())
        self.tested += (wanted,)
        self._tell(before)
        return f"{wanted.capitalize()}: {self.case.illness.results[wanted]}.{self._turns()}"

    def diagnose(self, disease: str) -> None:
        """Name the disease: this ends the visit."""
        name = disease.strip().lower()
        if name not in self.case.candidates:
            raise ValueError(f"{disease[:30]!r} is not possible here, use one of {', '.join(self.case.candidates)}")
        self.named, self.follows = name, len(self._left()) == 1
        self.info = {
            "verified": float(self.follows),
            "questions": float(len(self.asked)),
            "tests": float(len(self.tested)),
        }

    @property
    def left(self) -> int:
        """Returns how many turns are left."""
        return self.data["turns"] - len(self.asked) - self.data["test_turns"] * len(self.tested)

    def reward(self) -> float | None:
        if not self.named:
            return None if self.left > 0 else 0.0
        return float(self.success())

    def success(self) -> bool:
        return self.follows and self.named == self.case.disease

    def expert(self) -> str:
        return self._doctor().next(self.asked, self.tested, self.left)

    def choices(self) -> list[str]:
        if not self.data["choices"]:
            return []
        questions = [f'ask("{name}")' for name in sorted(self.case.answers) if name not in self.asked]
        affordable = self.left >= self.data["test_turns"]
        tests = [f'test("{name}")' for name in NORMAL if affordable and name not in self.tested]
        return [*questions, *tests, *(f'diagnose("{name}")' for name in self.case.candidates)]

    def state_key(self) -> str:
        answers = sorted(self.case.answers.items())
        return json.dumps([self.goal(), self.case.disease, answers, self.asked, self.tested, self.named])

    def _doctor(self) -> Doctor:
        return Doctor(self.case, trusts(self.data), self.data["test_turns"])

    def _left(self) -> list[str]:
        return [disease.name for disease in self._doctor().left(self.asked, self.tested)]

    def _tell(self, before: int) -> None:
        ruled_out = float(len(self._left()) < before)
        self.info = {
            "subgoal": ruled_out,
            "tool_score": 1.0 if ruled_out else -1.0,
            "possible": float(len(self._left())),
        }

    def _turns(self) -> str:
        return f" {self.left} turns left."
