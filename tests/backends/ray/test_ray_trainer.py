"""One rank does, bit for bit, what a trainer in the driver's own process does."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from made import batch as made_batch
from vllm_server import VLLM, serving

from sojourn.abilities import Copies, HasHiddenStates, ScoresTokens
from sojourn.backends.torch.backend import Torch
from sojourn.losses.distill import Distill
from sojourn.losses.papers.epo import EPO
from sojourn.losses.ppo import PPO
from sojourn.losses.value import Value
from sojourn.models.prompt_scorer import PromptScorer
from sojourn.models.spec import Critic, Lora, Model, ServedModel
from sojourn.optim import Optim
from sojourn.types import Batch

ray = pytest.importorskip("ray")
from ray_actors import make_ranks  # noqa: E402

from sojourn.backends.ray.ranks import Ranks  # noqa: E402
from sojourn.backends.ray.trainer import RayTrainer  # noqa: E402
from sojourn.backends.ray.trainer_rank import writable  # noqa: E402

NAME = "tiny:layers=1,hidden=64"
OTHER = "tiny:layers=2,hidden=64"
TORCH = Torch(device="cpu", token_budget=100)
OPTIM = Optim(lr=1e-2, clip_norm=0.5)


@pytest.fixture(scope="module")
def url():
    """The address of a server of a teacher."""
    with serving(VLLM.of(NAME, 1)) as (address, _):
        yield address


class Sent:
    """Keeps what was published last."""

    def __init__(self):
        self.weights, self.version = {}, 0

    async def here(self, weights, version):
        self.weights, self.version = {name: weight.clone() for name, weight in weights}, version

    async def packed(self, ref, version):
        await self.here(ray.get(ref).unpack(), version)


def alone(model: Model, critic: Critic | None, sent: Sent, torch_=TORCH):
    return torch_.open_trainer(torch_.load(model, 0), model, 0, sent.here, critic=critic)


def ranked(model: Model, critic: Critic | None, sent: Sent, torch_=TORCH, count: int = 1) -> RayTrainer:
    ranks = Ranks(make_ranks(count, torch_.threads))
    ranks.open(torch_, model, 0, critic)
    return RayTrainer(ranks, sent.packed)


def step(seed: int) -> Batch:
    """With targets for the critic."""
    batch, rng = made_batch(np.random.default_rng(seed)), np.random.default_rng(seed)
    streams = {name: rng.normal(size=len(batch)).astype(np.float32) for name in ("targets", "values")}
    streams |= Value().columns(replace(batch, streams=streams))
    return replace(batch, streams=streams)


def require_same(one, other, where=""):
    """Compares answers of any kind to the bit."""
    assert type(one) is type(other), where
    if isinstance(one, np.ndarray | torch.Tensor):
        assert one.dtype == other.dtype, where
        assert np.array_equal(np.asarray(one), np.asarray(other)), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            require_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, tuple):
        for n, parts in enumerate(zip(one, other, strict=True)):
            require_same(*parts, f"{where}[{n}]")
    else:
        assert one == other, where


def asked(batch: Batch, *models: str) -> dict[str, Batch]:
    """Asks one model after the other about a sequence each."""
    return {
        name: replace(
            batch, weight=np.where(batch.sequence % len(models) == number, batch.weight, 0).astype(np.float32)
        )
        for number, name in enumerate(models)
    }


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


async def told(made, folder) -> dict[str, object]:
    """Everything that a trainer says over three steps, two stages, a copy, and a checkpoint that it goes back to."""
    said: dict[str, object] = {}
    losses = [PPO(), Value(), EPO(coef=0.1)]
    made.begin(OPTIM, 5, reference=True)
    for number in range(3):
        batch = step(number)
        batch = replace(batch, streams={**batch.streams, **losses[2].columns(batch)})
        said[f"pass {number}"] = dict(await made.forward_backward(batch, losses))
        said[f"again {number}"] = dict(await made.forward_backward(step(9), losses[:2]))
        said[f"step {number}"] = dict(await made.optim_step())
        said[f"version {number}"] = await made.publish()
    said["losses"] = losses[2].state()
    other = np.roll(batch.tokens, 3)
    said["forward"] = await made.forward(batch, critic=True, columns=["top_token", "top_logprob"], tokens=other)
    said["reference"] = await made.forward(batch, reference=True)
    said["states"] = await made.hidden_states(batch, np.array([3, 1, 3]), reference=True)
    for models in (("reference", "other"), ("there", "policy"), ("there",)):
        said[f"asked {models}"] = scores = await made.ask_models(asked(batch, *models))
        known = {"teacher": scores, "policy_logprobs": (await made.forward(batch)).logprobs}
        taught = replace(batch, streams={**batch.streams, **known})
        said[f"distilled {models}"] = dict(await made.forward_backward(taught, [Distill(top_k=8)]))
    said["contexts"] = [made.context_of(model) for model in ("policy", "reference", "other", "there")]
    said["vocabulary"] = made.vocabulary
    folder.mkdir()
    (folder / "weights").mkdir()
    made.save(folder / "weights", weights_only=True)
    said["weights"] = files(folder / "weights")
    (folder / "all").mkdir()
    made.save(folder / "all")
    said["all"], kept = files(folder / "all"), made.state()
    said["state"] = dict(kept)
    said["after"] = dict(await made.optim_step())
    made.load(folder / "all")
    made.restore(kept)
    said["resumed"] = await made.forward(batch)
    copied = made.copy(OPTIM, reference=True)
    said["copied pass"] = dict(await copied.forward_backward(batch, [PPO()]))
    said["copied step"] = dict(await copied.optim_step())
    said["copied state"] = dict(copied.state())
    said["copied forward"] = await copied.forward(batch)
    said["copied version"] = await copied.publish()
    copied.restore(said["copied state"])
    said["copied again"] = await copied.optim_step()
    copied.close()
    made.begin(OPTIM, 2, reference=False)
    said["stage"] = [dict(await made.forward_backward(batch, [PPO()])), dict(await made.optim_step())]
    return said


@pytest.mark.parametrize(
    ("lora", "critic"),
    [(None, Critic(hidden=4)), (Lora(rank=2), Critic(model=NAME, hidden=4, lora=Lora(rank=2)))],
    ids=["whole", "adapters"],
)
async def test_one_rank_is_the_trainer_itself(cluster, url, lora, critic, tmp_path):
    model, sent = Model(name=NAME, dtype="fp32", lora=lora), [Sent(), Sent()]
    here, there = alone(model, critic, sent[0]), ranked(model, critic, sent[1])
    try:
        assert isinstance(there, Copies)
        assert isinstance(there, HasHiddenStates)
        assert isinstance(there, ScoresTokens)
        assert not isinstance(there.copy(OPTIM, reference=False), Copies)
        scorer = PromptScorer.of("there", ServedModel(base_url=url, model="tiny", top_k=8))
        for made in (here, there):
            await TORCH.open_endpoint("there", scorer, model, made)
        TORCH.open_model("other", Model(name=OTHER), None, 3, model, here)
        there.open_model("other", Model(name=OTHER), None, 3, model)
        require_same(await told(there, tmp_path / "there"), await told(here, tmp_path / "here"))
        require_same(sent[1].weights, sent[0].weights)
        assert sent[0].version == sent[1].version == 3
    finally:
        here.close()
        there.close()


def test_arrays_that_lie_in_rays_memory_are_copied(cluster):
    """Where they would be written, as moments are, the process would end."""
    found = ray.get(ray.put({"moments": [np.ones(200_000), 3], "said": np.zeros(2)}))
    assert not found["moments"][0].flags.writeable
    copied = writable(found)
    copied["moments"][0][:] = 2
    assert (found["moments"][0] == 1).all()
    assert copied["moments"][1] == 3
