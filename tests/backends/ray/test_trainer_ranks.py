"""Several ranks train as one process does: whatever they divide, whatever is lost of them."""

import os
import signal
import sys
import time
from concurrent.futures import Future
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from made import batch as made_batch
from made import group, sample, trajectory
from test_ray_trainer import NAME, OPTIM, Sent, alone, asked, files, ranked, require_same, step

from sojourn.backends.torch.backend import Torch
from sojourn.batch import Aggregate, share, to_batch
from sojourn.errors import ConfigError, ModelError, RankError
from sojourn.losses.distill import Distill
from sojourn.losses.entropy import Entropy
from sojourn.losses.nll import NLL
from sojourn.losses.papers.st_ppo import STPPO
from sojourn.losses.ppo import PPO
from sojourn.losses.value import Value
from sojourn.models.spec import Critic, Lora, Model
from sojourn.types import Batch, Credit

ray = pytest.importorskip("ray")
from sojourn.backends.ray.ranks import Ranks  # noqa: E402

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the ranks cannot import tests
MODEL = Model(name=NAME, dtype="fp32")
LARGE = Torch(device="cpu", token_budget=4096)


def gradients(rank) -> dict[str, np.ndarray]:
    """Returns the gradients in a rank, by name, after those of all were added up; the first rank keeps the sum."""
    from sojourn.backends.torch.trainer import shards

    trainer = rank._trainers[0]
    trainer._add_up()
    own = {name: p.grad for name, p in trainer.parameters.items() if p.grad is not None}
    found = {name: shards.full(gradient).numpy().copy() for name, gradient in own.items()}
    for parameter in trainer.parameters.values() if rank._rank and not trainer.passes.sharded else ():
        parameter.grad = None
    return found


def is_sharded(rank) -> bool:
    """Returns whether a rank holds a part of each weight alone."""
    from torch.distributed.tensor import DTensor

    return all(isinstance(p, DTensor) for p in rank._trainers[0].parameters.values())


class Team:
    """Ranks that are kept for several tests, each of which loads a model anew."""

    def __init__(self, count: int) -> None:
        self.sent = Sent()
        self.trainer = ranked(MODEL, None, self.sent, LARGE, count)

    def anew(
        self,
        model: Model = MODEL,
        critic: Critic | None = None,
        torch_: Torch = LARGE,
        shard: bool = False,
        context: int = 1,
    ):
        def load(rank) -> None:
            from sojourn.backends.torch.trainer.team import Together

            rank._team = Together(rank._team._device, sharded=shard, context=context)
            rank._load(torch_, model, 0, critic)

        self.told(load)
        assert all(said == shard for said in self.told(is_sharded))
        self.trainer.begin(OPTIM, 5, reference=True)
        return self.trainer

    def told(self, work):
        return ray.get([actor.__ray_call__.remote(work) for actor in self.trainer._ranks.actors])


SHARD = pytest.mark.parametrize("shard", [False, True], ids=["whole", "sharded"])


@pytest.fixture(scope="module")
def two(cluster):
    made = Team(2)
    yield made
    made.trainer.close()


@pytest.fixture(scope="module")
def four(cluster):
    made = Team(4)
    yield made
    made.trainer.close()


def one(model: Model = MODEL, critic: Critic | None = None, torch_: Torch = LARGE):
    made = alone(model, critic, Sent(), torch_)
    made.begin(OPTIM, 5, reference=True)
    return made


def grads(made) -> dict[str, np.ndarray]:
    return {name: p.grad.numpy() for name, p in made.parameters.items() if p.grad is not None}


def halves(rng: np.random.Generator) -> Batch:
    """Two groups of equal size, each with a prompt of its own that its episodes share."""
    groups = []
    for slot in range(2):
        prompt = rng.integers(0, 97, 30)
        turns = [trajectory(rng, turns=1, vocabulary=97).turns[0] for _ in range(3)]
        made = [replace(t, context=prompt, sample=sample(rng.integers(0, 97, 6).tolist(), -2.0)) for t in turns]
        groups.append(group([replace(trajectory(rng), turns=(turn,)) for turn in made], slot))
    credit = [[Credit.uniform(t, float(rng.normal())) for t in g.trajectories] for g in groups]
    return to_batch(groups, credit, {}, aggregate=Aggregate())


