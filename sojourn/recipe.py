"""What a config may say: the schema of a recipe, as frozen dataclasses of components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from sojourn import config
from sojourn.agents.plain import Plain
from sojourn.batch.weigh import Aggregate
from sojourn.credit.grpo import GRPO
from sojourn.errors import ConfigError
from sojourn.optim import Optim
from sojourn.registry import FOLDER, SOME, STRING, Kind, Range, Text, build, construct, nearest, shown
from sojourn.render.auto import Auto
from sojourn.rewards.native import Native
from sojourn.rollout.runner import Rollout, worlds_of
from sojourn.rollout.slots import Slots
from sojourn.tasks.cycle import Cycle
from sojourn.types import SamplingParams

NAME = Text(r"[A-Za-z0-9._-]{1,64}", "1 to 64 of the characters a-z, A-Z, 0-9, '-', '_' and '.'")
STAGE = Text(
    rf"(?!before$|evaluation){NAME.pattern}",
    f"{NAME.description}, neither 'before' nor beginning with 'evaluation', as evaluations are called",
)
OWN = frozenset({"entropy", "critic", "top"})  # what a loss is given by its own pass
MODEL = Text(r"[^\0]+", "the name of a model")
REVISION = Text(r"|[A-Za-z0-9][\w./-]{0,199}", "a commit hash, tag or branch of a hub model, or nothing")


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters on every linear layer of the decoder (Hu et al. 2021, arXiv:2106.09685)."""

    rank: Annotated[int, Range(1)] = 16
    alpha: Annotated[float, Range(above=0)] = 32.0


@dataclass(frozen=True, kw_only=True)
class Model:
    """`name`: smollm2, gemma3-270m, tiny, a folder, a GGUF file, or a hub name. `dtype` is what matrix products are
    computed in ("auto": bf16 where the processor has instructions for it, else fp32); trained weights are kept in fp32
    in any case. Without `lora` all weights are trained. `revision` is the commit, tag or branch of a hub model ("": its
    main branch); which commit that was is recorded, and a run goes on with that commit alone."""

    name: Annotated[str, MODEL] = "smollm2"
    revision: Annotated[str, REVISION] = ""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    lora: Lora | None = None
    weights: str = ""  # a run folder whose newest checkpoint to start from


@dataclass(frozen=True, kw_only=True)
class Sampling:
    max_tokens: Annotated[int, Range(1)] = 32  # per turn
    temperature: Annotated[float, Range(0)] = 1.0
    top_p: Annotated[float, Range(above=0, most=1)] = 1.0
    top_k: Annotated[int, Range(0)] = 0
    min_p: Annotated[float, Range(0, 1)] = 0.0
    stop_tokens: tuple[Annotated[int, Range(0)], ...] = ()  # besides the end of a turn
    stop_strings: tuple[Annotated[str, STRING], ...] = ()

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


def _steeper() -> Optim:
    return Optim(lr=1e-4)


