"""What a teacher says of the tokens that the policy sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from sojourn.abilities import ScoresTokens
from sojourn.batch.flatten import TurnSpan, flatten, scatter
from sojourn.config.fields import NONBLANK, Text
from sojourn.errors import ConfigError
from sojourn.protocols import PerTurn, Renderer, StepContext
from sojourn.types import Batch, FloatArray, Group, Message, Prompt, Role, Task, Trajectory, Turn
from sojourn.whole_plays import without_branches

MODEL_NAME = Text(r"[A-Za-z0-9._-]{1,64}", "the name of a model in [models], 'policy' or 'reference'")


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """Log-probability that a teacher gives to every sampled token. The loss `distill` reads the teacher's whole
    distribution in the place of each token besides, the estimator `teacher_kl` the log-probability alone.

    `model` is the name of the teacher in `[models]`; or "reference", the policy as the stage began, or "policy", the
    policy as the step began. `of` names other teachers for the tasks of some worlds or with some tags, such as one for
    each world of a mixture, so that what several specialists know comes into one policy (multi-teacher on-policy
    distillation: Ma et al. 2026, arXiv:2606.30406); of several that a task's tags name, the first counts. With
    `system`, the teacher reads a text that the policy does not see, such as a policy document, a playbook or the manual
    of a tool: it is added to the system message of each of the teacher's contexts, and the sampled tokens stay what
    they are. So the policy learns to act as if it had read the text (context distillation: Askell et al. 2021,
    arXiv:2112.00861; Snell et al. 2022, arXiv:2209.15189; on tokens that the student samples: Ye et al. 2026,
    arXiv:2602.12275). Those papers take a fixed teacher, as "reference" is. Of the last of these three the abstract and
    the objective were read, of the other papers abstracts and accounts.
    """

    model: Annotated[str, MODEL_NAME] = "reference"
    of: Mapping[Annotated[str, NONBLANK], Annotated[str, MODEL_NAME]] = field(default_factory=dict[str, str])
    system: str = ""

    provides = "teacher"

    def __post_init__(self) -> None:
        if "policy" in self.all_models and not self.system:
            raise ValueError(
                "model = 'policy' without a system text: it would be compared with itself: give it a text to read, or "
                "another model"
            )

    @property
    def all_models(self) -> frozenset[str]:
        return frozenset({self.model, *self.of.values()})

    @property
    def reference(self) -> bool:
        return "reference" in self.all_models

    @property
    def models(self) -> frozenset[str]:
        return self.all_models - {"policy", "reference"}

    @property
    def labels(self) -> frozenset[str]:
        return frozenset(self.of)

    def of_task(self, task: Task) -> str:
        """Returns the teacher of a task."""
        labels = {task.env, *task.tags}
        return next((model for label, model in self.of.items() if label in labels), self.model)

    def added_tokens(self, renderer: Renderer) -> int:
        """Returns by how many tokens the text makes a context longer."""
        messages = [Message(Role.USER, "")]
        with_text = added(messages, self.system) if self.system else messages
        return len(renderer.open(with_text).tokens) - len(renderer.open(messages).tokens)

    async def __call__(self, context: StepContext) -> PerTurn:
        if not isinstance(context.trainer, ScoresTokens):
            raise ConfigError(
                f"the stream 'teacher' asks a model, which {type(context.trainer).__name__} cannot do: use backend = "
                "{name = 'torch'}"
            )
        groups = without_branches(context.groups)  # what it says is found by a token's turn, in whichever play that is
        if self.system:
            groups = [with_system(group, self.system, context.renderer) for group in groups]
        batch, places = flatten(groups)
        asked = self._divided(batch, groups, places) if self.of else {self.model: batch}
        return scatter(groups, await context.trainer.ask_models(asked), places)

    def _divided(self, batch: Batch, groups: Sequence[Group], places: Sequence[TurnSpan]) -> dict[str, Batch]:
        """Returns a batch for each teacher, in which the tokens of its own tasks carry weight."""
        weights = dict[str, FloatArray]()
        for span in places:
            own = weights.setdefault(self.of_task(groups[span.group].task), np.zeros_like(batch.weight))
            own[span.start : span.stop] = batch.weight[span.start : span.stop]
        return {model: replace(batch, weight=weight) for model, weight in sorted(weights.items())}


def with_system(group: Group, text: str, renderer: Renderer | None) -> Group:
    """Returns a group whose contexts have a text in their system message besides; what was sampled stays the same."""
    if renderer is None:
        raise ConfigError("a teacher with a system text needs a renderer: give the run one")

    def changed(trajectory: Trajectory) -> Trajectory:
        turns = [_with_system(n, turn, text, renderer) for n, turn in enumerate(trajectory.turns)]
        return replace(trajectory, turns=tuple(turns))

    episodes = [replace(e, trajectories=tuple(changed(t) for t in e.trajectories)) for e in group.episodes]
    return replace(group, episodes=tuple(episodes))


def _with_system(number: int, turn: Turn, text: str, renderer: Renderer) -> Turn:
    """Returns the turn with another beginning of its context, where one begins there.

    Only what comes before the first reply is rendered again: the replies in a context are sampled tokens, mostly. Where
    the format rewrites earlier replies, all of the context is rendered again.
    """
    if turn.parent >= 0:
        return turn
    messages = (*turn.context_messages, *turn.observed)
    system_first = sorted(messages, key=lambda message: message.role is not Role.SYSTEM)
    for known in (messages, system_first):
        replies = [n for n, message in enumerate(known) if message.role is Role.ASSISTANT]
        for end in dict.fromkeys((replies[0] if replies else len(known), len(known))):
            begun = renderer.open(known[:end], turn.tools)
            if _begins(turn, begun):
                other = renderer.open(added(known[:end], text), turn.tools)
                rest = turn.context[len(begun.tokens) :]
                images = (*other.images, *turn.images[len(begun.images) :])
                return replace(turn, context=np.concatenate([other.tokens, rest]), images=images)
    raise ConfigError(
        f"turn {number}: its context is not what the renderer writes for its messages, so a text cannot be added to it "
        "for a teacher: use agent = {name = 'plain'}, or a teacher without a system text"
    )


def _begins(turn: Turn, prompt: Prompt) -> bool:
    return np.array_equal(turn.context[: len(prompt.tokens)], prompt.tokens)


def added(messages: Sequence[Message], text: str) -> list[Message]:
    """Returns the messages with a text after that of the first system message, or in one of its own before all."""
    for number, message in enumerate(messages):
        if message.role is Role.SYSTEM:
            whole = replace(message, text="\n\n".join(part for part in (message.text, text) if part))
            return [*messages[:number], whole, *messages[number + 1 :]]
    return [Message(Role.SYSTEM, text), *messages]
