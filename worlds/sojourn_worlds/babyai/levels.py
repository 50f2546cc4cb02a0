"""The levels by name, and the package's environments for them."""

from __future__ import annotations

import copy
import hashlib
import random
from functools import lru_cache
from typing import Any

from sojourn.envs.about import require_module
from sojourn.errors import ConfigError
from sojourn.tasks.splits import draw_for_seed

# not here: KeyInBox, which the bot cannot solve, and OpenDoorsOrder...Debug, whose rules fail even who obeys them
# fmt: off
LEVELS = (
    "GoToRedBallGrey", "GoToRedBall", "GoToRedBallNoDists", "GoToObj", "GoToObjS4", "GoToObjS6", "GoToLocal",
    "GoToLocalS5N2", "GoToLocalS6N2", "GoToLocalS6N3", "GoToLocalS6N4", "GoToLocalS7N4", "GoToLocalS7N5",
    "GoToLocalS8N2", "GoToLocalS8N3", "GoToLocalS8N4", "GoToLocalS8N5", "GoToLocalS8N6", "GoToLocalS8N7",
    "GoTo", "GoToObjMaze", "GoToObjMazeOpen", "GoToObjMazeS4R2", "GoToObjMazeS4", "GoToObjMazeS5",
    "GoToObjMazeS6", "GoToObjMazeS7", "GoToImpUnlock", "GoToSeq", "GoToSeqS5R2", "GoToRedBlueBall",
    "GoToDoor", "GoToObjDoor", "Open", "OpenRedDoor", "OpenDoor", "OpenDoorDebug", "OpenDoorColor",
    "OpenDoorLoc", "OpenTwoDoors", "OpenRedBlueDoors", "OpenRedBlueDoorsDebug", "OpenDoorsOrderN2",
    "OpenDoorsOrderN4", "Pickup", "UnblockPickup", "PickupLoc", "PickupDist", "PickupDistDebug",
    "PickupAbove", "PutNextLocal", "PutNextLocalS5N3", "PutNextLocalS6N4", "PutNextS4N1", "PutNextS5N2",
    "PutNextS5N1", "PutNextS6N3", "PutNextS7N4", "PutNextS5N2Carrying", "PutNextS6N3Carrying",
    "PutNextS7N4Carrying", "Unlock", "UnlockLocal", "UnlockLocalDist", "UnlockPickup", "UnlockPickupDist",
    "BlockedUnlockPickup", "UnlockToUnlock", "ActionObjDoor", "FindObjS5", "FindObjS6", "FindObjS7",
    "KeyCorridor", "KeyCorridorS3R1", "KeyCorridorS3R2", "KeyCorridorS3R3", "KeyCorridorS4R3",
    "KeyCorridorS5R3", "KeyCorridorS6R3", "OneRoomS8", "OneRoomS12", "OneRoomS16", "OneRoomS20",
    "MoveTwoAcrossS5N2", "MoveTwoAcrossS8N9", "Synth", "SynthS5R2", "SynthLoc", "SynthSeq", "MiniBossLevel",
    "BossLevel", "BossLevelNoUnlock",
)
# fmt: on


def enter(level: str, seed: int, turns: int) -> Any:
    """Returns the package's environment after its reset; `turns` 0 keeps the level's own limit of steps."""
    world = copy.deepcopy(_made(level, seed))
    if turns:
        world.max_steps = turns
    return world


@lru_cache(16)  # a group plays one task many times
def _made(level: str, seed: int) -> Any:
    """Returns the first of a seed's missions whose hash belongs to the split of the seed: that of the package's own
    seed of this number, or else one of the seeds that follow from it."""
    own = iter([seed])
    return draw_for_seed(seed, f"babyai {level}", lambda rng: _drawn(level, next(own, None), rng), _content)


def _content(world: Any) -> str:
    """Returns what tells missions apart: the rooms, what is asked for, and where the agent is."""
    digest = hashlib.sha256(world.grid.encode().tobytes()).hexdigest()
    return f"{world.mission} {tuple(map(int, world.agent_pos))} {int(world.agent_dir)} {digest}"


def _drawn(level: str, seed: int | None, rng: random.Random) -> Any:
    require_module("minigrid", "sojourn-worlds[babyai]", "babyai")  # registers the levels
    registry = require_module("gymnasium.envs.registration", "sojourn-worlds[babyai]", "babyai")
    levels = require_module("minigrid.envs.babyai.core.roomgrid_level", "sojourn-worlds[babyai]", "babyai")
    levels.__dict__["print"] = _silent  # it prints on every layout that it rejects
    registered = next((spec for name, spec in registry.registry.items() if name.startswith(f"BabyAI-{level}-v")), None)
    if registered is None:
        raise ConfigError(f"babyai: this version of minigrid has no level {level!r}, leave it out of levels")
    world = registry.load_env_creator(registered.entry_point)(**registered.kwargs)
    world.reset(seed=rng.getrandbits(31) if seed is None else seed)
    return world


def _silent(*words: Any) -> None:
    pass
