"""An agent whose actions several roles work out, one after another, as a table describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from sojourn.agents.plain import Plain
from sojourn.agents.sub_agent import context_of, require_base_of_other, with_success_of
from sojourn.agents.told import ended
from sojourn.config.fields import NONBLANK, Kind, Range
from sojourn.errors import ActionError, BudgetError, NoActionError
from sojourn.protocols import Agent, AgentContext, Seat
from sojourn.types import Ending, Message, Observation, Role, Tool, Trajectory

WORLD = "world"  # in `sees`: what the world shows


@dataclass(frozen=True, kw_only=True)
class WorkflowRole:
    """Configures a role of a workflow. It has a context of its own, with `instruction` at the end of the system
    message, and is shown what it `sees`: "world", which is what the world shows, and the last words of other roles, by
    their names. It speaks before every `every`-th action, the first included.

    `model` is "policy" or a name of `[models]`, and the model of the seat if left out, as it always is of the last role
    of the order. `says` lists all that it may say, if that is little; an agent that samples among listed actions needs
    it. `base` is the agent that speaks.
    """

    instruction: Annotated[str, NONBLANK]
    sees: tuple[Annotated[str, NONBLANK], ...] = (WORLD,)
    every: Annotated[int, Range(1)] = 1
    model: str = ""
    says: tuple[Annotated[str, NONBLANK], ...] = ()
    base: Annotated[Agent, Kind("agent")] = field(default_factory=Plain)

    def __post_init__(self) -> None:
        require_base_of_other(self.base)


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """Has several `roles` work out each action: they speak in the `order` that is given, and what the last of them says
    is the action. So a planner sets a goal and an executor pursues it (as in Hi-Agent: Wu et al. 2025,
    arXiv:2510.14388, read as its abstract; its planner's reward is other), or a critic reads a draft.

    Every role has a trajectory of its own in the episode; that of the last is the seat's. `limits.turns` counts the
    turns of all. With `rewards = "all"` each role gets the world's rewards, at its last turn; with "actor" the last
    one alone, and the others learn by an estimator that gives them a part of its return, such as `mgrpo`. The success
    of the episode is that of all its trajectories. A role whose context is full, or that a
    malformed message ends, is silent from then on.
    """

    roles: Mapping[str, WorkflowRole]
    order: tuple[Annotated[str, NONBLANK], ...]
    rewards: Literal["all", "actor"] = "all"

    def __post_init__(self) -> None:
        known = ", ".join(self.roles)
        if sorted(self.order) != sorted(self.roles) or not self.order:
            raise ValueError(f"order = {list(self.order)}: expected each of the roles {known or '(none)'} once")
        for name, role in self.roles.items():
            unknown = [one for one in role.sees if one == name or one not in (WORLD, *self.roles)]
            if unknown or not role.sees:
                raise ValueError(
                    f"roles.{name}.sees = {list(role.sees)}: expected 'world' and other roles, of {known}, at least one"
                )
            acts = name == self.actor
            if acts and (role.every > 1 or role.says or role.model or WORLD not in role.sees):
                raise ValueError(
                    f"roles.{name} says the actions, as the last of the order: expected that it sees the world, speaks "
                    "each time with the model of the seat, and says what the world allows: leave `every`, `says` and "
                    "`model` out"
                )
            if not acts and isinstance(role.base, Plain) and role.base.choices and not role.says:
                raise ValueError(f"roles.{name}.base.choices = true restricts it to what `says` lists: list it")

    @property
    def actor(self) -> str:
        """Returns the role that says the actions."""
        return self.order[-1]

    @property
    def sub_agent_models(self) -> Mapping[str, str]:
        return {name: role.model for name, role in self.roles.items() if name != self.actor}

    def seat(self, context: AgentContext) -> WorkflowSeat:
        speakers: dict[str, Speaker] = {}
        for number, name in enumerate(self.order):
            role = self.roles[name]
            own = context if name == self.actor else context_of(role.model, name, number, context)
            speakers[name] = Speaker(name, role, role.base.seat(own))
        return WorkflowSeat(self, speakers)


@dataclass
class Speaker:
    """A role in one episode: its seat, what of the world it has not been shown yet, and the last words of the roles
    that it sees, as far as they are new."""

    name: str
    role: WorkflowRole
    seat: Seat
    news: list[Message] = field(default_factory=list[Message])
    words: dict[str, str] = field(default_factory=dict[str, str])
    spoke: bool = False
    ending: Ending | None = None  # of one that is silent
    shown: Observation | None = None

    def sees(
        self, system: tuple[Message, ...], tools: tuple[Tool, ...], choices: Sequence[str], agent: str
    ) -> Observation:
        """Returns what it is shown next."""
        heard = [Message(Role.USER, f"{name}: {text}") for name, text in self.words.items()]
        messages = _joined([*self.news, *heard]) or [Message(Role.USER, "(nothing yet)")]
        self.news, self.words = [], {}
        system = ended(system if WORLD in self.role.sees else (), Role.SYSTEM, self.role.instruction)
        self.shown = Observation(tuple(messages), system, tools, tuple(choices), agent)
        return self.shown


@dataclass
class WorkflowSeat:
    """A participant of one episode, for whom the roles speak in their order."""

    config: Workflow
    speakers: dict[str, Speaker]
    waiting: list[str] = field(default_factory=list[str])  # the roles that speak before the next action, and its own
    actions: int = 0  # that the world has taken
    acted: bool = True  # whether the world is to show something new
    last: str = ""  # the role that took the last turn
    system: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    choices: tuple[str, ...] = ()
    agent: str = ""
    refusal: Observation | None = None

    @property
    def main(self) -> Speaker:
        return self.speakers[self.config.actor]

    @property
    def ends_when_malformed(self) -> bool:
        return self.last == self.config.actor and self.main.seat.ends_when_malformed

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        """Returns the action of the last role; the turn of another one raises `NoActionError`."""
        if self.acted:
            self._observe(observation)
        name, before = self.waiting[0], self.last
        speaker, acts = self.speakers[name], name == self.config.actor
        listed = (self.tools, self.choices) if acts else ((), speaker.role.says)
        shown = self.refusal or speaker.sees(self.system, *listed, self.agent)
        self.last, self.refusal = name, None
        try:
            message = await speaker.seat.act(shown, state)
        except BudgetError:
            self.last = before
            if acts:
                raise
            speaker.ending = Ending.TOKENS  # nothing was sampled, so the next one takes this turn
            self.waiting.pop(0)
            return await self.act(observation, state)
        speaker.spoke = True
        if acts:
            self.acted, self.actions = True, self.actions + 1
            return message
        self.waiting.pop(0)
        for other in self.speakers.values():
            if name in other.role.sees:
                other.words[name] = message.text
        raise NoActionError(f"the turn was one of {name}, which says no action")

    def add_reward(self, reward: float, info: Mapping[str, float]) -> None:
        """Adds to the turn that was taken last and, where all share it, to the last turns of the other roles."""
        taken = self.speakers[self.last or self.config.actor]
        taken.seat.add_reward(reward, info)
        for other in self.speakers.values():
            if other is not taken and other.spoke and self.config.rewards == "all":
                other.seat.add_reward(reward, {})

    def refuse(self, error: ActionError, observation: Observation) -> Observation:
        """Returns what the world showed; the role that was refused speaks again."""
        speaker = self.speakers[self.last]
        if speaker is self.main and self.acted:
            self.acted, self.actions = False, self.actions - 1
        self.refusal = speaker.seat.refuse(error, speaker.shown or observation)
        if speaker is not self.main and speaker.seat.ends_when_malformed:
            speaker.ending, self.refusal = Ending.MALFORMED, None
            self.waiting.pop(0)
        return observation

    def finish(self, ending: Ending) -> Trajectory:
        return self.main.seat.finish(ending)

    def called(self, ending: Ending) -> tuple[Trajectory, ...]:
        """Returns the trajectories of the other roles that spoke, whose success is that of the seat."""
        others = (one.seat.finish(one.ending or ending) for one in self.speakers.values() if one is not self.main)
        return with_success_of(self.finish(ending), others)

    def _observe(self, observation: Observation) -> None:
        """Takes in what the world shows after an action, or first."""
        self.acted, self.refusal, self.agent = False, None, observation.agent
        self.system, self.tools = observation.system or self.system, observation.tools or self.tools
        self.choices = observation.choices
        for speaker in self.speakers.values():
            if WORLD in speaker.role.sees:
                own = speaker is self.main  # others called no tool that this could answer
                speaker.news += [m if own else _of_user(m) for m in observation.messages]
        due = [name for name in self.config.order if self.actions % self.config.roles[name].every == 0]
        self.waiting = [name for name in due if self.speakers[name].ending is None]


def _of_user(message: Message) -> Message:
    """Returns the answer to a tool call as a message of the user, and others as they are."""
    return Message(Role.USER, message.text, images=message.images) if message.role is Role.TOOL else message


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Returns messages with those of the user that follow each other as one, as chat formats want roles in turn."""
    found: list[Message] = []
    for message in messages:
        if found and found[-1].role is message.role is Role.USER:
            before = found.pop()
            message = replace(before, text=f"{before.text}\n\n{message.text}", images=before.images + message.images)
        found.append(message)
    return found
