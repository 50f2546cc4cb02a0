"""A teacher behind an endpoint teaches what the same model beside the policy does, where as many of its tokens are told
apart; and what a server cannot say is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from made import group, trajectory
from vllm_server import VLLM, serving

from sojourn.abilities import Compared
from sojourn.backends.torch.backend import Torch
from sojourn.backends.torch.models import loading
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.batch import Aggregate, to_batch
from sojourn.errors import ConfigError, InfrastructureError, ModelError
from sojourn.losses.distill import Distill
from sojourn.models.prompt_scorer import PromptScorer
from sojourn.models.spec import Model, ServedModel
from sojourn.optim import Optim
from sojourn.streams.teacher import Teacher
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.types import Batch, Credit, Group
from tests.envs.loopback import Raw, answered

NAME = "tiny:layers=1,hidden=64"
LOSSES = [
    Distill(top_k=8),
    Distill(top_k=8, divergence="forward_kl"),
    Distill(top_k=8, divergence="jsd", beta=0.3),
    Distill(top_k=1),
    Distill(top_k=20),
]
IDS = ["reverse_kl", "forward_kl", "jsd", "top_1", "all_that_there_are"]


async def nowhere(weights, version):
    pass


def passes(seed: int, **bounds) -> ModelPasses:
    return ModelPasses(loading.load(NAME, "fp32", seed).model, bf16=False, **{"token_budget": 100_000, **bounds})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a server of the model that is the local teacher too."""
    with serving(VLLM.of(NAME, 1)) as (address, _):
        yield address


async def trainer(url: str, backend: Torch | None = None, top_k: int = 20, **bounds) -> TorchTrainer:
    """A trainer beside which the same teacher is open twice, and another one."""
    made = TorchTrainer(passes(0, **bounds), nowhere)
    made.begin(Optim(lr=1e-2), 10, reference=True)
    made.teachers.frozen |= {"here": passes(1), "other": passes(2)}
    scorer = PromptScorer.of("there", ServedModel(base_url=url, model="tiny", top_k=top_k))
    await (backend or Torch()).open_endpoint("there", scorer, Model(name=NAME), made)
    return made


def steps() -> list[Group]:
    """Forked and linear trajectories, in two tasks."""
    rng = np.random.default_rng(0)
    groups = [group([trajectory(rng, parents=[-1, 0, 0, 1]), trajectory(rng)]), group([trajectory(rng)], 1)]
    return [groups[0], replace(groups[1], task=replace(groups[1].task, tags=("far",)))]


async def taught(made: TorchTrainer, teacher: Teacher, groups: list[Group] | None = None) -> Batch:
    groups = groups or steps()
    streams = {"teacher": await teacher(TrainerPasses(groups, [], made))}
    credit = [[Credit.uniform(t, 1.0) for t in g.trajectories] for g in groups]
    return to_batch(groups, credit, streams, aggregate=Aggregate())


async def gradient(made: TorchTrainer, teacher: Teacher, loss) -> tuple[torch.Tensor, dict[str, float]]:
    metrics = await made.forward_backward(await taught(made, teacher), [loss])
    found = torch.cat([p.grad.flatten() for p in made.trainable.values() if p.grad is not None])
    for parameter in made.trainable.values():
        parameter.grad = None
    return found, dict(metrics)


async def test_the_log_probabilities_are_those_of_the_same_model_here(url):
    made = await trainer(url)
    here, there = [(await taught(made, Teacher(model=name))).streams["teacher"] for name in ("here", "there")]
    np.testing.assert_allclose(there, here, atol=1e-5)
    assert there.min() < -3
    alone = await trainer(url, top_k=0)
    np.testing.assert_allclose((await taught(alone, Teacher(model="there"))).streams["teacher"], here, atol=1e-5)


