"""The trained reward models that a run's rewards read: checks them, and opens them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sojourn.abilities import BindsTurnModel, OpensTurnModels, TurnModel, parts_of, value_models
from sojourn.composite import replaced_bases, with_bases
from sojourn.config.registry import construct
from sojourn.errors import ConfigError, RecordError
from sojourn.models.spec import Critic
from sojourn.protocols import Opened, Reward, Trainer
from sojourn.record.run import RunFolder
from sojourn.record.run_weights import NamedRun
from sojourn.searchers.search import JudgedSearch
from sojourn.sources.searched import Searched
from sojourn.streams.asked_critic import TurnValues
from sojourn.train.named_models import FoundModel, find_models
from sojourn.train.recipe import CRITIC, Recipe

REMEDY = (
    "train one by a stage with a table [critic] and the loss binary_cross_entropy or bradley_terry, and name that run"
)


def check_reward_models(recipe: Recipe) -> None:
    """Refuses rewards that read a model which has no value head, or cannot be read."""
    for name in sorted(recipe.value_models - {CRITIC}):
        model = recipe.models.get(name)
        if model is None:
            known = ", ".join(sorted({CRITIC, *recipe.models}))
            raise ConfigError(
                f"reward: it reads the model '{name}', but there are {known}: add a table [models.{name}]"
            )
        if not model.weights:
            raise ConfigError(
                f"reward: it reads models.{name}, which has no `weights`, and so no trained value head: {REMEDY} there"
            )
        if not isinstance(recipe.backend, OpensTurnModels):
            raise ConfigError(
                f"reward: {type(recipe.backend).__name__} opens no reward models: use backend = {{name = 'torch'}}"
            )
        if name in recipe.learning:
            raise ConfigError(
                f"reward: it reads models.{name}, which also learns from its own plays: give the reward a model of its "
                'own, or model = "critic"'
            )
    _check_own_critic(recipe)
    parts = (part for stage in recipe.stages for part in parts_of(stage.groups))
    agents = [recipe.agent, *(part.agent for part in parts if isinstance(part, Searched))]
    rewards = with_bases([agent.reward for agent in agents if isinstance(agent, JudgedSearch)])
    if names := [type(one).__name__ for one in rewards if value_models(one)]:
        raise ConfigError(
            f"agent.reward: {names[0]} reads a reward model, which a search does not have open: give it another reward"
        )


def _check_own_critic(recipe: Recipe) -> None:
    """Refuses a critic that is to be both a reward model and a prediction of returns."""
    if CRITIC not in recipe.value_models:
        return
    for stage in recipe.stages:
        for loss in stage.losses:
            if "targets" in loss.needs:
                raise ConfigError(
                    f"stage '{stage.name}': {type(loss).__name__} trains the critic to predict returns, but the reward "
                    "reads it: train it by binary_cross_entropy or bradley_terry alone, or give the reward a model of "
                    "another run"
                )


def reward_model_critic(name: str, weights: str, found: FoundModel) -> Critic:
    """Returns the config of the value head of a model. Raises `RecordError` where its run has none."""
    path, _ = NamedRun.parse(weights)
    table = RunFolder.read(path).config.get("critic")
    if not isinstance(table, Mapping) or found.weights is None or not (found.weights / "critic.safetensors").exists():
        raise RecordError(f"models.{name}.weights = '{weights}': these weights have no value head: {REMEDY} here")
    return construct(Critic, table, f"the critic of {path}").value


def check_reward_models_open(recipe: Recipe) -> None:
    """Refuses reward models that no run has, without loading anything."""
    _found(recipe)


@dataclass
class RewardModels:
    """Holds the reward models of a run, and the trainers that read those that are opened here, by their names."""

    models: dict[str, TurnModel] = field(default_factory=dict[str, TurnModel])
    trainers: dict[str, Trainer] = field(default_factory=dict[str, Trainer])

    def open(self, recipe: Recipe, opened: Opened) -> None:
        """Opens the models that the recipe's reward reads; its own critic is open already."""
        self.models[CRITIC] = TurnValues(opened.trainer)
        backend = recipe.backend
        for name, (found, critic) in _found(recipe).items():
            assert isinstance(backend, OpensTurnModels), "`check_reward_models` comes first"
            assert found.weights is not None, "`reward_model_critic` requires them"
            self.trainers[name] = backend.open_turn_model(
                name, found.model, critic, found.weights, found.seed, recipe.model, opened.max_context
            )
            self.models[name] = TurnValues(self.trainers[name])

    def bound(self, reward: Reward) -> Reward:
        """Returns a reward that reads these models, with all that it contains."""
        return bound_turn_models(reward, self.models.__getitem__)

    def close(self) -> None:
        for trainer in self.trainers.values():
            trainer.close()


def bound_turn_models(reward: Reward, model_of: Callable[[str], TurnModel]) -> Reward:
    """Returns a reward that reads the models that `model_of` gives by their names, with all that it contains."""
    reward = replaced_bases(reward, lambda base: bound_turn_models(base, model_of))
    return reward.bind_turn_model(model_of(reward.value_model)) if isinstance(reward, BindsTurnModel) else reward


def _found(recipe: Recipe) -> dict[str, tuple[FoundModel, Critic]]:
    """Returns the models of other runs that the reward reads, with the configs of their value heads."""
    wanted = recipe.value_models - {CRITIC}
    return {
        name: (found, reward_model_critic(name, recipe.models[name].weights, found))
        for name, found in (find_models(recipe).items() if wanted else ())
        if name in wanted
    }
