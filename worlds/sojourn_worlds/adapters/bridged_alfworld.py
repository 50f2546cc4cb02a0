"""Run by an interpreter that has `alfworld`: plays its text games, one at a time, and makes new ones.

A game is a problem in PDDL: furniture and kinds of things are those of a floor plan in the package; how many of each
there are and where each lies follow from the seed. Before a game is written, it is played to its end.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import tempfile
import threading
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import alfworld.info
import fast_downward
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from alfworld.gen import constants
from alfworld.gen.goal_library import gdict
from textworld import EnvInfos
from textworld.envs import PddlEnv

LAYOUTS = Path(alfworld.info.ALFRED_PDDL_PATH).parents[1] / "gen" / "layouts"
HOLDS = {
    kind: held for kind, held in constants.VAL_RECEPTACLE_OBJECTS.items() if kind not in constants.MOVABLE_RECEPTACLES
}
ABLE = constants.VAL_ACTION_OBJECTS
NEEDS = {  # what may be done to a thing, and the furniture for it
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
}
STANDS = ("SideTable", "Desk", "Dresser", "DiningTable", "CoffeeTable", "CounterTop", "TVStand", "Shelf")  # for lamps
DONE = {"isClean": ("clean", "sinkbasintype"), "isHot": ("heat", "microwavetype"), "isCool": ("cool", "fridgetype")}
GOAL = {
    "thing": re.compile(r"\(objectType \?o1? (\w+)\)"),
    "place": re.compile(r"\(receptacleType \?r (\w+)\)"),
    "lamp": re.compile(r"\(objectType \?ot (\w+)\)"),
}
LONGEST = 40
OLD_S = 3_600
UNSEEN = ("checked", "examined", "new-axiom")  # what was looked at changes nothing
LOCK = threading.Lock()  # the planner's library has one state, and its translator is not made for threads
NOW: dict[str, Any] = {"play": None, "env": None}
TRANSLATE = fast_downward.pddl2sas


@lru_cache(2)
def translated(domain, problem):
    return TRANSLATE(domain, problem)


def once(domain, problem, verbose=False, optimize=False):
    """Caches the translation of a game: the package translates it four times before it is played, which takes most of
    the time of a start.
    """
    return translated(domain, problem)


fast_downward.pddl2sas = once


class Refused(Exception):  # noqa: N818  (the bridge's own name for it)
    pass


class Play:
    def start(self, game, recipe, folder, said):
        with LOCK:
            NOW["play"] = None
            self.env = NOW["env"] = NOW["env"] or AlfredDemangler(PddlEnv(EnvInfos(admissible_commands=True, won=True)))
            self.env.load(game or made(self.env, recipe, Path(folder)))
            self.state = self.env.reset()
            opening = self.state.feedback
            for command in said:
                self.state, _, _ = self.env.step(command)
            NOW["play"] = self
            return {**self.seen(), "opening": opening}

    def step(self, command):
        with LOCK:
            self.mine()
            self.state, _, _ = self.env.step(command)
            return self.seen()

    def plan(self):
        with LOCK:
            self.mine()
            return plan(self.env, self.state)

    def close(self):
        pass

    def mine(self):
        if NOW["play"] is not self:
            raise RuntimeError("another play goes on here")

    def seen(self):
        facts = sorted(str(fact) for fact in self.state["_facts"] if not fact.name.startswith(UNSEEN))
        return {
            "text": self.state.feedback,
            "commands": list(self.state.admissible_commands),
            "won": bool(self.state.won),
            "key": hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16],
        }


def plan(env, state):
    """Returns the next command of the plan that every kind of task has; where that does not fit, the package's
    planner's.
    """
    inner = env.unwrapped
    named = {key: info.name.strip() for key, info in inner._entity_infos.items()}
    try:
        words = Way(state["_facts"], inner._game_data["pddl_problem"]).next()
    except (KeyError, StopIteration, ValueError):  # something that it counts on is not there
        words = []
    command = " ".join(named.get(word, word) for word in words)
    if command in state.admissible_commands:
        return command
    commands = inner._pddl_state.replan(inner._entity_infos)
    return " ".join(commands[0].split()) if commands else "look"


class Way:
    """Chooses the next command for a goal of the package's library, with full knowledge of where everything is."""

    def __init__(self, facts, problem):
        self.facts = {(fact.name, *(argument.name for argument in fact.arguments)) for fact in facts}
        goal = problem[problem.index("(:goal") :]
        self.done = next((word.lower() for word in DONE if word in goal), "")
        self.wanted = self.kinds("objecttype", GOAL["thing"], goal)
        self.targets = self.kinds("receptacletype", GOAL["place"], goal)
        self.lamps = self.kinds("objecttype", GOAL["lamp"], goal) if "isToggled" in goal else []
        self.at = next(iter(self.second("atlocation")), "")
        self.held = next(iter(self.second("holds")), "")
        self.where = {fact[1]: fact[2] for fact in self.facts if fact[0] == "receptacleatlocation"}
        self.lies = {fact[1]: fact[2] for fact in self.facts if fact[0] == "inreceptacle"}

    def kinds(self, predicate, pattern, goal):
        match = pattern.search(goal)
        sort = match.group(1).lower() if match else ""
        return sorted(fact[1] for fact in self.facts if fact[0] == predicate and fact[2].lower() == sort)

    def second(self, predicate):
        return sorted(fact[2] for fact in self.facts if fact[0] == predicate)

    def open(self, place):
        return ("openable", place) not in self.facts or ("opened", place) in self.facts

    def reach(self, place, then, inside=True):
        """Goes there, opens it if need be, and then does the action."""
        if self.where.get(place) != self.at:
            return ["go", "to", place]
        return ["open", place] if inside and not self.open(place) else then

    def next(self):
        if self.held and self.held not in self.wanted:
            return self.put_away()
        if self.lamps:
            return self.look()
        target = max(self.targets, key=lambda place: sum(self.lies.get(thing) == place for thing in self.wanted))
        if not self.held:
            ready = [thing for thing in self.wanted if not self.finished(thing) or self.lies.get(thing) != target]
            return self.take(sorted(ready, key=lambda thing: not self.finished(thing)))
        if not self.finished(self.held):
            verb, sort = DONE[next(word for word in DONE if word.lower() == self.done)]
            with_ = next(fact[1] for fact in sorted(self.facts) if fact[0] == "receptacletype" and fact[2] == sort)
            return self.reach(with_, [verb, self.held, "with", with_], inside=False)
        return self.reach(target, ["move", self.held, "to", target])

    def look(self):
        if not self.held:
            return self.take(self.wanted)
        lamp = next(lamp for lamp in self.lamps if lamp in self.lies)
        return self.reach(self.lies[lamp], ["use", lamp], inside=False)

    def take(self, things):
        thing = next(thing for thing in things if thing in self.lies)
        return self.reach(self.lies[thing], ["take", thing, "from", self.lies[thing]])

    def put_away(self):
        """Returns where a thing may be put: here, if that is open, or else anywhere."""
        sort = next(fact[2] for fact in self.facts if fact[:2] == ("objecttype", self.held))
        fits = {fact[1] for fact in self.facts if fact[0] == "cancontain" and fact[2] == sort}
        places = sorted(fact[1] for fact in self.facts if fact[0] == "receptacletype" and fact[2] in fits)
        place = min(places, key=lambda place: (self.where[place] != self.at, not self.open(place)))
        return self.reach(place, ["move", self.held, "to", place])

    def finished(self, thing):
        return not self.done or (self.done, thing) in self.facts


