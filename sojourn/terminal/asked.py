"""Shows what models were asked about an episode, what they answered, and what that cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.text import Text

from sojourn.models.asking import AskedModels, Exchange
from sojourn.terminal.clean import clean, one_line
from sojourn.terminal.indented import Indented
from sojourn.terminal.numbers import number


class AskedView(NamedTuple):
    """One question as it is shown. `question` is empty where the one above has the same, or where it is recorded with
    the episode `recorded_with`."""

    heading: str
    question: str
    recorded_with: str
    answer: str
    facts: str


def asked_views(asked: Sequence[Exchange], episode: str) -> list[AskedView]:
    """Returns everything that was asked about an episode, in its order."""
    found: list[AskedView] = []
    above: Exchange | None = None
    for one in asked:
        text = "" if above is not None and above.question == one.question else _question(one)
        elsewhere = "" if one.about[0] == episode else one.about[0]
        found.append(AskedView(f"{one.model}: {one.purpose}", text, elsewhere, one.answer, ", ".join(_facts(one))))
        above = one
    return found


def asked_summary(asked: Sequence[Exchange]) -> str:
    """Returns how much was asked, and what it cost; questions about several episodes count with each."""
    tokens = sum(one.prompt_tokens + one.sampled_tokens for one in asked)
    count = f"{len(asked)} answer{'s' * (len(asked) != 1)} of models about it"
    return f"{count}: {tokens:,} tokens{_cost(sum(one.cost for one in asked))}"


def asked_sentence(models: AskedModels, episodes: Sequence[str]) -> str:
    """Returns how much models were asked about episodes that are not recorded, and what it cost; empty where they were
    asked nothing."""
    models.take(episodes)
    spent = models.metrics()
    if not spent:
        return ""
    return f"models gave {spent['asked']:g} answers: {spent['asked_tokens']:,.0f} tokens{_cost(spent['asked_cost'])}"


def asked_text(asked: Sequence[Exchange], episode: str, limit: int | None) -> Iterator[RenderableType]:
    """Yields what was asked, ready to be printed."""
    yield Text(asked_summary(asked), "bold")
    for view in asked_views(asked, episode):
        yield Text(one_line(view.heading), "magenta")
        if view.recorded_with:
            yield Indented(Text(f"its question is recorded with {one_line(view.recorded_with)}", "dim"))
        elif view.question:
            yield Indented(Text(clean(view.question, limit), "dim"))
        yield Indented(Text(clean(view.answer, limit)))
        yield Indented(Text(view.facts, "dim italic"))


def _question(one: Exchange) -> str:
    return "\n\n".join(message.text for message in one.question)


def _facts(one: Exchange) -> Iterator[str]:
    yield f"{one.prompt_tokens:,} tokens of the question, {one.sampled_tokens:,} of the answer{_cost(one.cost)}"
    yield f"{number(one.seconds)} s"
    yield f"temperature {number(one.temperature)}, seed {one.seed}"
    if one.cached:
        yield "from the run's cache"


def _cost(cost: float) -> str:
    return f", cost {cost:.4g}" if cost else ""
