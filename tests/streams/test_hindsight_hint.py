"""What the policy says of its tokens once it reads a hint: where the hint stands, and what tokens are worth then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made import chatml, group, trajectory

from sojourn.agents.plain import Plain
from sojourn.backends.torch.models import loading
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.checks.stream import PROMISES as STREAM_PROMISES
from sojourn.checks.stream import Case
from sojourn.credit.reinforce import Reinforce
from sojourn.credit.teacher_kl import TeacherKL
from sojourn.errors import ConfigError
from sojourn.losses.kl import KL
from sojourn.losses.ppo import PPO
from sojourn.optim import Optim
from sojourn.protocols import AgentContext
from sojourn.rewards.hints import as_words
from sojourn.rewards.next_state import NextState
from sojourn.streams.hindsight_hint import LABEL, HindsightHint, with_hint
from sojourn.streams.ref_logprobs import RefLogprobs
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.train.resolve import load
from sojourn.types import (
    Ending,
    Message,
    Observation,
    Prompt,
    Role,
    Sample,
    SamplingParams,
    Score,
    Stop,
    Tool,
    Trajectory,
    Versions,
)

NAME = "tiny:layers=1,hidden=64"
HINT = "Look into the north room."
LOOK = Tool("look", "Looks.", {"type": "object", "properties": {}})


async def nowhere(weights, version):
    pass


def passes(seed: int) -> ModelPasses:
    return ModelPasses(loading.load(NAME, "fp32", seed).model, bf16=False, token_budget=1000)


def opened() -> TorchTrainer:
    made = TorchTrainer(passes(0), nowhere)
    made.begin(Optim(lr=1e-2), 10, reference=True)
    made.teachers.frozen["other"] = passes(1)
    return made


class Script:
    """Samples a fixed reply, spelled byte by byte, as no tokenizer would."""

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        tokens = [token for letter in "go north" for token in chatml().codec.control(letter)]
        tokens += list(chatml().stops[:1])
        return Sample(np.array(tokens), np.full(len(tokens), -1, np.float32), Versions(0, 0), Stop.END)

    async def score(self, prompt: Prompt) -> Any:
        raise NotImplementedError

    async def close(self) -> None: ...


async def played(*observations: Observation, **options: Any) -> Trajectory:
    context = AgentContext(
        name="agent", renderer=chatml(), sampler=Script(), params=SamplingParams(50), max_context=4000
    )
    seat = Plain(**options).seat(context)
    for observation in observations:
        await seat.act(observation)
    return seat.finish(Ending.DONE)


def page(text: str, *system: str, role: Role = Role.USER, tools: tuple[Tool, ...] = ()) -> Observation:
    messages = (Message(role, text),)
    return Observation(messages, system=tuple(Message(Role.SYSTEM, one) for one in system), tools=tools)


def scores(made: Trajectory, *hints: str, turns: Any = None) -> list[list[Score]]:
    rewards = np.zeros(len(made.turns)) if turns is None else np.array(turns)
    return [[Score(rewards.astype(np.float32), words=as_words(hints))]]


def told_prompt(made: Trajectory, number: int) -> str:
    """The whole context of a turn that reads the hint, whose mark is left out, as a text."""
    turn = with_hint(made, number, LABEL + HINT, chatml())
    assert turn.parent == -1
    assert turn.sample is made.turns[number].sample
    return chatml().decode(turn.context.tolist())


@pytest.mark.parametrize(
    ("observations", "options"),
    [
        ([page("page 1", "Play."), page("page 2"), page("page 3")], {}),
        ([page("same"), page("same"), page("same")], {}),
        ([page("page 1", "Play."), page("page 2"), page("page 3")], {"history": "window", "turns": 2}),
        ([page("page 1", "Play."), page("page 2")], {"history": "page"}),
        ([page("page 1", "Play."), page("page 2"), page("page 3", "Play well.")], {}),
        ([page("page 1", "Play.", tools=(LOOK,)), page("page 2")], {}),
    ],
    ids=["line", "same messages", "window", "page", "another system message", "tools"],
)
async def test_the_hint_stands_at_the_end_of_the_last_message_of_the_user(observations, options):
    made = await played(*observations, **options)
    for number in range(len(made.turns)):
        own, told = chatml().decode(made.prompt(number).tolist()), told_prompt(made, number)
        assert told.count(LABEL + HINT) == 1
        assert told.replace(LABEL + HINT, "") == own
        before, _, after = told.partition(LABEL + HINT)
        assert before.endswith(observations[number].messages[-1].text)
        assert after == "<|im_end|>\n<|im_start|>assistant\n"


async def test_after_answers_of_tools_it_stands_where_the_user_spoke_last():
    answered = page("It is 3.", role=Role.TOOL)
    made = await played(page("What is it?", "Play.", tools=(LOOK,)), answered, answered)
    for number in range(3):
        told = told_prompt(made, number)
        assert told.replace(LABEL + HINT, "") == chatml().decode(made.prompt(number).tolist())
        assert f"What is it?{LABEL}{HINT}<|im_end|>" in told
    window = await played(page("What is it?", "Play."), answered, answered, history="window", turns=2)
    told = told_prompt(window, 2)  # whose replies in the middle no tokenizer would write so
    assert told.replace(LABEL + HINT, "") == chatml().decode(window.prompt(2).tolist())
    assert told.index(LABEL + HINT) > told.rindex("It is 3.")
    first = await played(Observation((Message(Role.USER, "What is it?"), Message(Role.TOOL, "It is 3."))))
    assert f"What is it?{LABEL}{HINT}<|im_end|>" in told_prompt(first, 0)
    only = await played(page("It is 3.", role=Role.TOOL))
    assert f"It is 3.{LABEL}{HINT}" in told_prompt(only, 0)


async def test_tokens_are_scored_with_the_hint_by_the_policy_or_another_model():
    """Against transformers' own pass over the whole context of each turn."""
    made = await played(page("page 1", "Play."), page("page 2"), page("page 3"))
    context = TrainerPasses([group([made])], scores(made, HINT, "", "Go south at last."), opened(), chatml())
    for model, seed in (("policy", 0), ("reference", 0), ("other", 1)):
        [[found]] = await HindsightHint(model=model)(context)
        plain = loading.load(NAME, "fp32", seed).model
        for number, hint in ((0, HINT), (2, "Go south at last.")):
            turn = with_hint(made, number, LABEL + hint, chatml())
            tokens = np.concatenate([turn.context, turn.sample.tokens])
            with torch.no_grad():
                logits = plain(torch.from_numpy(tokens)[None]).logits[0].log_softmax(-1)
            expected = logits[np.arange(len(turn.context) - 1, len(tokens) - 1), turn.sample.tokens]
            np.testing.assert_allclose(found[number], expected.numpy(), atol=1e-4)
        np.testing.assert_array_equal(found[1], made.turns[1].sample.logprobs)