def made(env, recipe, folder):
    """Returns the file of the recipe's game, written now if it does not exist; several processes may want it at
    once."""
    key = json.dumps([alfworld.info.__version__, 1, recipe], sort_keys=True)
    file = folder / hashlib.sha256(key.encode()).hexdigest()[:24] / "game.tw-pddl"
    if file.is_file():
        return str(file)
    game: dict[str, Any] = compose(recipe)
    env.load(game)
    state, game["walkthrough"] = env.reset(), []
    while not state.won and len(game["walkthrough"]) < LONGEST:
        game["walkthrough"].append(plan(env, state))
        state, _, _ = env.step(game["walkthrough"][-1])
    if not state.won or not game["walkthrough"]:
        raise ValueError(f"the game of {recipe} cannot be won")
    file.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.glob("draft-*"):  # of killed processes
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > OLD_S:
                left.unlink()
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix="draft-", delete=False) as draft:
        json.dump({**game, "solvable": True}, draft)
    os.replace(draft.name, file)
    return str(file)


def compose(recipe):
    """Composes the game of a recipe {kind, unseen, copies, alike, seed}."""
    kind, rng = recipe["kind"], random.Random(json.dumps(recipe, sort_keys=True))
    scenes = list(constants.TEST_SCENE_NUMBERS if recipe["unseen"] else constants.TRAIN_SCENE_NUMBERS)
    rng.shuffle(scenes)
    for scene in scenes:
        furniture, kinds = floor_plan(scene, recipe["alike"], rng)
        if goals := possible(kind, {sort for _, sort in furniture}, kinds):
            return write(kind, furniture, kinds, rng.choice(goals), recipe["copies"], rng)
    raise ValueError(f"no floor plan has what {kind} needs")