@pytest.mark.parametrize("token_budget", [40, 100_000])
@pytest.mark.parametrize("loss", LOSSES, ids=IDS)
async def test_divergences_and_gradients_are_those_of_the_same_model_here(url, loss, token_budget):
    made = await trainer(url, token_budget=token_budget)
    here, expected = await gradient(made, Teacher(model="here"), loss)
    there, found = await gradient(made, Teacher(model="there"), loss)
    assert here.norm() > 0.01
    torch.testing.assert_close(there, here, atol=2e-6, rtol=1e-3)
    assert found == pytest.approx(expected, rel=1e-4)


async def test_each_task_has_its_own_teacher_here_or_there(url):
    loss = Distill(top_k=8)
    made = await trainer(url)
    found, _ = await gradient(made, Teacher(model="there", of={"far": "other"}), loss)
    turned, _ = await gradient(made, Teacher(model="other", of={"far": "there"}), loss)
    for gradient_there, teacher in (
        (found, Teacher(model="here", of={"far": "other"})),
        (turned, Teacher(model="other", of={"far": "here"})),
    ):
        expected, _ = await gradient(made, teacher, loss)
        torch.testing.assert_close(gradient_there, expected, atol=2e-6, rtol=1e-3)
    assert (found - turned).norm() > 0.01


async def test_steps_go_the_same_way(url):
    """Two updates, the second on weights that the first changed."""
    ends = []
    for name in ("here", "there"):
        made = await trainer(url)
        for _ in range(2):
            batch = await taught(made, Teacher(model=name))
            await made.forward_backward(batch, [Distill(top_k=8)])
            await made.optim_step()
        ends.append(torch.cat([p.detach().flatten() for p in made.trainable.values()]))
    begin = torch.cat([p.detach().flatten() for p in passes(0).model.parameters()])
    torch.testing.assert_close(ends[1], ends[0], atol=1e-4, rtol=1e-3)
    assert (ends[0] - begin).abs().max() > 1e-2


async def test_every_sequence_is_one_request():
    """Cut after the last token that is asked about; sequences of other teachers are not sent."""
    with serving(VLLM.of(NAME, 1)) as (url, asked):
        made = await trainer(url)
        before = len(asked)
        groups = steps()
        batch = TrainerPasses(groups, [], made).flat[0]
        await Teacher(model="there")(TrainerPasses(groups, [], made))
        sent = [request["prompt"] for request in asked[before:]]
        assert sorted(sent) == sorted(
            batch.tokens[a:b].tolist() for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)
        )
        before = len(asked)
        await Teacher(model="other", of={"far": "there"})(TrainerPasses(groups, [], made))
        assert [request["prompt"] for request in asked[before:]] == [batch.tokens[batch.offsets[-2] :].tolist()]


def another(temperature: float = 1.0, **changes) -> list[Group]:
    made = trajectory(np.random.default_rng(0), turns=1)
    turns = tuple(replace(t, sample=replace(t.sample, temperature=temperature, **changes)) for t in made.turns)
    return [group([replace(made, turns=turns)])]


async def test_tokens_that_a_server_cannot_score_are_refused(url):
    made = await trainer(url)
    with pytest.raises(
        ConfigError, match=r"models.there is to score tokens .* at temperature 0.7, but .* temperature 1"
    ):
        await taught(made, Teacher(model="there"), another(0.7))
    count = len(another()[0].trajectories[0].turns[0].sample.tokens)
    with pytest.raises(ConfigError, match=r"that were sampled among few \(choices\)"):
        await taught(made, Teacher(model="there"), another(allowed=(np.array([1, 2]), *[None] * (count - 1))))
    await taught(made, Teacher(model="other"), another(0.7))


async def test_a_server_of_another_vocabulary_is_refused():
    server = VLLM.of(NAME, 1)
    real = server.tokenizer

    class Swapped:
        def decode(self, tokens: list[int]) -> str:
            return real.decode([{400: 401, 401: 400}.get(token, token) for token in tokens])

    server.tokenizer = Swapped()
    with (
        serving(server) as (url, asked),
        pytest.raises(ModelError, match=r"models.there = 'tiny' has not the policy's vocabulary, .* use a model of"),
    ):
        await trainer(url)
    assert [request["path"] for request in asked] == ["/detokenize"]