@dataclass(frozen=True, kw_only=True)
class Critic:
    """What predicts the return from each state: a head on the policy's last hidden states, or with `model` on those of
    a model of its own with the same tokenizer, trained whole or by `lora`. `hidden` is the width of the head's inner
    layer (0: it is linear). What `optim` moves is the critic's own; a head on the policy moves the policy's weights
    too, with the policy's optimiser, unless `detach` keeps its gradient from them."""

    model: str = ""
    revision: Annotated[str, REVISION] = ""  # of `model`, where it comes from a hub
    lora: Lora | None = None
    hidden: Annotated[int, Range(0)] = 0
    detach: bool = False
    optim: Optim = field(default_factory=_steeper)

    def __post_init__(self) -> None:
        if self.model and self.detach:
            raise ValueError("detach keeps a head from the policy's weights, and with a model of its own it has none")
        if (self.lora or self.revision) and not self.model:
            raise ValueError("lora and revision are for a critic's own model, and critic.model names none")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A fixed panel: the first `tasks` of the split (all, where it has fewer), `samples` plays each: as many as the
    greatest k of pass@k. `every` steps also inside a stage (0: only between stages). `temperature = 0` is greedy."""

    tasks: Annotated[int, Range(1)] = 64
    samples: Annotated[int, Range(1)] = 1
    split: Annotated[str, SOME] = "test"
    temperature: Annotated[float, Range(0)] = 1.0
    top_p: Annotated[float, Range(above=0, most=1)] = 1.0
    every: Annotated[int, Range(0)] = 0


@dataclass(frozen=True, kw_only=True)
class Record:
    """Where and what is kept. `checkpoint_every` counts steps (0: only at the end of a stage); the last `keep` of
    them stay until their stage ends, and the weights that it ended with always.

    `drift_groups` of each step's groups are scored by the weights that the stage began with, and how far the policy
    has gone is recorded as `drift`, its KL from there (0: not measured). The metric `kl` is the KL between the policy
    that sampled and the one that trained: 0 on-policy. By its `tags` a run is found among others.

    With every token its weight is kept, and what the stage's streams said of it; `streams` are computed to be kept and
    looked at alone, such as entropy.
    """

    folder: Annotated[str, FOLDER] = "runs"
    checkpoint_every: Annotated[int, Range(0)] = 10
    keep: Annotated[int, Range(1)] = 2
    drift_groups: Annotated[int, Range(0)] = 0
    tags: tuple[Annotated[str, SOME], ...] = ()
    streams: Annotated[tuple[Any, ...], Kind("stream")] = ()
    sinks: Annotated[tuple[Any, ...], Kind("sink")] = ()


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One pass of the loop: where groups come from, how they are credited, and what is minimised."""

    name: Annotated[str, STAGE] = "train"
    steps: Annotated[int, Range(0)] = 10
    groups: Annotated[Any, Kind("groups")] = field(default_factory=Slots)
    filters: Annotated[tuple[Any, ...], Kind("filter")] = ()
    estimator: Annotated[Any, Kind("estimator")] = field(default_factory=GRPO)
    losses: Annotated[tuple[Any, ...], Kind("loss")] = ()
    streams: Annotated[tuple[Any, ...], Kind("stream")] = ()
    aggregate: Aggregate = field(default_factory=Aggregate)
    minibatches: Annotated[int, Range(1, 1024)] = 1
    optim: Optim = field(default_factory=Optim)

    def __post_init__(self) -> None:
        if not self.losses:
            raise ValueError("no losses: give at least one, such as losses = [{name = 'ppo'}]")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    name: Annotated[str, NAME]
    env: Annotated[Any, Kind("env")]
    stages: tuple[Stage, ...]
    seed: Annotated[int, Range(0, below=2**63)] = 0
    model: Model = field(default_factory=Model)
    critic: Critic | None = None
    backend: Annotated[Any, Kind("backend")] = field(default_factory=lambda: _default_backend())
    renderer: Annotated[Any, Kind("renderer")] = field(default_factory=Auto)
    agent: Annotated[Any, Kind("agent")] = field(default_factory=Plain)
    sampling: Sampling = field(default_factory=Sampling)
    rollout: Rollout = field(default_factory=Rollout)
    reward: Annotated[Any, Kind("reward")] = field(default_factory=Native)
    curriculum: Annotated[Any, Kind("curriculum")] = field(default_factory=Cycle)
    evaluation: Evaluation = field(default_factory=Evaluation)
    record: Record = field(default_factory=Record)
    unverified: str = ""  # of a preset whose paper nobody has read: what could be read instead


def _default_backend() -> Any:
    return build("backend", {"name": "torch"}).value


class Resolved(NamedTuple):
    recipe: Recipe
    table: dict[str, Any]  # complete: reading it gives the same recipe
    origins: Mapping[str, str]  # by dotted path; what is not here is a default


SHARED, OWN_KEYS = "shared", "own"
STAGE_KEYS = tuple(f.name for f in fields(Stage) if f.name != "name")