@SHARD
@pytest.mark.parametrize("activation_gb", [8.0, 1e-9])  # the second has every layer computed again
async def test_two_ranks_have_the_gradients_of_one_process_to_the_bit(two, shard, activation_gb):
    """Where parts are the same."""
    batch = halves(np.random.default_rng(0))
    tokens = len(share.merge(batch).tokens)
    parted = Torch(device="cpu", token_budget=tokens // 2)  # one process computes the same two parts
    here, there = one(torch_=parted), two.anew(torch_=replace(LARGE, activation_gb=activation_gb), shard=shard)
    losses = [PPO(), Entropy()]
    said = [dict(await made.forward_backward(batch, losses)) for made in (there, here)]
    require_same(*said)
    assert said[0]["computed_tokens"] == tokens
    for found in two.told(gradients):
        require_same(found, grads(here))
    here.close()


def forked(rng: np.random.Generator) -> Batch:
    made = [trajectory(rng, parents=[-1, 0, 0, 1, 1]), trajectory(rng, turns=9), trajectory(rng, turns=1)]
    groups = [group(made), group([trajectory(rng, turns=n) for n in (1, 2, 7)], 1)]
    credit = [[Credit.uniform(t, float(rng.normal())) for t in g.trajectories] for g in groups]
    return to_batch(groups, credit, {}, aggregate=Aggregate())


def single(rng: np.random.Generator) -> Batch:
    return made_batch(rng, groups=1, size=1)


def nothing(rng: np.random.Generator) -> Batch:
    """Of no sequence anything is learned."""
    batch = made_batch(rng)
    return replace(batch, advantages=np.zeros_like(batch.advantages))


BATCHES = [made_batch, halves, forked, single, nothing]


@SHARD
@pytest.mark.parametrize("budget", [40, 4096])
@pytest.mark.parametrize("make", BATCHES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("size", ["two", "four"])
async def test_ranks_have_the_gradients_of_one_process(size, make, budget, shard, request):
    """For trees that share prefixes, unequal lengths, fewer sequences than ranks, and none."""
    batch, bounded = make(np.random.default_rng(1)), Torch(device="cpu", token_budget=budget)
    team = request.getfixturevalue(size)
    here, there = one(torch_=bounded), team.anew(torch_=bounded, shard=shard)
    for losses in ([PPO()], [NLL()]):
        said = [dict(await made.forward_backward(batch, losses)) for made in (there, here)]
        said[0]["computed_tokens"] = said[1]["computed_tokens"] = 0  # what several ranks share counts in each
        assert said[0] == pytest.approx(said[1], rel=1e-5, abs=1e-6)
    first, *others = team.told(gradients)
    for other in others:
        require_same(first, other)
    require_near(first, grads(here))
    require_near((await there.forward(batch))._asdict(), (await here.forward(batch))._asdict(), 1e-5)
    said = [dict(await made.optim_step()) for made in (there, here)]
    assert said[0] == pytest.approx(said[1], rel=1e-5)
    here.close()


def few(rng: np.random.Generator) -> Batch:
    """Fewer tokens than ranks."""
    turn = replace(trajectory(rng, turns=1).turns[0], context=np.array([5]), sample=sample([7], -2.0))
    groups = [group([replace(trajectory(rng), turns=(turn,))])]
    return to_batch(groups, [[Credit.uniform(t, 0.7) for t in groups[0].trajectories]], {}, aggregate=Aggregate())


STREAMS = ("targets", "values", "explained_variance")
SHARED = {
    "two": ("two", 2, LARGE, False),
    "two, sharded, layers computed again": ("two", 2, replace(LARGE, activation_gb=1e-9), True),
    "two of four, small parts": ("four", 2, replace(LARGE, token_budget=40), False),
    "two of four, sharded": ("four", 2, LARGE, True),
    "four, without kernels": ("four", 4, replace(LARGE, kernel=False, activation_gb=1e-9), False),
    "four, sharded, small parts": ("four", 4, replace(LARGE, token_budget=40), True),
}


@pytest.mark.parametrize("way", SHARED)
async def test_ranks_that_share_each_sequence_have_the_gradients_of_one_process(way, request):
    size, context, torch_, shard = SHARED[way]
    critic = Critic(hidden=4)
    here, there = one(critic=critic), request.getfixturevalue(size).anew(MODEL, critic, torch_, shard, context)
    for make in (*BATCHES, few):
        batch = make(np.random.default_rng(1))
        batch = replace(batch, streams={name: np.ones(len(batch), np.float32) for name in STREAMS})
        said = [dict(await made.forward_backward(batch, [PPO(), Value(), Entropy()])) for made in (there, here)]
        said[0]["computed_tokens"] = said[1]["computed_tokens"] = 0  # as above
        assert said[0] == pytest.approx(said[1], rel=1e-4, abs=1e-5), make.__name__
        asked = {"critic": True, "columns": ["top_token", "top_logprob"]}
        found = [await made.forward(batch, **asked) for made in (there, here)]
        require_near(*(one._asdict() for one in found), 1e-4)
        require_near(*(dict(one.columns) for one in found), 1e-4)
        states = [await made.hidden_states(batch, np.array([0, len(batch) - 1])) for made in (there, here)]
        require_near(*({"states": one} for one in states), 1e-4)
    for found in request.getfixturevalue(size).told(gradients):
        require_near(found, grads(here), 1e-5)
    here.close()


async def test_layers_with_windows_are_shared_too(two, tmp_path):
    """Through transformers' own layers."""
    model, batch = Model(name=saved(tmp_path, "gemma3"), dtype="fp32"), halves(np.random.default_rng(2))
    here, there = one(model), two.anew(model, context=2)
    for made in (here, there):
        await made.forward_backward(batch, [NLL()])
    require_near(two.told(gradients)[0], grads(here), 1e-4)
    here.close()


def require_near(found, expected, tolerance: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    for name in found.keys() - {"columns"}:
        scale = np.abs(expected[name]).max() or 1.0
        assert np.abs(found[name] - expected[name]).max() <= tolerance * max(scale, 1e-2), name


@pytest.mark.parametrize(
    ("shard", "context"), [(False, 1), (True, 1), (False, 2), (True, 2)], ids=["whole", "sharded", "shared", "both"]
)
@pytest.mark.parametrize(
    ("lora", "critic"),
    [(None, Critic(hidden=4)), (Lora(rank=2), Critic(model=NAME, hidden=4, lora=Lora(rank=2)))],
    ids=["whole", "adapters"],
)
async def test_ranks_learn_what_one_process_learns(two, lora, critic, shard, context):
    """Over several steps: critic, adapters, further objectives, reference model, teacher, copy."""
    model = Model(name=NAME, dtype="fp32", lora=lora)
    bounded = Torch(device="cpu", token_budget=60)
    here, there = one(model, critic, bounded), two.anew(model, critic, bounded, shard, context)
    other = Model(name="tiny:layers=2,hidden=64")
    bounded.open_model("other", other, None, 3, model, here)
    there.open_model("other", other, None, 3, model)
    losses = [STPPO(level="token", floor=1e-6), Value(), Entropy()]
    for number in range(3):
        batch = step(number)
        batch = replace(batch, logprobs=batch.logprobs - 3)
        said = []
        for made in (there, here):
            passed = dict(await made.forward_backward(batch, losses))
            await made.forward(batch)  # which must leave no weights behind that the step then misses
            said.append({**passed, **await made.optim_step()})
        assert said[0]["left_out_norm"] > 0
        said[0]["computed_tokens"] = said[1]["computed_tokens"]
        assert said[0] == pytest.approx(said[1], rel=1e-3, abs=1e-5)
    for options in ({"critic": True, "columns": ["top_logprob"]}, {"reference": True}):
        found = [(await made.forward(batch, **options))._asdict() for made in (there, here)]
        require_near(*found, 1e-4)
    for made in (there, here):
        before = await made.forward(batch)
        assert not np.array_equal((await made.forward(batch, reference=True)).logprobs, before.logprobs)
        require_same((await made.forward(batch))._asdict(), before._asdict())
    scores = [await made.ask_models(asked(batch, "reference", "other")) for made in (there, here)]
    require_near(*[{"asked": one} for one in scores], 1e-4)
    taught = replace(batch, streams={**batch.streams, "teacher": scores[1]})
    said = [dict(await made.forward_backward(taught, [Distill()])) for made in (there, here)]
    assert said[0]["reverse_kl"] == pytest.approx(said[1]["reverse_kl"], rel=1e-3)
    require_near(two.told(gradients)[0], grads(here), 1e-3)
    copies = [made.copy(OPTIM, reference=True) for made in (there, here)]
    for made in copies:
        await made.forward_backward(batch, [PPO()])
        await made.optim_step()
    require_near(*(made.state()["weights"] for made in copies), 1e-2)
    require_near(*[(await made.forward(batch, reference=True))._asdict() for made in copies], 1e-4)
    kept = copies[0].state()
    await copies[0].optim_step()
    copies[0].restore(kept)
    require_same(copies[0].state(), kept)
    for made in copies:
        made.close()
    await there.publish()
    await here.publish()
    require_near({n: w.numpy() for n, w in two.sent.weights.items()}, published(here), 1e-2)
    here.close()


def published(trainer) -> dict[str, np.ndarray]:
    from sojourn.backends.torch.models.lora import merged

    return {name: weight.numpy() for name, weight in merged(trainer.model)}


@SHARD
async def test_a_checkpoint_of_some_ranks_goes_on_with_others(two, four, shard, tmp_path):
    """Four save, two and one go on, bit for bit; and one saves, two go on."""
    critic, batch = Critic(hidden=4), step(0)
    losses = [PPO(), Value()]

    async def learn(made) -> None:
        await made.forward_backward(batch, losses)
        await made.optim_step()

    first = four.anew(critic=critic, shard=shard)
    await learn(first)
    first.save(made_folder(tmp_path / "four"))
    state = first.state()
    others = [two.anew(critic=critic, shard=shard), one(critic=critic)]
    for number, made in enumerate(others):
        made.load(tmp_path / "four")
        made.restore(state)
        made.save(made_folder(tmp_path / f"again{number}"))
        require_same(files(tmp_path / f"again{number}"), files(tmp_path / "four"))
        assert made.state() == state
    await learn(others[1])
    others[1].save(made_folder(tmp_path / "one"))
    others[0].load(tmp_path / "one")
    others[0].save(made_folder(tmp_path / "two"))
    require_same(files(tmp_path / "two"), files(tmp_path / "one"))
    others[1].close()


def made_folder(path):
    path.mkdir()
    return path


def everything(rank) -> dict[str, np.ndarray]:
    """Returns all weights and buffers of a rank's trainer, gathered where they are sharded, the critic's included."""
    return whole_tensors(rank._trainers[0])


def whole_tensors(trainer) -> dict[str, np.ndarray]:
    from sojourn.backends.torch.trainer import shards

    own = trainer.critic
    parts = [trainer.model, *(part for part in (own and own.head, own and own.model) if part is not None)]
    tensors = {
        f"{n} {k}": t for n, part in enumerate(parts) for k, t in (*part.named_parameters(), *part.named_buffers())
    }
    return {name: shards.full(tensor.detach()).numpy().copy() for name, tensor in tensors.items()}


def saved(folder, family: str = "qwen2") -> str:
    """Saves a model in several files: one with biases, a head of its own, and rows that ranks do not share evenly."""
    from engine_models import build

    build(family, seed=4).save_pretrained(folder, max_shard_size="20KB")
    return str(folder)


ADAPTERS = Lora(rank=2)
LOADED = {
    "from scratch": (MODEL, None),
    "folder": (Model(name="FOLDER", dtype="fp32"), Critic(hidden=4)),
    "adapters": (Model(name=NAME, dtype="fp32", lora=ADAPTERS), Critic(model=NAME, hidden=4, lora=ADAPTERS)),
    "critic": (MODEL, Critic(model="tiny:layers=2,hidden=64", hidden=4)),
}


@pytest.mark.parametrize("which", LOADED)
@pytest.mark.parametrize("size", ["two", "four"])
def test_shards_hold_the_weights_of_one_process_to_the_bit(size, which, tmp_path, request):
    """Though no rank reads the whole model."""
    model, critic = LOADED[which]
    if model.name == "FOLDER":
        model = replace(model, name=saved(tmp_path))
    team, here = request.getfixturevalue(size), one(model, critic)
    there = team.anew(model, critic, shard=True)
    for found in team.told(everything):
        require_same(found, whole_tensors(here))
    here.close()
    there.copy(OPTIM, reference=False)
    assert team.told(copies_are_the_same) == [True] * len(team.trainer._ranks.actors)


def copies_are_the_same(rank) -> bool:
    policy, copied = (rank._trainers[n].model.named_parameters() for n in (0, rank._made))
    return all((a.to_local() == b.to_local()).all() for (_, a), (_, b) in zip(policy, copied, strict=True))


def memory(rank) -> dict[str, int]:
    """Returns what torch gave out at most while a rank loaded its part of a model, and what that part is, in bytes."""
    from torch.profiler import ProfilerActivity, profile

    rank._trainers.clear()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        rank._trainers[0] = rank._fresh(rank._loaded())
    changes = [one.nbytes() for one in profiled.profiler.kineto_results.events() if one.name() == "[memory]"]
    parameters = [p for _, p in rank._trainers[0].model.named_parameters()]
    return {
        "peak": max(accumulate(changes)),
        "held": sum(p.to_local().nbytes for p in parameters),
        "whole": sum(4 * p.numel() for p in parameters),
        "largest": max(4 * p.numel() for p in parameters),
    }


@pytest.mark.parametrize("name", ["tiny:layers=6,hidden=128", "FOLDER"])
@pytest.mark.parametrize("size", ["two", "four"])
def test_a_rank_never_holds_more_than_its_part_and_a_tensor(size, name, tmp_path, request):
    team = request.getfixturevalue(size)
    team.anew(Model(name=saved(tmp_path, "llama") if name == "FOLDER" else name, dtype="fp32"), shard=True)
    for found in team.told(memory):
        assert found["held"] < 0.6 * found["whole"]
        assert found["peak"] <= found["held"] + 1.2 * found["largest"]


def gathered_at_once(rank) -> dict[str, int]:
    """Returns how many elements of weights are whole at once while they are published, at most, and in all."""
    from torch.distributed.tensor import DTensor

    model, most = rank._trainers[0].model, 0
    for _ in rank._trainers[0].weights():
        most = max(most, sum(p.numel() for p in model.parameters() if not isinstance(p, DTensor)))
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in model.get_decoder().layers]
    whole = sum(p.numel() for p in model.parameters())
    return {"most": most, "layer": max(sizes), "rest": whole - sum(sizes)}


def test_weights_are_published_layer_by_layer(two):
    two.anew(Model(name="tiny:layers=4,hidden=64", dtype="fp32"), shard=True)
    for found in two.told(gathered_at_once):
        assert found["most"] == max(found["layer"], found["rest"])


class Reading:
    """Loads a checkpoint in a rank, and counts the bytes that it reads."""

    def __init__(self, folder) -> None:
        self.folder = folder

    def __call__(self, rank) -> int:
        from sojourn.backends.torch.models import stored

        read, original = [0], stored._rows

        def counted(*args):
            rows = original(*args)
            read[0] += rows.nbytes
            return rows

        stored._rows = counted
        try:
            rank._trainers[0].load(self.folder)
        finally:
            stored._rows = original
        return read[0]


async def test_ranks_read_their_parts_of_a_checkpoint_alone(two, tmp_path):
    made = two.anew(critic=Critic(hidden=4), shard=True)
    await made.forward_backward(step(0), [PPO(), Value()])
    await made.optim_step()
    made.save(made_folder(tmp_path / "kept"))
    size = sum(path.stat().st_size for path in (tmp_path / "kept").iterdir())
    assert all(read < 0.55 * size for read in two.told(Reading(tmp_path / "kept")))


class Loading:
    """Loads a model in a rank, and returns what that raises."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, rank) -> str:
        from sojourn.backends.torch.backend import Torch
        from sojourn.models.spec import Model

        rank._team.sharded = True
        try:
            rank._load(Torch(device="cpu"), Model(name=self.name, dtype="fp32"), 0, None)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""


@pytest.mark.parametrize("change", ["lacks", "has another shape"])
def test_files_that_do_not_fit_are_refused_by_all_ranks_alike(two, change, tmp_path):
    from safetensors.torch import load_file, save_file

    file = tmp_path / "model"
    saved(file)
    part = next(path for path in sorted(file.glob("*.safetensors")) if "model.norm.weight" in load_file(path))
    weights = load_file(part)
    if change == "lacks":
        del weights["model.norm.weight"]
    else:
        weights["model.norm.weight"] = weights["model.norm.weight"][1:].clone()
    save_file(weights, part, {"format": "pt"})
    with pytest.raises(ModelError) as caught:
        one(Model(name=str(file), dtype="fp32"))
    said = two.told(Loading(str(file)))
    assert said == [f"ModelError: {caught.value}"] * 2
    assert "1 weights do not come from" in said[0]
    assert "(model.norm.weight)" in said[0]


@SHARD
async def test_errors_of_all_ranks_are_raised_as_they_are(two, shard):
    made, batch = two.anew(shard=shard), made_batch(np.random.default_rng(0))
    made.begin(OPTIM, 5, reference=False)
    with pytest.raises(ValueError, match="no reference weights"):
        await made.forward(batch, reference=True)
    with pytest.raises(ConfigError, match="no model 'unknown' is open"):
        await made.ask_models({"unknown": batch})
    assert (await made.forward_backward(batch, [NLL()]))["nll"] > 0  # they still agree
    await made.optim_step()


class Counting(NLL):
    """Keeps how many tokens it was asked about."""

    seen = 0

    def __call__(self, out, batch):
        object.__setattr__(self, "seen", self.seen + len(batch.weight))
        return super().__call__(out, batch)

    def state(self):
        return {"seen": self.seen}

    def restore(self, state):
        object.__setattr__(self, "seen", state["seen"])


async def test_what_a_loss_keeps_of_a_pass_comes_back_or_is_refused(two):
    batch, loss = made_batch(np.random.default_rng(0), groups=1, size=3), Counting()
    made = ranked(MODEL, None, Sent())
    made.begin(OPTIM, 5, reference=False)
    for times in (1, 2):
        await made.forward_backward(batch, [PPO(), loss])
        assert loss.seen == times * np.count_nonzero(batch.weight)
    made.close()
    with pytest.raises(ConfigError, match=r"\(Counting\), each rank by its part of the step alone"):
        await two.anew().forward_backward(batch, [loss])


class Failing(NLL):
    """Fails in one of two ranks."""

    def __call__(self, out, batch):
        import torch

        if torch.distributed.get_rank() == 1:
            raise ArithmeticError("this loss is broken")
        return super().__call__(out, batch)


async def test_an_error_of_one_rank_alone_is_raised_and_ends_all(cluster, monkeypatch):
    """The others wait for a share that never comes."""
    monkeypatch.setattr("sojourn.backends.ray.ranks.GRACE_S", 2.0)
    made = ranked(MODEL, None, Sent(), LARGE, 2)
    made.begin(OPTIM, 5, reference=False)
    with pytest.raises(ArithmeticError, match="this loss is broken"):
        await made.forward_backward(made_batch(np.random.default_rng(0)), [Failing()])
    with pytest.raises(RankError, match=r"rank 1 of 2 .* failed, and the ranks no longer agree$"):
        made.state()
    made.close()


class Slow(NLL):
    """Takes long in one of the ranks, which it tells by a file."""

    def __call__(self, out, batch):
        time.sleep(1.0)
        return super().__call__(out, batch)


def test_a_rank_with_other_code_is_told_and_ended(cluster, monkeypatch):
    monkeypatch.setattr("sojourn.backends.ray.cluster.code_digest", lambda: "0123")
    with pytest.raises(ConfigError, match=r"^trainer rank 0 of 1 \(process .*\): the nodes have another version"):
        ranked(MODEL, None, Sent())


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_rank_that_dies_ends_all_with_one_sentence(cluster, victim):
    import asyncio

    made = ranked(MODEL, None, Sent(), LARGE, 2)
    made.begin(OPTIM, 5, reference=False)
    batch = made_batch(np.random.default_rng(0))
    pids = [process.pid for process in made._ranks.processes]

    async def train() -> None:
        while True:
            await made.forward_backward(batch, [Slow()])
            await made.optim_step()

    training = asyncio.create_task(train())
    await asyncio.sleep(2.5)
    began = time.monotonic()
    os.kill(pids[victim], signal.SIGKILL)
    with pytest.raises(RankError, match=rf"^trainer rank {victim} of 2 \(process {pids[victim]} on .*\) died$"):
        await training
    assert time.monotonic() - began < 30
    with pytest.raises(RankError, match=f"rank {victim} of 2"):
        made.state()
    made.close()
    for _ in range(100):
        if not any(map(is_running, pids)):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("a rank is left")


def test_a_rank_that_ray_ends_for_want_of_memory_says_so():
    ended: Future = Future()
    ended.set_exception(ray.exceptions.OutOfMemoryError("of many lines"))
    with pytest.raises(RankError, match="rank 0 of 0 was ended by Ray, as its node had too little memory"):
        Ranks([])._settled([ended])


def is_running(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