async def test_the_advantage_is_the_reward_of_the_turn_and_the_gain_by_the_hint():
    made = await played(page("page 1", "Play."), page("page 2"))
    groups, judged = [group([made])], scores(made, HINT, turns=[-1.0, 1.0])
    streams = {"hindsight_hint": await HindsightHint()(TrainerPasses(groups, judged, opened(), chatml()))}
    base = Reinforce(discount=0.0, baseline="none")
    estimator = TeacherKL(stream="hindsight_hint", base=base, coef=0.5)
    assert estimator.needs == {"hindsight_hint"}
    [[credit]] = estimator(groups, judged, streams)
    gain = streams["hindsight_hint"][0][0][0] - made.turns[0].sample.logprobs
    assert np.abs(gain).max() > 0.1
    np.testing.assert_allclose(credit.tokens[0], -1 + 0.5 * gain, rtol=1e-5)
    np.testing.assert_array_equal(credit.tokens[1], 1)
    [[alone]] = TeacherKL(stream="hindsight_hint")(groups, judged, streams)
    np.testing.assert_allclose(alone.tokens[0], gain, rtol=1e-5)
    assert not alone.tokens[1].any()


async def test_without_hints_no_model_is_asked():
    class Silent(TorchTrainer):
        async def ask_models(self, batches):
            raise AssertionError("nothing is to be asked")

    trainer = Silent(passes(0), nowhere)
    made = trajectory(np.random.default_rng(0))  # whose contexts no renderer wrote
    [[found]] = await HindsightHint()(TrainerPasses([group([made])], scores(made), trainer, chatml()))
    for turn, values in zip(made.turns, found, strict=True):
        np.testing.assert_array_equal(values, turn.sample.logprobs)


async def test_a_long_hint_is_cut_to_its_number_of_tokens():
    made = await played(page("page 1", "Play."))
    stream, long = HindsightHint(max_tokens=40), "Go north and look there. " * 50
    place, turn = stream._told(TrainerPasses([group([made])], scores(made, long), opened(), chatml()))[1][0]
    assert place == (0, 0, 0)
    assert 20 < len(turn.context) - len(made.prompt(0)) <= 40
    assert stream.added_tokens(chatml()) == 40
    assert f"{LABEL}Go north" in chatml().decode(turn.context.tolist())