def resolve(tables: config.Tables) -> Resolved:
    """A recipe from merged tables. Keys of a stage at the top level are the defaults of every stage."""
    data = dict(tables.data)
    shared = {key: data.pop(key) for key in STAGE_KEYS if key in data}
    listed = data.pop("stages", None)
    if listed is None:
        listed = [{"name": "train"}]
    if not isinstance(listed, list) or not all(isinstance(item, Mapping) for item in listed):
        raise ConfigError(f"stages = {shown(listed)}: expected an array of tables, [[stages]]")
    if not listed:
        raise ConfigError("stages = []: a recipe needs at least one stage, [[stages]]")
    merged = [_merged(shared, own) for own in listed]
    called = [_called(number, stage) for number, stage in enumerate(merged)]
    config.refuse_unused(shared, merged, called, tables)
    stages = [construct(Stage, m.data, f"stages.{name}") for name, m in zip(called, merged, strict=True)]
    names = [stage.value.name for stage in stages]
    if len(set(names)) < len(names):
        raise ConfigError(f"stages have the names {', '.join(names)}: give each its own")
    _known_tables(data)
    built = construct(Recipe, {**data, "stages": []}, "")
    recipe = built.value.__class__(
        **{f.name: getattr(built.value, f.name) for f in fields(Recipe) if f.name != "stages"},
        stages=tuple(stage.value for stage in stages),
    )
    check_needs(recipe)
    return Resolved(recipe, {**built.table, "stages": [stage.table for stage in stages]}, _origins(tables, merged))


def _known_tables(data: Mapping[str, Any]) -> None:
    known = [f.name for f in fields(Recipe)] + list(STAGE_KEYS) + [config.PARENT]
    for key in data:
        if key not in known:
            raise ConfigError(f"unknown key '{key}': {nearest(key, known)}")


def _merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> config.Tables:
    """A stage's own keys over those that all stages share."""
    merged = config.Tables()
    merged.merge(shared, SHARED)
    merged.merge(own, OWN_KEYS)
    return merged


def _origins(tables: config.Tables, stages: Sequence[config.Tables]) -> dict[str, str]:
    """The origin of each value of the resolved recipe that is not a default."""
    found = {path: origin for path, origin in tables.origins.items() if path.partition(".")[0] not in STAGE_KEYS}
    for number, stage in enumerate(stages):
        for path, whose in stage.origins.items():
            own = f"stages.{number}.{path}"
            found[own] = tables.origins.get(path if whose == SHARED else own, "")
    return found


def _called(number: int, stage: config.Tables) -> str:
    """The stage's name, or its number where it has no name that a path can hold."""
    name = stage.data.get("name")
    return name if isinstance(name, str) and STAGE.holds(name) else str(number)


def check_needs(recipe: Recipe) -> None:
    """Refuses a stage whose estimator or losses need what nothing provides, and a critic that nothing asks."""
    for stage in recipe.stages:
        streams = {stream.provides for stream in stage.streams}
        provided = streams | getattr(stage.estimator, "gives", frozenset())
        for part in (stage.estimator, *stage.losses):
            own = OWN if part in stage.losses else frozenset()
            for need in sorted(part.needs - provided - own):
                raise ConfigError(f"stage '{stage.name}': {type(part).__name__} needs {_remedy(stage, need)}")
        if len(streams) < len(stage.streams):
            raise ConfigError(f"stage '{stage.name}': two streams provide the same: keep one of each")
        _check_follows(stage)
        _check_columns(stage)
        _check_size(stage, recipe.env)
        wanted = frozenset().union(stage.estimator.needs, *(loss.needs - OWN for loss in stage.losses))
        for stream in stage.streams:
            if stream.provides not in wanted:
                raise ConfigError(
                    f"stage '{stage.name}': nothing uses the stream '{stream.provides}': remove it, or name "
                    "it in record.streams to look at"
                )
    _check_critic(recipe)
    _check_recorded(recipe)
    _check_room(recipe)


def beside(record: Record, stage: Stage) -> list[Any]:
    """The streams that are recorded, but not needed to train."""
    return [stream for stream in record.streams if stream.provides not in {own.provides for own in stage.streams}]


def _check_recorded(recipe: Recipe) -> None:
    """Streams that are only looked at must not change what is trained: none that learns, nor asks a critic."""
    for stream in recipe.record.streams:
        if hasattr(stream, "learn") or _asks_critic(stream):
            raise ConfigError(
                f"record.streams: {type(stream).__name__} learns or asks a critic: give it to a stage that uses it"
            )
    if len({stream.provides for stream in recipe.record.streams}) < len(recipe.record.streams):
        raise ConfigError("record.streams: two of them provide the same: keep one of each")