def floor_plan(scene, alike, rng):
    """Returns its furniture, as (id, sort), and the sorts of things in it."""
    known = json.loads((LAYOUTS / f"FloorPlan{scene}-objects.json").read_text())
    places = json.loads((LAYOUTS / f"FloorPlan{scene}-openable.json").read_text())
    sorts: dict[str, list[str]] = {}
    for place in sorted(places):
        first, *_, last = place.split("|")
        sorts.setdefault(last if last.isalpha() else first, []).append(place)
    for sort in sorted(set(known) & set(HOLDS) - set(sorts)):  # there, but the layout does not say where
        sorts[sort] = [f"{sort}|{number}" for number in range(4 if sort == "StoveBurner" else 1)]
    furniture = []
    for sort, places_of_sort in sorted(sorts.items()):
        if sort in HOLDS:
            furniture += [
                (place, sort) for place in sorted(rng.sample(places_of_sort, min(alike, len(places_of_sort))))
            ]
    return furniture, sorted(set(known) - set(HOLDS))


def possible(kind, sorts, kinds):
    """Returns pairs of a sort of thing and its target place (or the lamp to look at it under)."""
    lie = {thing: sorted(sort for sort in sorts if thing in HOLDS[sort]) for thing in kinds}
    if kind == "look_at_obj_in_light":
        lamps = [thing for thing in kinds if thing in ABLE["Toggleable"] and sorts & set(STANDS)]
        return [(thing, lamp) for thing in kinds if lie[thing] for lamp in lamps]
    able, place = NEEDS.get(kind, (None, None))
    if place not in sorts | {None}:
        return []
    fits = [thing for thing in kinds if able is None or thing in ABLE[able]]
    return [(thing, sort) for thing in fits for sort in lie[thing] if sort != place and len(lie[thing]) > 1]


def write(kind, furniture, kinds, goal, copies, rng):
    """Writes the game in the package's own form. A thing that is asked for never lies where it is to go."""
    thing, target = goal
    facts = ["(= (total-cost) 0)", "(atLocation agent1 loc_0)"]
    objects = ["agent1 - agent", "loc_0 - location"]
    for number, (place, sort) in enumerate(furniture, 1):
        name = mangled(place)
        objects += [f"{name} - receptacle", f"loc_{number} - location"]
        facts += [f"(receptacleAtLocation {name} loc_{number})", f"(receptacleType {name} {sort}Type)"]
        facts += [f"(openable {name})"] * (sort in constants.OPENABLE_CLASS_SET)
    for other in kinds:
        lamp = other in ABLE["Toggleable"]
        spots = [
            (number, place)
            for number, (place, sort) in enumerate(furniture, 1)
            if (sort in STANDS if lamp else other in HOLDS[sort]) and not (other == thing and sort == target)
        ]
        least = 2 if other == thing and kind == "pick_two_obj_and_place" else 1
        for copy in range((1 if lamp else rng.randint(least, max(least, copies))) if spots else 0):
            name, (number, place) = f"{other}_bar_{copy}", rng.choice(spots)
            objects.append(f"{name} - object")
            facts += [f"(objectType {name} {other}Type)", f"(objectAtLocation {name} loc_{number})"]
            facts += [f"(inReceptacle {name} {mangled(place)})", f"({'toggleable' if lamp else 'pickupable'} {name})"]
            facts += [f"({able.lower()} {name})" for able in sorted(ABLE) if other in ABLE[able] and not lamp]
            facts += [f"(isReceptacleObject {name})"] * (other in constants.MOVABLE_RECEPTACLES)
    sorts = sorted({sort for _, sort in furniture})
    facts += [f"(canContain {sort}Type {other}Type)" for sort in sorts for other in kinds if other in HOLDS[sort]]
    objects += [f"{sort}Type - rtype" for sort in sorted(HOLDS)]
    objects += [f"{other}Type - otype" for other in sorted(set(constants.OBJECTS) | set(kinds)) if other not in HOLDS]
    words = {"obj": thing, "recep": target, "toggle": target}
    task = rng.choice(gdict[kind]["templates"]).format(**{key: word.lower() for key, word in words.items()})
    ending = gdict[kind]["pddl"].format(**words).replace("#", "-")
    problem = ["(define (problem made)", "(:domain alfred)", "(:objects", *objects, ")", "(:init", *facts, ")", ending]
    return {
        "pddl_domain": Path(alfworld.info.ALFRED_PDDL_PATH).read_text(),
        "grammar": Path(alfworld.info.ALFRED_TWL2_PATH).read_text().replace("UNKNOWN GOAL", task),
        "pddl_problem": "\n".join(problem),
    }


def mangled(place):
    """Returns a name with a position as the package writes it: its own parser of names relies on that."""
    for sign, word in (("|", "_bar_"), ("+", "_plus_"), ("-", "_minus_"), (".", "_dot_")):
        place = place.replace(sign, word)
    return place
