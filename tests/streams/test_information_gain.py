"""The policy's belief in the right answer after each turn, beside a plain pass of transformers over each prompt."""

import copy
from dataclasses import dataclass, replace

import numpy as np
import pytest
from engine_models import logprobs_of
from made import chatml, sample
from made_world import Odd

from sojourn.backends.torch.models import loading
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.config.toml import Tables
from sojourn.errors import ConfigError
from sojourn.streams.information_gain import InformationGain
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.tasks import Generated
from sojourn.train.group_checks import check_groups
from sojourn.train.resolve import resolve
from sojourn.types import Ending, Episode, Group, Message, Role, Task, Trajectory, Turn

MODEL = loading.load("tiny:layers=2,hidden=64").model
PARENTS = ((-1, 0, 1), (-1, -1), (-1, 0, 0), (-1,), ())  # a line, two windows, a fork, a single turn, none


async def nowhere(weights, version):
    pass


def played(parents, asked) -> Trajectory:
    """Turns by the real renderer: what stands before the first differs by the task alone."""
    renderer, turns = chatml(), []
    for number, parent in enumerate(parents):
        told = (Message(Role.USER, f"{asked} {('room', 'north', 'lamp')[number]}"),)
        grown = None if parent < 0 else renderer.extend(turns[parent].sample, told)
        context = (grown or renderer.open(told)).tokens
        said = renderer.encode_reply(Message(Role.ASSISTANT, f"look {number * 7}"))
        turns.append(Turn(parent, context, sample(said), None))
    return Trajectory("agent", tuple(turns), Ending.DONE)


def group(data, slot=0, parents=PARENTS) -> Group:
    task = Task("made", data, slot, "train")
    trajectories = [played(p, f"Say {slot}") for p in parents]
    return Group(slot, task, tuple(Episode(f"{slot}-{n}", task, (t,)) for n, t in enumerate(trajectories)))


async def gains(groups, **fields):
    trainer = TorchTrainer(ModelPasses(copy.deepcopy(MODEL), bf16=False, token_budget=200), nowhere)
    return await InformationGain(**fields)(TrainerPasses(groups, [], trainer, chatml()))


def encoded(text):
    return chatml().codec.tokenizer.encode(text, add_special_tokens=False)


def beliefs(trajectory, before, answer, after):
    """The mean log-probability of the answer's tokens before each turn: every prompt by itself, by transformers."""
    end = encoded("<|im_end|>")
    reply = np.array([*encoded(before), *encoded(answer), *encoded(after), *end])
    place = slice(len(encoded(before)), len(encoded(before)) + len(encoded(answer)))
    prompts = [trajectory.prompt(turn) for turn in range(len(trajectory.turns))]
    return np.array([logprobs_of(MODEL, prompt, reply)[place].mean() for prompt in prompts])


def by_turn(found):
    return [[[float(turn.sum()) for turn in turns] for turns in of] for of in found]


@pytest.mark.parametrize("form", ["prob", "logprob"])
async def test_gains_are_differences_of_what_a_plain_pass_believes(form):
    groups = [
        group({"answer": "red door"}),
        group({"answer": ["forty two", "42"], "size": 3}, 1),
        group({"answer": 42}, 2),
    ]
    found = by_turn(await gains(groups, belief=form))
    for some, right, of in zip(groups, ("red door", "forty two", "42"), found, strict=True):
        for trajectory, given in zip(some.trajectories, of, strict=True):
            means = beliefs(trajectory, "<answer>\n", right, "\n</answer>")
            believed = np.exp(means) if form == "prob" else means
            expected = [*np.diff(believed), 0.0] if len(believed) else []
            assert given == pytest.approx(expected, rel=1e-3, abs=1e-7)
            assert sum(given) == pytest.approx(believed[-1] - believed[0] if len(believed) else 0, rel=1e-3, abs=1e-7)
    assert max(abs(x) for of in found for turns in of for x in turns) > (1e-4 if form == "prob" else 1e-2)


async def test_a_gain_stands_at_the_last_token_of_its_turn():
    [[turns]] = await gains([group({"answer": "red"}, parents=((-1, 0, 1),))])
    assert [len(turn) for turn in turns] == [len(t.sample.tokens) for t in played((-1, 0, 1), "").turns]
    assert all(not turn[:-1].any() for turn in turns)
    assert turns[0][-1] != 0 != turns[1][-1]
    assert turns[2][-1] == 0


@pytest.mark.parametrize(
    ("before", "answer", "after", "parts"),
    [
        ("It is ", "red", " now", ("It is", " red", " now")),  # the blank is the answer's token's
        ("red", " red", " red", ("red", " red", " red")),  # as they are at both sides of it
        ("", "red door", "", ("", "red door", "")),
        ("<answer>", "red", "</answer>", ("<answer>", "red", "</answer>")),
    ],
)
async def test_the_answer_is_its_own_tokens(before, answer, after, parts):
    made = group({"right": answer}, parents=((-1, 0, 1),))
    [[found]] = by_turn(
        await gains([made], task_key="right", answer_prefix=before, answer_suffix=after, belief="logprob")
    )
    means = beliefs(made.trajectories[0], *parts)
    assert found == pytest.approx([*np.diff(means), 0.0], rel=1e-3, abs=1e-5)


async def test_a_step_that_has_nothing_to_compare_takes_no_pass():
    found = await InformationGain()(TrainerPasses([group({"answer": "red"}, parents=((-1,), ()))], [], None, chatml()))
    assert by_turn(found) == [[[0.0], []]]
    assert await InformationGain()(TrainerPasses([], [], None, chatml())) == []


@pytest.mark.parametrize("data", [{"goal": "red"}, {}, {"answer": []}, {"answer": None}, {"answer": {"red": 1}}])
async def test_a_task_without_an_answer_is_refused(data):
    with pytest.raises(ConfigError, match=r"task of 'made' has data\['answer'\] = .*: expected its right answer"):
        await gains([group({"answer": "red"}), group(data, 1)])


async def test_an_answer_of_no_token_is_refused():
    with pytest.raises(ConfigError, match="'', a right answer of 'made', has no token"):
        await gains([group({"answer": ""})])


@dataclass(frozen=True, kw_only=True)
class Asking(Odd):
    """Its tasks have an answer."""

    def tasks(self, split):
        return Generated(lambda index: Task("asking", {"answer": "yes"}, index, split), self.count)


async def test_a_world_without_answers_is_refused_before_anything_is_played():
    data = {"name": "all", "env": {"name": "toy"}, "estimator": {"name": "igpo"}, "losses": [{"name": "ppo"}]}
    recipe = resolve(Tables({**data, "streams": [{"name": "information_gain"}]})).recipe
    with pytest.raises(
        ConfigError, match=r"stage 'train': InformationGain reads 'answer' in the data .* those of toy have "
    ):
        await check_groups(recipe)
    await check_groups(replace(recipe, env=Asking()))
