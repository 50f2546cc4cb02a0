"""Splices of bad and good plays: what they show, what of it is trained, which pairs give none, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from given_plays import Given, said
from made import chatml
from made_world import components, sampled, stage_of
from search_worlds import TASK, Digits, Draws, Family

from sojourn.agents.instructed import Instructed
from sojourn.agents.plain import Plain
from sojourn.batch import Aggregate, to_batch
from sojourn.branching.uniform import Uniform
from sojourn.checks.report import Outcome
from sojourn.checks.source import check_source
from sojourn.credit.constant import Constant
from sojourn.credit.grpo import GRPO
from sojourn.errors import ActionError, ConfigError
from sojourn.losses.nll import NLL
from sojourn.losses.of_origin import OfOrigin
from sojourn.losses.ppo import PPO
from sojourn.schedules import Stairs
from sojourn.searchers.mcts import MCTS
from sojourn.sources.experts import Experts
from sojourn.sources.mixed import Mixed
from sojourn.sources.segments import SampleReplay
from sojourn.sources.slots import Slots
from sojourn.sources.spliced import Spliced
from sojourn.types import Ending, Group, Message, Role, Versions


@dataclass
class Places(Draws):
    """Gives each token of a prompt a log-probability that depends on its place."""

    scored: int = 0

    async def score(self, prompt):
        self.scored += 1
        return -np.arange(1, len(prompt.tokens), dtype=np.float32) / 100


@dataclass
class Made:
    groups: list[Group]
    scores: list[Any]
    metrics: dict[str, float]
    base: Group
    components: Any
    config: Any
    sampler: Places = field(default_factory=Places)

    @property
    def splices(self):
        """The splices as pairs of all that their first context shows, and what is said from there on."""
        return [
            (text(t.turns[0].context), [text(turn.sample.tokens) for turn in t.turns])
            for group in self.groups
            if group.origin == "spliced"
            for t in group.trajectories
        ]


def text(tokens) -> str:
    return chatml().codec.decode(tokens)


async def made(*plays: str, family=None, live=True, max_context=4096, step=0, steps=1, agent=None, **config) -> Made:
    """Splices plays of which each says the words of a text."""
    sampler = Places()
    parts = components(family or Family(kind=Digits), sampler)
    parts.runner.config = replace(parts.runner.config, max_error_rate=1.0)
    parts.runner.max_context = 4096
    parts.runner.agent = agent or Plain()
    samples = {f"p/{number}": [said(word) for word in play.split()] for number, play in enumerate(plays)}
    group = await parts.runner.play_group(
        TASK, 3, len(plays), parts.params, "p", sampler_for=lambda env, label: SampleReplay(samples[label])
    )
    parts.runner.max_context = max_context
    made_of = Spliced(base=Given(group, live), **({"revisions": ("go back",), "keep": False} | config))
    source = made_of.bind(parts, "rl", steps)
    groups = await source.take(step)
    scores = await parts.rewards(groups)
    return Made(groups, scores, dict(source.metrics()), group, parts, made_of, sampler)


def user(words: str) -> str:
    return f"<|im_start|>user\n{words}<|im_end|>\n"


def agent(words: str) -> str:
    return f"<|im_start|>assistant\n{words}<|im_end|>\n"


OPEN, END = "<|im_start|>assistant\n", "<|im_end|>"


async def test_a_splice_shows_the_bad_turns_and_trains_what_follows():
    done = await made("1 2 0", "2 1 0")
    [(shown, spoken)] = done.splices
    assert shown == user("said nothing") + agent("2") + user("said 2") + OPEN
    assert spoken == [f"go back{END}", f"1{END}", f"2{END}", f"0{END}"]
    [trajectory] = done.groups[0].trajectories
    assert [text(turn.context) for turn in trajectory.turns[1:]] == [
        f"\n{user(shown)}{OPEN}" for shown in ("ok.", "said 1", "said 12")
    ]
    assert [turn.parent for turn in trajectory.turns] == [-1, 0, 1, 2]
    # The very samples of the good play, whose tokens are trained with the revision's, and nothing else is.
    good = done.base.episodes[0].trajectories[0]
    assert all(a.sample is b.sample for a, b in zip(trajectory.turns[1:], good.turns, strict=True))
    batch = to_batch(
        done.groups,
        Constant()(done.groups, done.scores, {}),
        {},
        aggregate=Aggregate(),
    )
    assert text(batch.tokens) == shown + "go back<|im_end|>" + "".join(
        f"\n{user(seen)}{OPEN}{action}{END}" for seen, action in (("ok.", "1"), ("said 1", "2"), ("said 12", "0"))
    )
    assert text(batch.tokens[batch.weight > 0]) == f"go back{END}1{END}2{END}0{END}"
    assert batch.tokens[batch.weight > 0].tolist() == [621, 290, 2, *good_tokens("1", "2", "0")]


def good_tokens(*words: str) -> list[int]:
    return [token for word in words for token in said(word).tokens.tolist()]


async def test_it_has_the_task_the_scores_and_the_end_of_the_good_play():
    done = await made("1 2 0", "1 0 0", family=Family(kind=Digits, hint=0.25))
    [group] = done.groups
    [trajectory], [score] = group.trajectories, done.scores[0]
    assert (group.origin, group.task, group.slot, trajectory.ending) == ("spliced", TASK, -4, Ending.DONE)
    assert group.episodes[0].id.startswith("rl/spliced/p/1-")
    assert trajectory.success
    assert [turn.reward for turn in trajectory.turns] == [0.25, 0.25, 1.0]  # the first is of the turn before they part
    assert score.turns.tolist() == [0.25, 0.25, 1.0]
    assert score.total == done.components.rewards._known[tuple(e.id for e in done.base.episodes)][1].scores[0].total
    assert trajectory.turns[0].info == {"revision": 1.0}
    assert done.metrics == {"spliced": 1.0, "splice_refused": 0.0, "splice_too_long": 0.0, "spliced_turns": 1.0}


async def test_the_wrong_turn_is_the_first_that_no_good_play_shares():
    done = await made("1 2 0", "1 0 0")
    assert done.splices == [
        (
            user("said nothing") + agent("1") + user("said 1") + agent("0") + user("said 10") + OPEN,
            [f"go back{END}", f"2{END}", f"0{END}"],
        )
    ]
    # Another good play parted before that: the bad turn that a good one shares is not wrong.
    other = await made("9 1 2 0", "1 2 0", "1 0 0")
    begins = user("said nothing") + agent("1") + user("said 1") + agent("0") + user("said 10") + OPEN
    assert sorted(other.splices) == [
        (begins, [f"go back{END}", f"2{END}", f"0{END}"]),
        (begins, [f"go back{END}", f"9{END}", f"1{END}", f"2{END}", f"0{END}"]),
    ]
    assert other.metrics["spliced_turns"] == 1.5


async def test_a_wrong_turn_that_ended_the_play_is_said_or_left_out():
    done = await made("1 2 0", "1 2 1", ended="over")
    [(shown, spoken)] = done.splices
    assert shown.endswith(user("said 12") + agent("1") + user("over") + OPEN)
    assert spoken == [f"go back{END}", f"0{END}"]
    without = await made("1 2 0", "1 2 1", ended="")
    assert without.groups == []
    assert without.metrics["splice_refused"] == 1.0


async def test_the_first_mistake_after_the_plays_parted():
    plays = "1 2 0", "1 0 9 9 0"
    done = await made(*plays, first_wrong="mistake")
    [(shown, spoken)] = done.splices
    assert shown == "".join(
        [
            *(user("said nothing"), agent("1"), user("said 1"), agent("0"), user("said 10"), agent("9")),
            user(refusal(done)),
            OPEN,
        ]
    )
    assert spoken == [f"go back{END}", f"2{END}", f"0{END}"]
    assert done.metrics["spliced_turns"] == 2.0
    shared = await made("9 1 2 0", "9 1 0 0", first_wrong="mistake")  # what both did wrong is not it
    assert shared.metrics["splice_refused"] == 1.0
    last = await made(*plays, first_wrong="end")
    assert last.splices[0][0].count(OPEN) == 6  # all five turns, and the revision


def refusal(done: Made) -> str:
    """What the bad play was told of its mistake."""
    [message] = done.base.episodes[1].trajectories[0].turns[3].observed
    assert "nine" in message.text
    return message.text


async def test_an_answer_of_ones_own_and_what_was_seen_where_the_plays_parted():
    done = await made("1 2 0", "1 0 0", answer="you are back", show_again=True)
    [group] = done.groups
    [message, again] = group.trajectories[0].turns[1].observed
    assert (message.text, again.text) == ("you are back", "said 1")


async def test_a_revision_that_is_not_trained_is_context_and_the_rest_gets_new_log_probabilities():
    done = await made("1 2 0", "2 1 0", train_revision=False)
    [(shown, spoken)] = done.splices
    assert shown == user("said nothing") + agent("2") + user("said 2") + agent("go back") + user("ok.") + OPEN
    assert spoken == [f"1{END}", f"2{END}", f"0{END}"]
    [trajectory] = done.groups[0].trajectories
    for number, turn in enumerate(trajectory.turns):
        length = len(trajectory.prompt(number))
        assert turn.sample.logprobs == pytest.approx(-np.arange(length, length + 2) / 100)
        assert turn.sample.versions == Versions(0, 0)
    assert done.sampler.scored == 3  # the bad play's turns need none
    assert done.scores[0][0].turns.tolist() == [0.0, 0.0, 1.0]
    recorded = await made("1 2 0", "2 1 0", train_revision=False, live=False)
    assert recorded.sampler.scored == 0


async def test_what_is_good_and_how_much_better_it_must_be():
    plays, family = ("1 2 0", "1 2 1", "1 0 1", "0 0 1"), Family(kind=Digits, hint=0.25)  # 1.5, 0.5, 0.25, 0

    async def pairs(step=0, steps=1, **config):
        """The numbers of the bad and the good play of each splice."""
        done = await made(*plays, family=family, per_group=100, step=step, steps=steps, **config)
        ids = [episode.id.split("/") for group in done.groups for episode in group.episodes]
        return sorted((int(bad.partition("-")[0]), int(good.partition("-")[0])) for *_, bad, good in ids)

    assert await pairs() == [(1, 0), (2, 0), (3, 0)]  # only one succeeded
    assert await pairs(enough=0.5) == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert await pairs(enough=0.5, gap=0.3) == [(1, 0), (2, 0), (3, 0), (3, 1)]
    rises = Stairs(factors=(0.5, 1.0), every=1)
    assert await pairs(enough=1.0, schedule=rises, step=0, steps=2) == await pairs(enough=0.5)
    assert await pairs(enough=1.0, schedule=rises, step=1, steps=2) == [(1, 0), (2, 0), (3, 0)]


async def test_pairs_are_drawn_at_random_and_none_is_spliced_twice():
    bad = ("2 0 0", "2 1 0", "0 1 2", "0 2 2")  # two of them are wrong in the same way
    done = await made("1 2 0", *bad, per_group=100)
    assert done.metrics["spliced"] == len(done.splices) == len({shown for shown, _ in done.splices}) == 2
    two = [(await made("1 2 0", *bad[::2], per_group=1, revisions=("a", "b"))).splices for _ in range(2)]
    assert two[0] == two[1]
    assert len(two[0]) == 1
    many = await made("1 2 0", "2 0 0", "0 0 0", "1 0 0", "1 1 0", "1 2 1", "1 2 2", revisions=tuple("abcdef"))
    assert len({spoken[0] for _, spoken in many.splices}) > 1


class Strict(Digits):
    """Refuses what is no digit."""

    async def step(self, agent, action):
        if not action.text.isdecimal():
            raise ActionError("say a digit")
        return await super().step(agent, action)


async def test_a_splice_that_is_played_shows_what_the_world_says():
    family = Family(kind=Strict)
    done = await made("1 2 0", "1 9 0 0", family=family, observations="played", first_wrong="mistake")
    [trajectory] = done.groups[0].trajectories
    assert trajectory.success
    [answer, *_] = trajectory.turns[1].observed
    assert answer.text == "say a digit"
    assert [text(turn.sample.tokens) for turn in trajectory.turns] == [f"go back{END}", f"2{END}", f"0{END}"]
    assert [turn.reward for turn in trajectory.turns] == [0.0, 0.0, 1.0]
    # What the wrong turn changed stays changed: the rest of the good play does not succeed there.
    changed = await made("1 2 0", "1 0 0", family=family, observations="played")
    assert changed.groups == []
    assert changed.metrics["splice_refused"] == 1.0
    assert family.open == 0


async def test_what_does_not_fit_into_the_context_is_left_out():
    whole = await made("1 2 0", "2 1 0")
    [trajectory] = whole.groups[0].trajectories
    length = len(trajectory.prompt(3)) + len(trajectory.turns[3].sample.tokens)
    assert (await made("1 2 0", "2 1 0", max_context=length)).metrics["spliced"] == 1.0
    short = await made("1 2 0", "2 1 0", max_context=length - 1)
    assert short.groups == []
    assert (short.metrics["spliced"], short.metrics["splice_too_long"]) == (0.0, 1.0)


@pytest.mark.parametrize("plays", [("1 2 0", "1 2 0"), ("0 0 0", "1 1 1")])
async def test_without_a_bad_and_a_good_play_there_is_no_splice(plays):
    done = await made(*plays)
    assert done.groups == []
    assert done.metrics == {"spliced": 0.0, "splice_refused": 0.0, "splice_too_long": 0.0}


async def test_plays_that_were_shown_different_things_have_nothing_to_splice():
    class Shuffled(Digits):
        async def start(self):
            shown = await super().start()
            self.family.steps += 1
            return replace(shown, messages=(Message(Role.USER, f"hello {self.family.steps}"),))

    done = await made("1 2 0", "2 1 0", family=Family(kind=Shuffled))
    assert done.metrics["splice_refused"] == 1.0


async def test_plays_in_rewritten_contexts_are_left_out():
    done = await made("1 2 0", "2 1 0", agent=Plain(history="page"))
    assert done.groups == []
    assert done.metrics["splice_refused"] == 1.0
    told = await made("1 2 0", "2 1 0", agent=Instructed(text="Be quick."))
    assert told.splices[0][0].startswith("<|im_start|>system\nBe quick.<|im_end|>\n")


async def test_the_groups_of_the_base_stay_or_are_only_played():
    both = await made("1 2 0", "2 1 0", keep=True)
    assert both.groups[0] is both.base
    assert [group.origin for group in both.groups] == ["policy", "spliced"]
    played = both.components.rewards.pop(both.groups, below=9)
    assert [scored.group for scored in played] == [both.base]  # splices are not counted as played
    alone = await made("1 2 0", "2 1 0", keep=False)
    assert [group.origin for group in alone.groups] == ["spliced"]
    assert [scored.group for scored in alone.components.rewards.pop(alone.groups, below=9)] == [alone.base]
    assert (both.config.width, alone.config.width) == (2, 1)


async def test_branches_are_spliced_where_they_left_each_other():
    parts = components(Family(), Draws())
    parts.runner.max_context, parts.runner.config = 4096, replace(parts.runner.config, max_error_rate=1.0)
    forks = Uniform(every=1, width=2, depth=2, leaves=4)
    source = Spliced(base=Slots(width=1, size=6, branching=forks), revisions=("go back",), per_group=100)
    groups = await source.bind(parts, "rl", 1).take(0)
    [base, splices] = groups
    won = [t for t in base.trajectories if t.success]
    assert len(splices.episodes) > 3
    for trajectory in splices.trajectories:
        ends = [sampled(t)[-len(trajectory.turns) + 1 :] for t in won]
        assert sampled(trajectory)[1:] in ends


async def test_it_keeps_what_sources_promise():
    report = await check_source(Spliced(base=Slots(width=2, size=3)))
    assert [v.outcome for v in report.verdicts] == [
        Outcome.NOT_OFFERED if v.promise == "groups have the size that it declares" else Outcome.PASSED
        for v in report.verdicts
    ]


async def test_a_resumed_stage_has_the_same_splices():
    def bound(sampler):
        parts = components(Family(), sampler)
        parts.runner.max_context, parts.runner.config = 4096, replace(parts.runner.config, max_error_rate=1.0)
        return Spliced(base=Slots(width=2, size=6, max_lag=1), revisions=("a", "b", "c")).bind(parts, "rl", 4)

    def content(groups):
        return [
            (group.origin, episode.id, [sampled(t) for t in episode.trajectories])
            for group in groups
            for episode in group.episodes
        ]

    whole, first, resumed = bound(Draws()), bound(Draws()), bound(Draws())
    expected = [content(await whole.take(step)) for step in range(4)]
    assert sum(origin == "spliced" for step in expected[2:] for origin, *_ in step) > 3
    assert [content(await first.take(step)) for step in range(2)] == expected[:2]
    resumed.restore(first.state())
    assert [content(await resumed.take(step)) for step in range(2, 4)] == expected[2:]
    for source in (whole, first, resumed):
        await source.close()


def check(config, agent=None, family=None, losses=None, estimator=None, renderer=None, groups=None):
    parts = components(family or Family())
    stage = stage_of(parts, "rl")
    stage = replace(
        stage, agent=agent or Plain(), losses=losses or (NLL(),), estimator=estimator or Constant(), renderer=renderer
    )
    return config.check(replace(stage, groups=groups or config))


@dataclass
class Two(Family):
    seats: tuple[str, ...] = ("a", "b")


LIVE = Slots(size=2)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"family": Two()}, "spliced splices the plays of one seat, but the world has the seats a, b"),
        (
            {"agent": Plain(history="window")},
            "spliced shows the turns of two plays in one context, but the agent Plain",
        ),
        ({"agent": Instructed(text="x", base=Plain(history="page"))}, "but the agent Instructed does not keep all"),
        ({"losses": (PPO(),)}, "PPO needs the sampler's log-probabilities, which a splice does not have .* beside oth"),
        ({"renderer": chatml()}, "has 21 tokens, where sampling.max_tokens = 8: a model that learnt it would be cut"),
    ],
)
async def test_what_cannot_work_is_refused(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        await check(Spliced(base=LIVE), **changes)


async def test_what_can_work_is_not():
    await check(Spliced(base=LIVE), agent=Instructed(text="x"))
    await check(Spliced(base=LIVE), agent=MCTS())
    await check(Spliced(base=LIVE, train_revision=False), losses=(PPO(),), estimator=GRPO(), renderer=chatml())
    apart = (OfOrigin(origins=("policy",), base=PPO()), OfOrigin(origins=("spliced",), base=NLL()))
    await check(Spliced(base=LIVE), losses=apart)
    with pytest.raises(ConfigError, match=r"PPO needs .* which a splice of plays that the policy did not just sample"):
        await check(Spliced(base=Given(Group(0, TASK, ()), live=False), train_revision=False), losses=(PPO(),))


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"base": Slots(size=1)}, "base = Slots plays each task once"),
        ({"base": Experts()}, "base = Experts plays each task once"),
        ({"base": Mixed(parts=(LIVE,))}, "base is mixed"),
        ({"base": LIVE, "revisions": ()}, "revisions = .*: give at least one"),
        ({"base": LIVE, "schedule": Stairs()}, "schedule without enough"),
        ({"base": LIVE, "observations": "played", "answer": "yes"}, "leave them out"),
    ],
)
def test_settings_that_say_nothing_are_refused(config, sentence):
    with pytest.raises(ValueError, match=sentence):
        Spliced(**config)