def _remedy(stage: Stage, need: str) -> str:
    if need == "targets":
        return (
            f"an estimator that says what a critic should have said, which {type(stage.estimator).__name__} does not: "
            "use one such as gae, or remove the loss"
        )
    return f"the stream '{need}', which nothing provides: add streams = [{{name = '{need}'}}]"


def _check_critic(recipe: Recipe) -> None:
    """A critic must be asked, and there for those who ask it; and trained, or it says 0 for ever."""
    asks = [(s, part) for s in recipe.stages for part in (*s.streams, *s.losses) if _asks_critic(part)]
    if recipe.critic is None and asks:
        stage, part = asks[0]
        raise ConfigError(f"stage '{stage.name}': {type(part).__name__} needs a critic: add a table [critic]")
    if recipe.critic is not None and not asks:
        raise ConfigError("critic: no stage asks it: remove the table, or use an estimator such as gae with loss value")
    if (
        asks
        and not recipe.model.weights
        and not any("critic" in loss.needs for s in recipe.stages for loss in s.losses)
    ):
        stage, part = asks[0]
        raise ConfigError(
            f"stage '{stage.name}': {type(part).__name__} reads a critic that nothing trains: add losses = [{{name = "
            "'value'}]"
        )


def _check_room(recipe: Recipe) -> None:
    """Refuses turns that fill a whole context."""
    most = getattr(recipe.backend, "max_context", None)
    if most is not None and recipe.sampling.max_tokens >= most:
        raise ConfigError(
            f"sampling.max_tokens = {recipe.sampling.max_tokens} leaves no room for a prompt in backend.max_context = "
            f"{most}: lower the one, or raise the other"
        )


def _asks_critic(part: Any) -> bool:
    return getattr(part, "critic", False) or "critic" in getattr(part, "needs", ())


def _check_columns(stage: Stage) -> None:
    """Refuses two losses of a kind that makes columns of the step: the second's would take the first's place."""
    made = [type(loss).__name__ for loss in stage.losses if hasattr(loss, "columns")]
    if twice := [name for name in made if made.count(name) > 1]:
        raise ConfigError(
            f"stage '{stage.name}': losses has {twice[0]} twice, whose columns would be the same: keep one"
        )


def _check_size(stage: Stage, env: Any) -> None:
    """Refuses groups whose credit would be 0, as there is nothing in them to compare an episode with, and more
    minibatches than there are trajectories."""
    size, least = getattr(stage.groups, "size", None), getattr(stage.estimator, "least_size", 1)
    if size is not None and size < least:
        raise ConfigError(
            f"stage '{stage.name}': {type(stage.estimator).__name__} compares the episodes of a group, and of groups "
            f"of {size} learns nothing: expected groups of at least {least}, or an estimator such as reinforce"
        )
    if not stage.groups.live or size is None:
        return
    seats = max(len(getattr(world, "seats", ("agent",))) for world in worlds_of(env))
    if stage.minibatches > (most := stage.groups.width * size * seats):
        raise ConfigError(
            f"stage '{stage.name}': minibatches = {stage.minibatches}, but a step has {most} trajectories: expected at "
            "most one for each"
        )


def _check_follows(stage: Stage) -> None:
    """Refuses a loss that would be wrong for tokens of older weights, where a stage has such tokens."""
    lag = getattr(stage.groups, "max_lag", 0)
    for loss in stage.losses:
        follows = getattr(loss, "follows", frozenset({"lag", "updates"}))
        name = type(loss).__name__
        if lag and "lag" not in follows:
            raise ConfigError(
                f"stage '{stage.name}': {name} is right for samples of the present weights alone, but groups.max_lag = "
                f"{lag} gives older ones: use ppo, or losses = [{{name = 'importance', base = {{...}}}}]"
            )
        if stage.minibatches > 1 and "updates" not in follows:
            raise ConfigError(
                f"stage '{stage.name}': {name} is right for samples of the present weights alone, but after the first "
                f"of {stage.minibatches} minibatches they have changed: use ppo, or minibatches = 1"
            )


def load(path: Path, overrides: Sequence[str] = ()) -> Resolved:
    return resolve(config.read(path, overrides))
