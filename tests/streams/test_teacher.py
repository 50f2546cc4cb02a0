"""What a teacher says of the policy's tokens, and what it reads that the policy does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from made import batch, chatml, group, trajectory

from sojourn.agents.plain import Plain
from sojourn.backends.torch.models import loading
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.batch import Aggregate, to_batch
from sojourn.batch.flatten import flatten, scatter
from sojourn.errors import ConfigError
from sojourn.losses.distill import Distill
from sojourn.losses.nll import NLL
from sojourn.optim import Optim
from sojourn.protocols import AgentContext
from sojourn.streams.policy_logprobs import PolicyLogprobs
from sojourn.streams.ref_logprobs import RefLogprobs
from sojourn.streams.teacher import Teacher, added, with_system
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.train.group_checks import check_groups
from sojourn.train.named_models import check_contexts
from sojourn.train.resolve import load
from sojourn.types import (
    Credit,
    Ending,
    Message,
    Observation,
    Prompt,
    Role,
    Sample,
    SamplingParams,
    Stop,
    Tool,
    Trajectory,
    Versions,
)

TEXT = "Go north."
NAME = "tiny:layers=1,hidden=64"
RECIPE = f"""
name = "t"
env = {{ name = "toy" }}
streams = [{{ name = "teacher", system = "{TEXT}" }}]
losses = [{{ name = "distill" }}]
"""


async def nowhere(weights, version):
    pass


def passes(seed: int) -> ModelPasses:
    return ModelPasses(loading.load(NAME, "fp32", seed).model, bf16=False, token_budget=1000)


async def stepped() -> TorchTrainer:
    """A trainer whose weights are no longer those of its stage's beginning, with a frozen model beside it."""
    made = TorchTrainer(passes(0), nowhere)
    made.begin(Optim(lr=1e-2), 10, reference=True)
    made.teachers.frozen["other"] = passes(1)
    rng = np.random.default_rng(5)
    await made.forward_backward(batch(rng), [NLL()])
    await made.optim_step()
    return made


class Script:
    """Samples a fixed reply, spelled byte by byte, as no tokenizer would."""

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        encode = chatml().codec.control
        tokens = [token for letter in "go north" for token in encode(letter)] + list(chatml().stops[:1])
        assert tokens[:-1] != encode("go north")
        return Sample(np.array(tokens), np.full(len(tokens), -1, np.float32), Versions(0, 0), Stop.END)

    async def score(self, prompt: Prompt) -> Any:
        raise NotImplementedError


async def played(observations: list[Observation], **options: Any) -> Trajectory:
    """The turns of the plain agent at these observations."""
    context = AgentContext(
        name="agent", renderer=chatml(), sampler=Script(), params=SamplingParams(50), max_context=4000
    )
    seat = Plain(**options).seat(context)
    for observation in observations:
        await seat.act(observation)
    return seat.finish(Ending.DONE)


def page(number: int, *system: str, tools: tuple[Tool, ...] = ()) -> Observation:
    messages = (Message(Role.USER, f"page {number}"),)
    return Observation(messages, system=tuple(Message(Role.SYSTEM, text) for text in system), tools=tools)


def flatly(values) -> np.ndarray:
    return np.concatenate([turn for g in values for t in g for turn in t])


async def test_models_are_asked_by_name():
    """Against transformers' own pass over each turn's whole context."""
    trainer = await stepped()
    forked = trajectory(np.random.default_rng(0), parents=[-1, 0, 0, -1])
    groups = [group([forked, trajectory(np.random.default_rng(1))])]
    asked = await Teacher(model="other")(TrainerPasses(groups, [], trainer))
    model = loading.load(NAME, "fp32", 1).model
    for one, turns in zip(groups[0].trajectories, asked[0], strict=True):
        for n, turn in enumerate(one.turns):
            tokens = np.concatenate([one.prompt(n), turn.sample.tokens])
            with torch.no_grad():
                logits = model(torch.from_numpy(tokens)[None]).logits[0].log_softmax(-1)
            plain = logits[np.arange(len(tokens) - len(turns[n]) - 1, len(tokens) - 1), turn.sample.tokens]
            np.testing.assert_allclose(turns[n], plain.numpy(), atol=1e-4)


