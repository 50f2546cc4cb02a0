"""What a model does in a recipe's world by its prompt alone: untrained, with worked examples in its system message.

    python benchmarks/prompted.py terminal
    python benchmarks/prompted.py terminal --models smollm2 --examples 0,28 --temperatures 0
    python benchmarks/prompted.py terminal --dry

An example is what the world's expert does in a training task, with what the world answers; the first of them are of
one kind each, where the world's tasks take turns in their kinds. Every cell plays the recipe's held-out tasks as an
evaluation of the recipe does, but for the examples, the room for them, and the temperature. How well a prompt does is
that of the best cell, which was chosen on these tasks: it flatters the prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bakeoff import HERE, execute
from learning import outcome, table
from machine import write

from sojourn.call_text import call_text
from sojourn.checks.env.play import Play, ask_expert, closing
from sojourn.config import toml
from sojourn.config.registry import build
from sojourn.protocols import EnvFamily
from sojourn.rollout.world import open_world
from sojourn.train.resolve import resolve
from sojourn.types import Observation, Task

MODELS = ("smollm2", "gemma3-270m")
EXAMPLES = (0, 4, 28)
TEMPERATURES = (0.0, 1.0)
CONTEXT = 8192  # tokens, of both models at least
EVALUATE = """
import json, sys, sojourn
print(json.dumps(sojourn.evaluate(json.loads(sys.argv[1]), progress=False).to_json()))
"""


async def worked(family: EnvFamily, count: int) -> str:
    """Returns `count` worked examples as a text; the empty text for none."""
    async with open_world(family):
        shown = [await _worked(family, task) for task in itertools.islice(family.tasks("train"), count)]
    return "".join(f"\n\nExample {number}.\n{text}" for number, text in enumerate(shown, 1))


async def _worked(family: EnvFamily, task: Task) -> str:
    lines: list[str] = []
    async with closing(Play(family.make(task))) as play:
        await play.start()
        while not play.done:
            action = await ask_expert(play.env)
            said = action.text or "; ".join(map(call_text, action.calls))
            lines += [f"User: {_text(play.events[-1].observation)}", f"You: {said}"]
            await play.act(action)
    return "\n".join(lines)


def _text(observation: Observation | None) -> str:
    return "\n".join(message.text for message in observation.messages) if observation else ""


def cell(recipe: Mapping[str, Any], model: str, examples: str, temperature: float) -> dict[str, Any]:
    """Returns the recipe with another model, which is shown examples."""
    agent = {"name": "instructed", "text": examples, "base": recipe["agent"]} if examples else recipe["agent"]
    return {
        **recipe,
        "model": {"name": model},
        "renderer": {"name": "auto"},
        "agent": agent,
        "backend": {**recipe["backend"], "max_context": CONTEXT},
        "evaluation": {**recipe["evaluation"], "temperature": temperature},
    }


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe", choices=sorted(p.parent.name for p in HERE.parent.glob("recipes/*/train.toml")))
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    parser.add_argument("--examples", type=lambda text: [int(n) for n in text.split(",")], default=list(EXAMPLES))
    parser.add_argument("--temperatures", type=lambda text: [float(t) for t in text.split(",")], default=TEMPERATURES)
    parser.add_argument("--dry", action="store_true", help="play the examples and build each recipe, no more")
    options = parser.parse_args(given)
    recipe = table(HERE.parent / "recipes" / options.recipe / "train.toml", [])
    family = build("env", recipe["env"]).value
    found: list[dict[str, Any]] = []
    for count in options.examples:
        examples = asyncio.run(worked(family, count))
        for model, temperature in itertools.product(options.models, options.temperatures):
            made = cell(recipe, model, examples, temperature)
            if options.dry:
                resolve(toml.Tables(made))
                print(f"{model} with {count} examples at temperature {temperature:g} can be built")
                continue
            summary = json.loads(execute([sys.executable, "-c", EVALUATE, json.dumps(made)]).splitlines()[-1])
            success = outcome(summary)["success"]
            found.append({"model": model, "examples": count, "temperature": temperature, "success": success})
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    if options.dry:
        return
    best = max(found, key=lambda one: one["success"][0])
    print(f"{options.recipe}: at best {best['success'][0]:.1%}, of {best['model']} with {best['examples']} examples")
    print(write(f"prompted_{options.recipe}", {"best": best, "cells": found}))


if __name__ == "__main__":
    main(sys.argv[1:])