async def test_a_server_that_removes_spaces_is_not():
    server = VLLM.of(NAME, 1)
    real = server.tokenizer

    class Tidy:
        def decode(self, tokens: list[int]) -> str:
            return real.decode(tokens).replace(" t", "t")

        def encode(self, text: str) -> list[int]:
            return real.encode(text)

    server.tokenizer = Tidy()
    with serving(server) as (url, _):
        await trainer(url)


async def test_a_server_that_reads_less_or_gives_fewer_tokens_is_refused():
    with serving(VLLM.of(NAME, 1, max_model_len=2048)) as (url, _):
        with pytest.raises(ModelError, match=r"reads at most 2047 tokens .* --max-model-len 2049 or more, or lower"):
            await trainer(url)
        made = await trainer(url, Torch(max_context=2047))
        assert made.context_of("there") == 2047
    with (
        serving(VLLM.of(NAME, 1)) as (url, _),
        pytest.raises(ModelError, match=r"of 21, which is greater .* --max-logprobs 21 or more, or lower models.t"),
    ):
        await trainer(url, top_k=21)


async def test_a_context_that_grew_too_long_is_refused(url):
    made = await trainer(url)
    made.teachers.served["there"] = made.teachers.served["there"]._replace(max_context=5)
    with pytest.raises(ConfigError, match=r"is to read \d+ tokens, .* but reads at most 5"):
        await taught(made, Teacher(model="there"))


async def test_tokens_beyond_the_policys_vocabulary_count_among_all_others(url):
    """As rows of a padded vocabulary, of which a teacher of another size may have more."""
    made = await trainer(url)
    served = made.teachers.served["there"]
    made.teachers.served["there"] = served._replace(vocabulary=400)
    await taught(made, Teacher(model="there"))
    [scored] = made.teachers.scored
    tokens, logprobs = scored.said
    assert (tokens < 400).all()
    assert (tokens == -1).any()
    known = tokens >= 0
    assert (known[:, :-1] | ~known[:, 1:]).all()  # they come first
    assert (logprobs.masked_fill(~known, -99).diff(dim=1) <= 0).all()
    metrics = await made.forward_backward(await taught(made, Teacher(model="there")), [Distill(top_k=20)])
    assert np.isfinite(metrics["reverse_kl"])
    made.teachers.served["there"] = served._replace(vocabulary=1)
    with pytest.raises(ConfigError, match="none of its 20 likeliest tokens is below 1, the length of the policy's"):
        await taught(made, Teacher(model="there"))


async def test_a_server_that_fails_stops_the_step():
    server = VLLM.of(NAME, 1)
    down = False
    with answered(lambda path, body: Raw(400, "{}") if down else server(path, body)) as (url, _):
        made = await trainer(url)
        down = True
        with pytest.raises(InfrastructureError, match=r"the model models.there at http.* answered 400"):
            await taught(made, Teacher(model="there"))


class Whole:
    """A loss that reads whole distributions."""

    column = "whole"

    def compare(self, policy: torch.Tensor, teacher: torch.Tensor) -> Compared:
        raise AssertionError("there are none")


async def test_a_loss_that_needs_whole_distributions_is_refused(url):
    made = await trainer(url)
    batch = await taught(made, Teacher(model="there"))
    where = np.flatnonzero(batch.weight)
    [compute] = made.teachers.compare([Whole()], batch, torch.device("cpu"), where).values()  # type: ignore[list-item]
    linear = made.passes.decoder.base.get_output_embeddings()
    query = made.passes.query(batch, where, batch.tokens[where])
    with pytest.raises(TypeError, match="Whole compares whole distributions"):
        compute(torch.zeros(len(where), 64), linear, query)