async def test_each_task_has_the_teacher_of_its_world_or_tag():
    trainer = await stepped()
    trainer.teachers.frozen["third"] = passes(2)
    groups = [group([trajectory(np.random.default_rng(n))], n) for n in range(3)]
    groups[1:] = [
        replace(g, task=replace(g.task, tags=tags))
        for g, tags in zip(groups[1:], (("far",), ("far", "new")), strict=True)
    ]
    context = TrainerPasses(groups, [], trainer)
    asked = await Teacher(model="other", of={"new": "reference", "far": "third"})(context)
    for n, model in enumerate(("other", "third", "reference")):
        alone = await Teacher(model=model)(context)
        np.testing.assert_allclose(flatly([asked[n]]), flatly([alone[n]]), atol=1e-5)
    everywhere = await Teacher(model="other", of={groups[0].task.env: "third"})(context)
    np.testing.assert_allclose(flatly(everywhere), flatly(await Teacher(model="third")(context)), atol=1e-5)
    assert Teacher(of={"new": "reference", "far": "third"}).models == {"third"}


async def test_a_world_or_tag_that_no_task_has_is_refused(tmp_path):
    (tmp_path / "r.toml").write_text(RECIPE.replace('"teacher",', '"teacher", of = { toys = "reference" },'))
    with pytest.raises(
        ConfigError, match=r"Teacher names 'toys', which is neither a world nor .*: expected one of toy"
    ):
        await check_groups(load(tmp_path / "r.toml").recipe)
    (tmp_path / "r.toml").write_text(RECIPE.replace('"teacher",', '"teacher", of = { toy = "reference" },'))
    await check_groups(load(tmp_path / "r.toml").recipe)


async def test_the_policy_and_its_reference_are_models_too():
    trainer = await stepped()
    groups = [group([trajectory(np.random.default_rng(n)) for n in range(2)])]
    context = TrainerPasses(groups, [], trainer)
    policy, reference, other = [
        flatly(scatter(groups, await trainer.ask_models({name: context.flat[0]}), context.flat[1]))
        for name in ("policy", "reference", "other")
    ]
    np.testing.assert_allclose(policy, flatly(await PolicyLogprobs()(context)), atol=1e-5)
    np.testing.assert_allclose(reference, flatly(await RefLogprobs()(context)), atol=1e-5)
    assert np.abs(policy - reference).max() > 0.01
    assert np.abs(other - reference).max() > 0.01
    with pytest.raises(ConfigError, match=r"no model 'mine' is open: expected one of policy, reference, other"):
        await trainer.ask_models({"mine": context.flat[0]})


async def test_asking_leaves_the_policy_as_it_was():
    trainer = await stepped()
    before = {name: p.detach().clone() for name, p in trainer.trainable.items()}
    context = TrainerPasses([group([trajectory(np.random.default_rng(0))])], [], trainer)
    for name in ("reference", "other", "policy"):
        await trainer.ask_models({name: context.flat[0]})
    assert all(torch.equal(p, before[name]) for name, p in trainer.trainable.items())
    assert all(p.grad is None for p in trainer.teachers.frozen["other"].model.parameters())


TOOL = Tool("look", "Looks.", {"type": "object", "properties": {}})


@pytest.mark.parametrize(
    ("observations", "options"),
    [
        ([page(1, "Play."), page(2), page(3)], {}),
        ([page(1), page(2)], {}),
        ([page(1, "Play."), page(2), page(3), page(4)], {"history": "window", "turns": 2}),
        ([page(1, "Play."), page(2)], {"history": "page"}),
        ([page(1, "Play."), page(2), page(3, "Play well."), page(4)], {}),
        ([page(1, "Play.", tools=(TOOL,)), page(2)], {}),
    ],
    ids=["line", "no system message", "window", "page", "another system message", "tools"],
)
async def test_a_teacher_reads_a_text_that_the_policy_does_not(observations, options):
    before = await played(observations, **options)
    seen = with_system(group([before]), TEXT, chatml()).episodes[0].trajectories[0]
    decode = chatml().decode
    for n, turn in enumerate(before.turns):
        assert np.array_equal(seen.turns[n].sample.tokens, turn.sample.tokens)
        own, taught = decode(before.prompt(n).tolist()), decode(seen.prompt(n).tolist())
        assert TEXT not in own
        assert taught.count(TEXT) == own.count("<|im_start|>system\n") or taught.count(TEXT) == 1
        assert taught.replace(f"\n\n{TEXT}", "").replace(f"<|im_start|>system\n{TEXT}<|im_end|>\n", "") == own
    own, taught = (flatten([group([t])])[0] for t in (before, seen))
    assert len(own) < len(taught)
    assert own.turn[own.weight > 0].tolist() == taught.turn[taught.weight > 0].tolist()


