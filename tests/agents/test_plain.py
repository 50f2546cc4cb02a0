"""What the plain agent shows the model, token by token, and what it does when the model or the context fails it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from made import chatml as renderer

from sojourn.agents.plain import Plain, PlainSeat
from sojourn.batch.flatten import flatten
from sojourn.errors import ActionError, BudgetError
from sojourn.protocols import AgentContext
from sojourn.record.export.conversations import utterances
from sojourn.rewards.native import Native
from sojourn.rollout.limits import Limits
from sojourn.rollout.play import play
from sojourn.timeline import Timeline
from sojourn.types import (
    Ending,
    Episode,
    Group,
    Message,
    Observation,
    Prompt,
    Role,
    Sample,
    SamplingParams,
    Step,
    Stop,
    Task,
    Tool,
    Trajectory,
    Versions,
)

TASK = Task("counting", {}, 0, "train")
SYSTEM = "<|im_start|>system\nPlay.<|im_end|>\n"


def user(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n"


def reply(text: str = "") -> str:
    """A whole reply of the assistant, or where it is to speak."""
    return f"<|im_start|>assistant\n{text}<|im_end|>\n" if text else "<|im_start|>assistant\n"


def by_byte(text: str) -> list[int]:
    """Other tokens for the text than the tokenizer would choose: what is encoded again is found out."""
    encode = renderer().codec.control
    letters = [token for letter in text for token in encode(letter)]
    assert letters != encode(text)
    return letters


@dataclass
class Script:
    """Samples the given texts, spelled byte by byte; one that ends in "..." was cut off before its end token."""

    texts: list[str]
    prompts: list[list[int]] = field(default_factory=list)
    asked: list[SamplingParams] = field(default_factory=list)
    given: list[list[int]] = field(default_factory=list)
    images: list[tuple[str, ...]] = field(default_factory=list)

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        text = self.texts[len(self.asked) % len(self.texts)]
        whole = not text.endswith("...")
        tokens = by_byte(text.removesuffix("...")) + (list(renderer().stops[:1]) if whole else [])
        self.prompts.append(prompt.tokens.tolist())
        self.images.append(prompt.images)
        self.asked.append(params)
        self.given.append(tokens)
        logprobs = -np.arange(1.0, 1 + len(tokens), dtype=np.float32)
        return Sample(np.array(tokens), logprobs, Versions(0, 0), Stop.END if whole else Stop.LENGTH)

    async def score(self, prompt: Prompt) -> Any:
        raise NotImplementedError

    @property
    def seen(self) -> list[str]:
        return [renderer().decode(prompt) for prompt in self.prompts]


@dataclass
class Counting:
    """Shows "page 1", "page 2" ... and refuses what is not "go north"; every accepted action pays 1."""

    choices: tuple[str, ...] = ()
    page: int = 1
    done_after: int = 100

    async def start(self) -> Observation:
        return replace(self._observe(), system=(Message(Role.SYSTEM, "Play."),))

    async def step(self, agent: str, action: Message) -> Step:
        if action.text != "go north":
            raise ActionError(f"Not {action.text}.")
        self.page += 1
        done = self.page > self.done_after
        return Step(None if done else self._observe(), {agent: 1.0}, done=done)

    async def close(self) -> None: ...

    def state_key(self) -> str:
        return f"at {self.page}"

    def _observe(self) -> Observation:
        return Observation((Message(Role.USER, f"page {self.page}"),), choices=self.choices)


def sit(script: Script, max_context: int = 1000, **options: Any) -> PlainSeat:
    params = SamplingParams(30, seed=7)
    context = AgentContext(name="agent", renderer=renderer(), sampler=script, params=params, max_context=max_context)
    return Plain(**options).seat(context)


async def episode(
    script: Script,
    turns: int = 4,
    world: Counting | None = None,
    max_context: int = 1000,
    window: int = 3,
    **options: Any,
) -> Trajectory:
    seat = sit(script, max_context, turns=window, **options)
    [played] = await play(world or Counting(), {"agent": seat}, Limits(turns=turns), Timeline())
    assert_exact(played, script)
    return played


def assert_exact(played: Trajectory, script: Script) -> None:
    """The record has exactly the tokens that went to the engine and that came back."""
    assert [played.prompt(n).tolist() for n in range(len(played.turns))] == script.prompts
    assert [turn.sample.tokens.tolist() for turn in played.turns] == script.given


# histories


async def test_full_extends_one_context():
    script = Script(["go north"])
    played = await episode(script, turns=3)
    opening = SYSTEM + user("page 1") + reply()
    second = opening + "go north<|im_end|>\n" + user("page 2") + reply()
    assert script.seen == [opening, second, second + "go north<|im_end|>\n" + user("page 3") + reply()]
    assert [turn.parent for turn in played.turns] == [-1, 0, 1]
    assert [renderer().decode(turn.context) for turn in played.turns] == [
        opening,
        "\n" + user("page 2") + reply(),
        "\n" + user("page 3") + reply(),
    ]
    assert [turn.reward for turn in played.turns] == [1, 1, 1]
    assert [turn.state for turn in played.turns] == ["at 1", "at 2", "at 3"]
    assert played.ending is Ending.TURNS


@pytest.mark.parametrize(("keep", "oldest"), [(0, [1, 2, 3, 4]), (1, [1, 1, 2, 3]), (2, [1, 1, 1, 2])])
async def test_window_opens_a_new_root_each_turn_with_the_last_exchanges(keep: int, oldest: list[int]):
    script = Script(["go north"])
    played = await episode(script, history="window", window=keep)
    past = ["".join(user(f"page {n}") + reply("go north") for n in range(oldest[now - 1], now)) for now in range(1, 5)]
    assert script.seen == [SYSTEM + past[now - 1] + user(f"page {now}") + reply() for now in range(1, 5)]
    assert [turn.parent for turn in played.turns] == [-1] * 4


async def test_the_past_in_a_window_has_the_tokens_that_were_sampled():
    script = Script(["go north"])
    await episode(script, turns=3, history="window", window=2)
    said = script.given[0]
    starts = [n for n in range(len(script.prompts[2])) if script.prompts[2][n : n + len(said)] == said]
    assert len(starts) == 2


async def test_page_shows_the_system_message_and_the_present_page_only():
    script = Script(["go north"])
    played = await episode(script, turns=3, history="page")
    assert script.seen == [SYSTEM + user(f"page {n}") + reply() for n in (1, 2, 3)]
    assert [turn.parent for turn in played.turns] == [-1] * 3
    assert len(flatten([Group(0, TASK, (Episode("0", TASK, (played,)),))])[0].offsets) - 1 == 3


async def test_a_reply_that_was_cut_off_is_closed_by_what_follows():
    script = Script(["go no...", "go north"])
    played = await episode(script, turns=2)
    told = user("Not go no. (cut off after 5 tokens)")
    assert script.seen[1] == SYSTEM + user("page 1") + reply() + "go no<|im_end|>\n" + told + reply()
    assert renderer().decode(played.turns[1].context).startswith("<|im_end|>\n")  # not sampled, so not trained


@dataclass(frozen=True)
class Rewriting:
    """A format that keeps nothing as it was sampled, like those that strip thoughts."""

    inner: Any
    stops: tuple[int, ...] = ()

    def open(self, messages, tools=()):
        return self.inner.open(messages, tools)

    def extend(self, last, messages):
        return None

    def parse(self, tokens):
        return self.inner.parse(tokens)

    def encode_reply(self, message):
        return self.inner.encode_reply(message)


@pytest.mark.parametrize(("options", "oldest"), [({}, [1, 1, 1]), ({"history": "window", "turns": 1}, [1, 1, 2])])
async def test_a_format_that_rewrites_history_opens_a_new_root_from_what_was_said(options: Any, oldest: list[int]):
    script = Script(["go north"])
    seat = sit(script, **options)
    seat.context = replace(seat.context, renderer=Rewriting(renderer()))
    [played] = await play(Counting(), {"agent": seat}, Limits(turns=3), Timeline())
    assert_exact(played, script)
    assert [turn.parent for turn in played.turns] == [-1] * 3
    past = ["".join(user(f"page {n}") + reply("go north") for n in range(oldest[now - 1], now)) for now in range(1, 4)]
    assert script.seen == [SYSTEM + past[now - 1] + user(f"page {now}") + reply() for now in range(1, 4)]


def tool(name: str) -> Tool:
    return Tool(name, f"Does {name}.", {"type": "object", "properties": {}})


@dataclass
class Changing(Counting):
    """Declares another tool from page 2 on and another system message on page 3; page 4 repeats both."""

    async def start(self) -> Observation:
        return replace(await super().start(), tools=(tool("walk"),))

    def _observe(self) -> Observation:
        seen = super()._observe()
        if self.page == 2:
            return replace(seen, tools=(tool("walk"), tool("swim")))
        if self.page > 2:
            return replace(seen, system=(Message(Role.SYSTEM, "Now hurry."),), tools=(tool("walk"), tool("swim")))
        return seen


async def test_tools_and_system_messages_that_change_reach_the_model_in_a_new_window():
    script = Script(["go north"])
    played = await episode(script, world=Changing(), turns=4)  # its record is exact: nothing is encoded again
    assert [turn.parent for turn in played.turns] == [-1, -1, -1, 2]
    assert ["swim" in seen for seen in script.seen] == [False, True, True, True]
    assert ["Play." in seen for seen in script.seen] == [True, True, False, False]
    assert ["Now hurry." in seen for seen in script.seen] == [False, False, True, True]
    past = "".join(user(f"page {n}") + reply("go north") for n in (1, 2))
    assert script.seen[2].endswith(past + user("page 3") + reply())
    said = script.given[0]
    starts = [n for n in range(len(script.prompts[2])) if script.prompts[2][n : n + len(said)] == said]
    assert len(starts) == 2  # the past has the tokens that were sampled
    assert [[tool.name for tool in turn.tools] for turn in played.turns] == [["walk"], *[["walk", "swim"]] * 2, []]
    [first, *_] = [m.message for m in utterances(played, [2, 3])]
    assert first.text == "Now hurry."
    assert [m.message.text for m in utterances(played, [1])][:3] == ["Play.", "page 1", "go north"]


# malformed actions

BROKEN = '<tool_call>\n{"name": '


async def test_tell_shows_the_reason_and_uses_up_a_turn():
    script = Script(["go up", "go north", "go up"])
    played = await episode(script, turns=3)
    first = SYSTEM + user("page 1") + reply()
    second = first + "go up<|im_end|>\n" + user("Not go up.") + reply()
    assert script.seen == [first, second, second + "go north<|im_end|>\n" + user("page 2") + reply()]
    assert [turn.info.get("malformed", 0.0) for turn in played.turns] == [1, 0, 1]
    assert [turn.reward for turn in played.turns] == [0, 1, 0]
    assert played.ending is Ending.TURNS


@pytest.mark.parametrize("history", ["page", "window"])
async def test_tell_shows_the_page_again_where_pages_are_forgotten_and_only_the_last_reason(history: str):
    script = Script(["go up", "go down", "go north", "go north"])
    await episode(script, history=history, window=0)
    assert script.seen == [
        SYSTEM + user("page 1") + reply(),
        SYSTEM + user("Not go up.") + user("page 1") + reply(),
        SYSTEM + user("Not go down.") + user("page 1") + reply(),
        SYSTEM + user("page 2") + reply(),
    ]


UP, DOWN = user("Not go up."), user("Not go down.")


@pytest.mark.parametrize(
    ("window", "fourth"),
    [
        (1, UP + reply("go down") + DOWN + user("page 2")),  # it has left the window, so it is shown again
        (2, user("page 2") + reply("go up") + UP + reply("go down") + DOWN),
        (3, user("page 1") + reply("go north") + user("page 2") + reply("go up") + UP + reply("go down") + DOWN),
    ],
)
async def test_a_window_shows_the_present_page_once_however_often_actions_are_refused(window: int, fourth: str):
    script = Script(["go north", "go up", "go down", "go left", "go north", "go up"])
    played = await episode(script, turns=6, history="window", window=window)
    assert [prompt.count("page 2") for prompt in script.seen[1:5]] == [1, 1, 1, 1]
    assert script.seen[5].count("page 3") == 1
    assert script.seen[3] == SYSTEM + fourth + reply()
    told = renderer().open((*played.turns[3].context_messages, *played.turns[3].observed)).tokens
    assert renderer().decode(told) == script.seen[3]


@dataclass(frozen=True)
class Seeing(Rewriting):
    """A format that shows images, one token for each message that has any; it keeps history unless it `rewrites` it."""

    rewrites: bool = False

    def open(self, messages, tools=()):
        return Prompt(self.inner.open(self.blind(messages), tools).tokens, self.images(messages))

    def extend(self, last, messages):
        more = None if self.rewrites else self.inner.extend(last, self.blind(messages))
        return more and Prompt(more.tokens, self.images(messages))

    def images(self, messages):
        return tuple(image for message in messages for image in message.images)

    def blind(self, messages):
        return tuple(replace(message, images=()) for message in messages)


@dataclass
class Pictures(Counting):
    """Each page is shown as an image, too."""

    def _observe(self) -> Observation:
        return Observation((Message(Role.USER, f"page {self.page}", images=(f"image {self.page}",)),))


@pytest.mark.parametrize("rewrites", [False, True])
@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"history": "full"}, [[1], [1, 2], [1, 2, 3]]),
        ({"history": "window", "turns": 1}, [[1], [1, 2], [2, 3]]),
        ({"history": "page"}, [[1], [2], [3]]),
    ],
)
async def test_the_engine_is_given_the_images_of_its_whole_context_and_turns_record_those_that_are_new(
    options: Any, shown: list[list[int]], rewrites: bool
):
    script = Script(["go north"])
    seat = sit(script, **options)
    seat.context = replace(seat.context, renderer=Seeing(renderer(), rewrites=rewrites))
    [played] = await play(Pictures(), {"agent": seat}, Limits(turns=3), Timeline())
    assert_exact(played, script)
    expected = [tuple(f"image {number}" for number in numbers) for numbers in shown]
    assert script.images == expected
    extends = options["history"] == "full" and not rewrites
    assert [turn.images for turn in played.turns] == [images[-1:] if extends else images for images in expected]
    batch, _ = flatten([Group(0, TASK, (Episode("0", TASK, (played,)),))])
    assert batch.images[-1] == expected[-1]


async def test_end_ends_the_episode_with_the_turn_on_record():
    script = Script(["go north", "go up"])
    played = await episode(script, malformed="end")
    assert played.ending is Ending.MALFORMED
    assert not played.ending.truncated
    assert [turn.info for turn in played.turns] == [{}, {"malformed": 1.0}]
    [score] = await Native(malformed=-0.5)(Group(0, TASK, (Episode("0", TASK, (played,)),)))
    assert score.turns.tolist() == [1, -0.5]


@pytest.mark.parametrize(("malformed", "turns"), [("tell", 2), ("end", 1)])
async def test_what_cannot_be_read_is_malformed_before_the_world_sees_it(malformed: str, turns: int):
    script = Script([BROKEN, "go north"])
    world = Counting()
    played = await episode(script, 2, world, malformed=malformed)
    assert played.turns[0].message is None
    assert played.turns[0].info == {"malformed": 1.0}
    assert (len(played.turns), world.page) == (turns, turns)


# choices and seeds


async def test_choices_restrict_what_is_sampled_to_what_is_possible_now():
    script = Script(["go north"])
    await episode(script, 1, Counting(("go north", "go up")), choices=True)
    encoded = [renderer().encode_reply(Message(Role.ASSISTANT, text)) for text in ("go north", "go up")]
    assert script.asked[0].choices == tuple(tuple(tokens) for tokens in encoded)


@pytest.mark.parametrize(("offered", "wanted"), [((), True), (("go north",), False)])
async def test_nothing_is_restricted_without_choices_or_when_not_asked(offered: tuple[str, ...], wanted: bool):
    script = Script(["go north"])
    await episode(script, 1, Counting(offered), choices=wanted)
    assert script.asked[0].choices == ()


async def test_every_turn_is_sampled_with_a_seed_of_its_own():
    script, again = Script(["go north"]), Script(["go north"])
    await episode(script)
    await episode(again)
    seeds = [params.seed for params in script.asked]
    assert len({*seeds, 7}) == 5
    assert seeds == [params.seed for params in again.asked]


# budgets


async def test_a_full_context_ends_the_episode_as_truncated():
    script = Script(["go north"])
    roomy = await episode(script, turns=3)
    limit = len(script.prompts[2])  # the third turn would have no room for even one token
    assert len(roomy.turns) == 3
    short = Script(["go north"])
    played = await episode(short, 3, max_context=limit)
    assert (len(played.turns), played.ending, played.ending.truncated) == (2, Ending.TOKENS, True)
    barely = Script(["go north"])
    assert len((await episode(barely, 3, max_context=limit + 1)).turns) == 3
    assert [params.max_tokens for params in barely.asked][-1] == 1


async def test_the_error_says_how_full_the_context_is():
    script = Script(["go north"])
    seat = sit(script, max_context=5)
    with pytest.raises(BudgetError, match=r"the prompt has \d+ tokens, a context at most 5: no room to act"):
        await seat.act(await Counting().start())
    assert seat.finish(Ending.TOKENS).turns == ()
    assert script.asked == []


async def test_an_episode_without_room_for_any_turn_can_be_judged():
    script = Script(["go north"])
    played = await episode(script, 3, max_context=5)
    assert (played.turns, played.ending) == ((), Ending.TOKENS)
    group = Group(0, TASK, (Episode("0", TASK, (played,)),))
    [score] = await Native(truncated=-1.0)(group)
    assert score.total == 0
    assert len(flatten([group])[0]) == 0


@pytest.mark.parametrize("history", ["window", "page"])
async def test_what_forgets_does_not_fill_its_context(history: str):
    script = Script(["go north"])
    await episode(script, turns=3)
    limit = len(script.prompts[2])
    longer = Script(["go north"])
    assert len((await episode(longer, 8, max_context=limit, history=history, window=1)).turns) == 8


# rewards and forks


async def test_reward_before_the_first_turn_is_added_to_it():
    script = Script(["go north"])
    seat = sit(script)
    seat.add_reward(0.5, {})
    world = Counting()
    await seat.act(await world.start())
    seat.add_reward(1.0, {"success": 1.0})
    [turn] = seat.finish(Ending.DONE).turns
    assert (turn.reward, turn.info) == (1.5, {"success": 1.0})


@pytest.mark.parametrize("history", ["full", "window"])
async def test_a_fork_and_its_original_go_on_by_themselves_and_share_what_was(history: str):
    script = Script(["go north", "wait", "go down"])
    seat = sit(script, history=history, turns=5)
    world = Counting()
    await seat.act(await world.start())
    seat.add_reward(1.0, {})
    fork = seat.fork()

    def page(number: int) -> Observation:
        return Observation((Message(Role.USER, f"page {number}"),))

    await seat.act(page(2))
    await fork.act(page(9))
    seat.add_reward(2.0, {"success": 1.0})
    fork.add_reward(4.0, {"success": 0.0})
    await seat.act(page(3))
    one, other = seat.finish(Ending.DONE), fork.finish(Ending.TURNS)
    assert [len(one.turns), len(other.turns)] == [3, 2]
    assert one.turns[0] is other.turns[0]
    assert [turn.reward for turn in one.turns] == [1, 2, 0]
    assert [turn.reward for turn in other.turns] == [1, 4]
    past = SYSTEM + user("page 1") + reply("go north")
    assert renderer().decode(one.prompt(1)) == past + user("page 2") + reply()
    assert renderer().decode(other.prompt(1)) == past + user("page 9") + reply()
    assert renderer().decode(one.prompt(2)) == past + user("page 2") + reply("wait") + user("page 3") + reply()
    assert [other.prompt(n).tolist() for n in range(2)] == [script.prompts[0], script.prompts[2]]


async def test_what_is_paid_to_a_fork_at_once_does_not_reach_its_original():
    script = Script(["go north"])
    seat = sit(script)
    await seat.act(await Counting().start())
    fork = seat.fork()
    fork.add_reward(1.0, {"success": 1.0})
    assert seat.finish(Ending.DONE).reward == 0
    assert fork.finish(Ending.DONE).reward == 1