async def test_a_context_that_the_renderer_did_not_write_is_refused():
    made = await played(page("page 1", "Play."), page("page 2"))
    for number in (0, 1):
        broken = replace(made.turns[number], context=made.turns[number].context[:-1])
        turns = (*made.turns[:number], broken, *made.turns[number + 1 :])
        with pytest.raises(ConfigError, match=rf"turn {number}: its context is not what the renderer writes"):
            with_hint(replace(made, turns=turns), number, HINT, chatml())


class Hinted(Case):
    """A stream whose steps have a hint for every turn."""

    def context(self, groups):
        found = [scores(t, *[f"{HINT} {n}" for n, _ in enumerate(t.turns)])[0] for g in groups for t in g.trajectories]
        return TrainerPasses(groups, [[score for [score] in found]], self.trainer, self.renderer)


@pytest.mark.parametrize(
    "name", ["it is deterministic", "permuting episodes permutes", "inputs are not", "policy is not"]
)
async def test_it_keeps_its_promises_with_hints(name, monkeypatch):
    made = [group([await played(page("page 1", "Play."), page(f"page {n}")) for n in range(3)])]
    case = Hinted(HindsightHint(), opened(), chatml())
    monkeypatch.setattr(case, "groups", lambda groups=None: made)
    [promise] = [one for one in STREAM_PROMISES if name in one.name]
    await promise.judge(case)


PRESET = Path(__file__).parents[2] / "recipes" / "presets" / "openclaw.toml"
RECIPE = """
name = "t"
env = { name = "toy" }
reward = { name = "next_state", hints = true }
estimator = { name = "teacher_kl", stream = "hindsight_hint" }
losses = [{ name = "ppo" }]
streams = [{ name = "hindsight_hint" }]
"""


def test_a_run_refuses_hints_that_no_reward_writes_and_losses_that_need_all_of_a_teacher(tmp_path):
    file = tmp_path / "r.toml"
    file.write_text(RECIPE)
    assert load(file).recipe.stages[0].streams == (HindsightHint(),)
    for table in ('{ name = "next_state" }', '{ name = "native" }', '{ name = "overlong" }'):
        file.write_text(RECIPE.replace('{ name = "next_state", hints = true }', table))
        with pytest.raises(ConfigError, match=r"HindsightHint reads a text 'hint' .* no reward writes: .*hints = true"):
            load(file)
    file.write_text(
        RECIPE.replace(
            '{ name = "next_state", hints = true }',
            '{ name = "overlong", base = { name = "next_state", hints = true } }',
        )
    )
    load(file)
    recorded = 'env = { name = "toy" }\nrecord = { streams = [{ name = "hindsight_hint" }] }\n'
    file.write_text(f'name = "t"\n{recorded}estimator = {{ name = "grpo" }}\nlosses = [{{ name = "ppo" }}]\n')
    with pytest.raises(ConfigError, match="HindsightHint reads a text 'hint'"):
        load(file)
    file.write_text(RECIPE.replace('[{ name = "ppo" }]', '[{ name = "distill" }]'))
    with pytest.raises(ConfigError, match="Distill needs the stream 'teacher'"):
        load(file)
    file.write_text(RECIPE.replace('"hindsight_hint" }]', '"hindsight_hint", model = "big" }]'))
    with pytest.raises(ConfigError, match="HindsightHint asks the model 'big', but there are"):
        load(file)


def test_the_preset_has_both_signals_or_either_alone():
    def only(*overrides: str) -> Any:
        [stage] = load(PRESET, overrides).recipe.stages
        return stage

    by_turn = Reinforce(discount=0.0, baseline="none")
    both = only()
    assert both.estimator == TeacherKL(stream="hindsight_hint", base=by_turn)
    assert both.streams == (HindsightHint(), RefLogprobs())
    assert both.losses == (PPO(clip_low=0.2, clip_high=0.28), KL(coef=0.02))
    table = "estimator={name='reinforce', discount=0.0, baseline='none'}"
    votes = only(table, "streams=[{name='ref_logprobs'}]", "reward.hints=false")
    assert (votes.estimator, votes.streams, votes.losses) == (by_turn, (RefLogprobs(),), both.losses)
    reward = load(PRESET, ("reward.coef=0.0",)).recipe.reward
    assert reward == NextState(judged_by="model", model="judge", votes=3, temperature=0.6, hints=True, coef=0.0)