async def test_the_text_changes_what_the_policy_itself_would_say():
    trainer = await stepped()
    groups = [group([await played([page(1, "Play."), page(2)])])]
    context = TrainerPasses(groups, [], trainer, chatml())
    taught = flatly(await Teacher(model="policy", system=TEXT)(context))
    seen = with_system(groups[0], TEXT, chatml())
    whole, places = flatten([seen])
    direct = flatly(scatter([seen], (await trainer.forward(whole)).logprobs, places))
    np.testing.assert_allclose(taught, direct, atol=1e-5)
    assert np.abs(taught - flatly(await PolicyLogprobs()(context))).max() > 1e-3


async def test_the_policy_learns_to_act_as_if_it_had_read_the_text():
    """From its own reference, which reads it."""
    trainer = TorchTrainer(passes(0), nowhere)
    trainer.begin(Optim(lr=3e-3), 40, reference=True)
    groups = [group([await played([page(1, "Play."), page(2)])])]
    context = TrainerPasses(groups, [], trainer, chatml())
    said = await Teacher(system=TEXT)(context)
    credit = [[Credit.uniform(t, 1.0) for t in groups[0].trajectories]]
    step = to_batch(groups, credit, {"teacher": said}, aggregate=Aggregate())
    found = []
    for _ in range(40):
        found.append((await trainer.forward_backward(step, [Distill()]))["reverse_kl"])
        await trainer.optim_step()
    assert found[0] > 1e-3
    assert found[-1] < 0.1 * found[0]
    after = flatly(await PolicyLogprobs()(TrainerPasses(groups, [], trainer)))
    before = flatly(await RefLogprobs()(TrainerPasses(groups, [], trainer)))
    assert np.abs(after - flatly(said)).mean() < 0.5 * np.abs(before - flatly(said)).mean()


async def test_a_text_that_does_not_fit_is_refused():
    trainer = await stepped()
    trainer.teachers.frozen["short"] = ModelPasses(
        loading.load(f"{NAME},context=32", "fp32", 1).model, bf16=False, token_budget=1000
    )
    groups = [group([await played([page(1, "Play.")])])]
    context = TrainerPasses(groups, [], trainer, chatml())
    with pytest.raises(ConfigError, match=r"is to read \d+ tokens, .* but reads at most 32: lower backend"):
        await Teacher(model="short", system=TEXT * 20)(context)


async def test_a_text_that_might_not_fit_is_refused_before_anything_runs(tmp_path):
    trainer = await stepped()
    own = Teacher(model="reference", system=TEXT).added_tokens(chatml())
    shown = [
        chatml().open(messages).tokens
        for messages in ([Message(Role.USER, "x")], added([Message(Role.USER, "x")], TEXT))
    ]
    assert own == len(shown[1]) - len(shown[0]) > 0
    assert Teacher().added_tokens(chatml()) == 0
    (tmp_path / "r.toml").write_text(RECIPE)
    recipe = load(tmp_path / "r.toml").recipe
    check_contexts(recipe, trainer, chatml(), 4096 - own)
    with pytest.raises(
        ConfigError, match=rf"takes {own} tokens, .* reads only {own - 1} more: set .* to at most {4096 - own}"
    ):
        check_contexts(recipe, trainer, chatml(), 4096 - own + 1)


def test_a_text_joins_the_first_system_message():
    user, system = Message(Role.USER, "go"), Message(Role.SYSTEM, "Play.")
    assert added([system, user], TEXT) == [Message(Role.SYSTEM, f"Play.\n\n{TEXT}"), user]
    assert added([user], TEXT) == [Message(Role.SYSTEM, TEXT), user]
    assert added([Message(Role.SYSTEM, ""), user], TEXT) == [Message(Role.SYSTEM, TEXT), user]


async def test_what_cannot_be_asked_is_refused():
    made = group([trajectory(np.random.default_rng(0))])
    with pytest.raises(ConfigError, match=r"turn 0: its context is not what the renderer writes"):
        with_system(made, TEXT, chatml())
    with pytest.raises(ConfigError, match="needs a renderer"):
        with_system(made, TEXT, None)
    with pytest.raises(ValueError, match="would be compared with itself"):
        Teacher(model="policy")
    with pytest.raises(ConfigError, match=r"asks a model, which object cannot do"):
        await Teacher()(TrainerPasses([made], [], object()))  # type: ignore[arg-type]
