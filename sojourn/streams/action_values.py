"""The critic's value of each finished action."""

from __future__ import annotations

from dataclasses import dataclass

from sojourn.protocols import PerTurn, StepContext
from sojourn.streams.trainer_passes import at_last_token


@dataclass(frozen=True, kw_only=True)
class ActionValues:
    """Value of each action, Q(s, a), at the turn's last token and 0 at its others: the return that the critic expects
    before that token, mostly the end of the turn, when all of the action is written and the world has not answered.

    A critic that learned from recorded actions judges others that nobody played by it: the value environment model of
    VEM (Zheng et al. 2025, arXiv:2502.18906, by its code), which is trained first, as the critic of a stage whose only
    loss is `value`, and stays as it is in stages without that loss. With a model of its own (`critic.model`) it also
    reads nothing that changes with the policy. The authors' model is a vision-language model that says the label, 1 or
    2, that another one gave to each action of people; here it regresses on returns. For an action of one token, such as
    one that was chosen from a list, it is the value of the state: the token itself is not read.
    """

    provides = "action_values"
    reference = False
    critic = True

    async def __call__(self, context: StepContext) -> PerTurn:
        values = await context.read(lambda forward: forward.values)
        return [
            at_last_token(group, [[float(turn[-1]) if len(turn) else 0.0 for turn in turns] for turns in of_group])
            for group, of_group in zip(context.groups, values, strict=True)
        ]
