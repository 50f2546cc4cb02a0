"""The preset of GUI-G1, from its file to the advantages: smaller boxes count for more."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("miniwob", reason="Chromium shows its own pages beside those of the package miniwob")
pytest.importorskip("playwright", reason="Chromium is driven by playwright")

from made_world import Says, components

from sojourn.envs.chromium import find_chromium
from sojourn.errors import ConfigError
from sojourn.rollout.world import open_world
from sojourn.train.resolve import load
from sojourn.types import Prompt, Sample, SamplingParams
from sojourn_worlds.grounding import SCREENS, Grounding

try:
    find_chromium(None)
except ConfigError as missing:
    pytest.skip(str(missing), allow_module_level=True)

PRESET = Path(__file__).parents[2] / "recipes" / "presets" / "gui_g1.toml"


@dataclass
class Boxes(Says):
    """Answers each question with a corner of the screen and with all of it by turns."""

    before: Counter[bytes] = field(default_factory=Counter)

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        question = prompt.tokens.tobytes()
        self.before[question] += 1
        self.text = "box(0, 0, 9, 9)" if self.before[question] % 2 else "box(0, 0, 480, 320)"
        return await super().sample(prompt, params)


async def test_the_preset_scales_advantages_by_how_small_the_box_is(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text(f'extends = "{PRESET}"\nname = "mine"\n[env]\nsources = ["drawn"]\nobservation = "text"\n')
    recipe = load(own).recipe
    [stage] = recipe.stages
    world = recipe.env
    assert isinstance(world, Grounding)
    async with open_world(world):
        made = components(world, Boxes())
        made.runner.max_context = 4096
        source = replace(stage.groups, width=3, size=2).bind(made, "rl", 1)
        groups = await source.take(0)
        await source.close()
        shares = []
        for group in groups:
            env = world.make(group.task)
            await env.start()
            assert env.target is not None
            shares.append(math.prod(env.target[1].size) / math.prod(SCREENS["drawn"]))
    assert len(set(shares)) > 1
    scores = await made.rewards(groups)
    hard = 1 / np.array(shares)
    weights = 0.5 + (hard - hard.min()) / (hard.max() - hard.min())
    for group, judged, weight in zip(groups, stage.estimator(groups, scores, {}), weights, strict=True):
        paid = np.array([trajectory.reward for trajectory in group.trajectories])
        assert np.ptp(paid) > 0
        credited = [float(credit.tokens[0][0]) for credit in judged]
        assert credited == pytest.approx(list((paid - paid.mean()) * weight), rel=1e-4)
