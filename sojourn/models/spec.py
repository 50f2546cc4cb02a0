"""The config tables of models: the policy's weights, the critic, and how tokens are sampled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from sojourn.config.fields import NONEMPTY, TEMPERATURE, Range, Text
from sojourn.optim import Optim
from sojourn.types import SamplingParams

MODEL = Text(r"[^\0]+", "the name of a model")
REVISION = Text(r"|[A-Za-z0-9][\w./-]{0,199}", "a commit hash, tag or branch of a hub model, or nothing")


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters on every linear layer of the decoder (Hu et al. 2021, arXiv:2106.09685). Experts whose weights
    are fused into one tensor are no such layers and stay as they are; Mixtral, where they are most of the model, is
    refused. In bf16 samplers add them to what the base's layers return, as the trainer does; vLLM, and parts compiled
    by `backend.compile`, have them merged into the weights, where small updates are lost by rounding."""

    rank: Annotated[int, Range(1)] = 16
    alpha: Annotated[float, Range(above=0)] = 32.0


@dataclass(frozen=True, kw_only=True)
class Model:
    """The policy's model. `name` is smollm2, gemma3-270m, tiny, a folder, a GGUF file, or a hub name. `dtype` is the
    type in which matrix products are computed ("auto": bf16 where the processor has instructions for it, else fp32);
    trained weights are kept in fp32 in any case. Without `lora` all weights are trained. `revision` is the commit, tag
    or branch of a hub model ("": its main branch); the commit is recorded, and the run resumes only with that
    commit."""

    name: Annotated[str, MODEL] = "smollm2"
    revision: Annotated[str, REVISION] = ""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    lora: Lora | None = None
    weights: str = ""  # a run: training starts from its best checkpoint, or another: runs/x@120, runs/x@last


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A model behind an OpenAI-compatible server. `base_url` is its address, and `model` the name that the server has
    for it. `key` names the environment variable that holds the API key. At most `concurrency` requests are sent at
    once; `timeout_s` bounds each, with its retries.

    Rewards ask it for text, by chat completions, and so does each turn in a seat that it takes: with what the seat has
    observed as messages, at the temperature of the policy's sampling, for at most `max_tokens` tokens (0: as many as
    the policy may sample in a turn). The run stops when `token_budget` tokens, of questions and answers, or
    `cost_budget` in money are spent (0: no limit); `prompt_price` and `sampled_price` are what a million tokens cost.
    Answers are kept in the run folder, and nothing is asked twice; `answers` names an earlier run, whose answers are
    taken where the same was asked. A reply without text is no such answer: it counts in what is spent, and is asked for
    again where the same is asked.

    Streams such as `teacher` ask it for the log-probabilities of a prompt's tokens, which servers of vLLM's API give:
    for the `top_k` likeliest tokens in each place (0: for the prompt's own alone), of which vLLM gives at most 20
    unless it is started with more. Prices and budgets do not count these."""

    base_url: Annotated[str, Text(r"https?://\S+", "an address such as http://127.0.0.1:8000/v1")]
    model: Annotated[str, MODEL]
    key: Annotated[str, Text(r"|[A-Z][A-Z0-9_]*", "the name of an environment variable, or nothing")] = ""
    top_k: Annotated[int, Range(0)] = 20
    max_tokens: Annotated[int, Range(0)] = 0
    concurrency: Annotated[int, Range(1)] = 16
    timeout_s: Annotated[float, Range(above=0)] = 600.0
    prompt_price: Annotated[float, Range(0)] = 0.0
    sampled_price: Annotated[float, Range(0)] = 0.0
    token_budget: Annotated[int, Range(0)] = 0
    cost_budget: Annotated[float, Range(0)] = 0.0
    answers: str = ""

    def __post_init__(self) -> None:
        if self.cost_budget and not (self.prompt_price or self.sampled_price):
            raise ValueError(
                f"cost_budget = {self.cost_budget:g} without prices, so that it would never be spent: set prompt_price "
                "and sampled_price to what a million tokens cost"
            )


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """Earlier versions of the policy, which take seats beside it. The weights that the run begins with are kept in the
    run folder, and those after each `every` steps of training. A play may meet the newest `keep` of them; the model
    that it meets is called by the name of the table and the step, such as past@40.

    `choose` says how one is drawn for each group of plays: "uniform"; "latest"; or by prioritised fictitious self-play
    (Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent reinforcement learning", methods):
    "pfsp_hard", in proportion to (1 - w)^2 of the policy's win rate w against each, or "pfsp_variance", in proportion
    to w (1 - w). A play is won if the policy's rewards in it add up to more than the snapshot's; a draw counts half.
    Each win rate begins as if one play had been won and one lost, which the paper leaves open.
    """

    every: Annotated[int, Range(1)] = 20
    keep: Annotated[int, Range(1)] = 5
    choose: Literal["uniform", "latest", "pfsp_hard", "pfsp_variance"] = "uniform"


@dataclass(frozen=True, kw_only=True)
class FrozenModel:
    """A model beside the policy, such as a teacher or an opponent. `name`, `revision` and `dtype` are as in `[model]`.
    Instead of a `name` it may have `weights`, those of another run as in `[model]`: its model is then that run's,
    adapters included; the reward `reward_model` reads that run's critic. It is never trained, but by stages that name
    it among their `learners`: then of its weights all, or with `lora` its adapters. Or it has an `endpoint`, the server
    that is asked for its log-probabilities, or for text. Or it has `snapshots`, which make it a pool of the policy's
    own earlier versions."""

    name: Annotated[str, Text(r"[^\0]*", "the name of a model, or nothing")] = ""
    revision: Annotated[str, REVISION] = ""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    weights: str = ""
    endpoint: ServedModel | None = None
    snapshots: Snapshots | None = None
    lora: Lora | None = None

    def __post_init__(self) -> None:
        if self.lora is not None and not self.name:
            raise ValueError("lora without a name: a run's model has that run's adapters, if any: leave it out")
        own = f"name = '{self.name}', weights = '{self.weights}', revision = '{self.revision}', dtype = '{self.dtype}'"
        named = bool(self.name or self.revision or self.weights or self.dtype != "auto")
        if self.snapshots is not None:
            if named or self.endpoint is not None:
                raise ValueError(
                    f"snapshots with {own}, endpoint = {self.endpoint}: snapshots are of the policy's model, so "
                    "expected none of these: leave them out, or the snapshots"
                )
        elif self.endpoint is not None:
            if named:
                raise ValueError(
                    f"endpoint with {own}: the server has the model, so expected none of these: leave them out, or the "
                    "endpoint"
                )
        elif bool(self.name) == bool(self.weights):
            raise ValueError(
                f"name = '{self.name}' with weights = '{self.weights}': expected exactly one of them, the name of a "
                "model or a run such as runs/x@120 (or instead of both an endpoint, or snapshots): set the other to ''"
            )
        if self.revision and not self.name:
            raise ValueError("revision is that of a hub model, and name names none: leave it out")


@dataclass(frozen=True, kw_only=True)
class Sampling:
    max_tokens: Annotated[int, Range(1)] = 32  # per turn
    temperature: Annotated[float, TEMPERATURE] = 1.0
    top_p: Annotated[float, Range(above=0, max=1)] = 1.0
    top_k: Annotated[int, Range(0)] = 0
    min_p: Annotated[float, Range(0, 1)] = 0.0
    stop_tokens: tuple[Annotated[int, Range(0)], ...] = ()  # besides the end of a turn
    stop_strings: tuple[Annotated[str, NONEMPTY], ...] = ()

    def params(self) -> SamplingParams:
        return SamplingParams(
            self.max_tokens,
            self.temperature,
            self.top_p,
            self.top_k,
            self.min_p,
            stop_tokens=self.stop_tokens,
            stop_strings=self.stop_strings,
        )


def _critic_optim() -> Optim:
    return Optim(lr=1e-4)


@dataclass(frozen=True, kw_only=True)
class Critic:
    """A critic, which predicts the return from each state by a head on the policy's last hidden states or, with
    `model`, on those of a model of its own, which has the same tokenizer and is trained whole or by `lora`. `hidden`
    is the width of the head's inner layer (0: the head is linear). `optim` updates the critic's own weights; a head on
    the policy trains the policy's weights too, by the policy's optimiser, unless `detach` stops its gradient."""

    model: str = ""
    revision: Annotated[str, REVISION] = ""  # of `model`, where it comes from a hub
    lora: Lora | None = None
    hidden: Annotated[int, Range(0)] = 0
    detach: bool = False
    optim: Optim = field(default_factory=_critic_optim)

    def __post_init__(self) -> None:
        if self.model and self.detach:
            raise ValueError("detach keeps a head from the policy's weights, and with a model of its own it has none")
        if (self.lora or self.revision) and not self.model:
            raise ValueError("lora and revision are for a critic's own model, and critic.model names none")
