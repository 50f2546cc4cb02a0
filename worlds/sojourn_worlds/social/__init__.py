"""Negotiations: two seats with private aims talk until they agree or part.

A task is a scene with each seat's private values and secrets. An action says something, asks, tells, offers a deal,
accepts, or leaves; an observation is what the other seat did. The episode ends with a deal, when one leaves, or after
`turns` acts, and each seat is then rewarded by several dimensions.

After Sotopia (Zhou et al. 2023, arXiv:2310.11667): two characters, a scene, private goals, and judgements in several
dimensions. There all acts are words and a language model judges; here offers, answers and agreement are explicit acts
beside the words, every dimension is computed by rule, and scenes are negotiations drawn from a seed. Believability is
not judged.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.calls import parse_call, short
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.envs.tools import Interface
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.tasks.splits import make_tasks_from_data
from sojourn.types import Message, Observation, Role, Step, Task
from sojourn_worlds.social import judge, player
from sojourn_worlds.social.scene import KINDS, SEATS, draw, written
from sojourn_worlds.social.talk import OTHER, Talk
from sojourn_worlds.tool_env_info import cached_interface

WEIGHTS = ("goal", "relationship", "knowledge", "material", "secret", "rules")
DIFFICULTY = ("kind", "turns", "choices", "opponent", *WEIGHTS)
TOOLS = ("say", "ask", "tell", "offer", "accept", "leave")


@dataclass(frozen=True, kw_only=True)
class Social:
    """Two seats with private aims negotiate a price, a share, a date or a contract, and keep their secrets.

    `kind` of scene, or "mixed". Each seat is judged at the end: `goal`, its gain as a fraction of what the fair deal
    (that of the greatest product of gains) gives it; `relationship`, the same of the other seat; `knowledge`, what it
    was truly told of the other's preferences; `material`, its gain as a fraction of the greatest; `secret`, -1 where it
    said its own; `rules`, for lies and insults. The reward is their weighted sum: the first four share 1 (with
    `material` the best play earns less), the last two are subtracted. Without a deal there is no gain; after `turns`
    acts there is none.

    `opponent` "self": the policy sits in both seats, "ann" and "bob". "expert", which comes to the fair deal in a few
    offers, or "random": the world plays the other seat, and the policy, seat "agent", is Ann in every second task.

    Info names each part by seat, such as `goal/ann`; `subgoal` is 1 for a first offer that both would gain from.
    `Task.data["answer"]` is the fair deal.
    """

    kind: Literal["mixed", "price", "split", "schedule", "contract"] = "mixed"
    opponent: Literal["self", "expert", "random"] = "self"
    goal: Annotated[float, Range(above=0)] = 0.8
    relationship: Annotated[float, Range(0)] = 0.2
    knowledge: Annotated[float, Range(0)] = 0.0
    material: Annotated[float, Range(0)] = 0.0
    secret: Annotated[float, Range(0)] = 0.5
    rules: Annotated[float, Range(0)] = 0.5
    turns: Annotated[int, Range(8)] = 14
    choices: bool = False
    form: Literal["both", "text", "native"] = "both"
    train: Annotated[int, Range(1)] = 100_000
    test: Annotated[int, Range(1)] = 1_000

    about: ClassVar[About] = About(
        source="Ours, after Sotopia (Zhou et al. 2023, arXiv:2310.11667)",
        licence="Apache-2.0",
        seats="1-2",
        smallest={"kind": "price", "opponent": "expert", "choices": True},
    )

    def __post_init__(self) -> None:
        options = {"kind": ("mixed", *KINDS), "opponent": ("self", "expert", "random")}
        require_one_of("social", self, {**options, "form": ("both", "text", "native")})
        limits = {"turns": (8, 10**6), **SIZES}
        require_within("social", self, {**limits, **dict.fromkeys(WEIGHTS, (0, 100))})
        if self.goal <= 0:
            raise ConfigError("social: goal = 0, but it must be above 0: what is there to negotiate for?")
        if self.knowledge and self.opponent == "random":
            raise ConfigError(f'social: knowledge = {self.knowledge}, but "random" never answers: use another opponent')

    @property
    def seats(self) -> tuple[str, ...]:
        return SEATS if self.opponent == "self" else ("agent",)

    def tasks(self, split: str) -> Sequence[Task]:
        data = {name: getattr(self, name) for name in DIFFICULTY}
        return make_tasks_from_data(
            "social", self, split, lambda s: {**data, "answer": written(draw(s, self.kind).fair)}
        )

    def make(self, task: Task) -> SocialEnv:
        data = task.data
        return SocialEnv(
            interface=cached_interface(Talk, "social", self.form),
            talk=Talk(draw(task.seed, data["kind"]), data["turns"]),
            weights={name: data[name] for name in WEIGHTS},
            opponent=data["opponent"],
            role=SEATS[task.seed % 2],
            seed=task.seed,
            choices=data["choices"],
        )


@dataclass
class SocialEnv:
    """One episode. `role` is the policy's seat where the world plays the other."""

    interface: Interface
    talk: Talk
    weights: Mapping[str, float]
    opponent: str
    role: str
    seed: int
    choices: bool
    briefed: frozenset[str] = frozenset()
    mutual: bool = False  # whether an offer has been made that both would gain from

    def __post_init__(self) -> None:
        if self.interface.form == "native":
            self.native_action = self.interface.native_action

    async def start(self) -> Observation:
        self._answer()
        return self._observe()

    async def step(self, agent: str, action: Message) -> Step:
        if self.talk.over:
            raise InfrastructureError("a social world was given an action after its end: play each world once")
        if agent != self.current_seat:
            raise InfrastructureError(f"social: {agent} speaks when it is the turn of {self.current_seat}")
        self._act(action)
        info = {"subgoal": float(self._first_mutual())}
        self._answer()
        if not self.talk.over:
            names = SEATS if self.opponent == "self" else ("agent",)
            return Step(self._observe(), dict.fromkeys(names, 0.0), info=info)
        parts = {f"{name}/{seat}": value for seat in SEATS for name, value in judge.parts(self.talk, seat).items()}
        if self.opponent == "self":
            return Step(
                None,
                {seat: judge.reward(self.talk, seat, self.weights) for seat in SEATS},
                done=True,
                info={**info, **parts},
            )
        reward = judge.reward(self.talk, self.role, self.weights)
        return Step(None, {"agent": reward}, done=True, success=reward >= 1 - 1e-9, info={**info, **parts})

    async def close(self) -> None:
        pass

    async def fork(self) -> SocialEnv:
        twin = copy.copy(self)
        twin.talk = copy.deepcopy(self.talk)
        return twin

    def expert(self) -> str:
        """Returns the expert's action. Against the random opponent it asks for the fair deal at once, since that
        accepts anything.
        """
        return player.expert(self.talk, self.weights, 0 if self.opponent == "random" else player.ROUNDS)

    def state_key(self) -> str:
        return json.dumps([self.seed, self.role, self.opponent, self.talk.key, sorted(self.briefed), self.mutual])

    def _act(self, action: Message) -> None:
        if len(action.calls) > 1:
            raise ActionError(f"{len(action.calls)} calls at once, but the other waits after each: make one")
        call = action.calls[0] if action.calls else parse_call(action.text, self.interface.methods)
        if call.name not in TOOLS:
            raise ActionError(f"there is no act {short(call.name)}, use one of {', '.join(TOOLS)}")
        arguments = self.interface.methods[call.name].arguments(call.arguments)
        try:
            getattr(self.talk, call.name)(**arguments)
        except ValueError as error:
            raise ActionError(f"{call.name}: {error}") from error

    def _answer(self) -> None:
        """Lets the world's own seat act, where it has one and it is its turn."""
        if self.opponent == "self" or self.talk.over or self.talk.current_seat == self.role:
            return
        rng = random.Random(f"social {self.seed} {self.talk.turns_taken}")
        action = player.expert(self.talk, self.weights) if self.opponent == "expert" else player.chance(self.talk, rng)
        self._act(Message(Role.ASSISTANT, action))

    def _first_mutual(self) -> bool:
        offered = self.talk.bid
        good = offered is not None and all(self.talk.scene.gain(seat, offered) > 0 for seat in SEATS)
        first, self.mutual = good and not self.mutual, self.mutual or good
        return first

    @property
    def current_seat(self) -> str:
        """Returns whose turn it is, by the runner's name."""
        return self.talk.current_seat if self.opponent == "self" else "agent"

    def _observe(self) -> Observation:
        talk = self.talk
        seat = self.current_seat
        heard = talk.heard or f"You begin. {OTHER[talk.current_seat].capitalize()} listens."
        system: tuple[Message, ...] = ()
        if seat not in self.briefed:
            system = (
                Message(Role.SYSTEM, f"{self.interface.system}\n{player.private_system_text(talk, talk.current_seat)}"),
            )
            self.briefed |= {seat}
        tools = () if self.interface.form == "text" else tuple(m.tool for m in self.interface.methods.values())
        choices = tuple(player.choices(talk)) if self.choices else ()
        return Observation((Message(Role.USER, heard),), system, tools, choices, seat)
