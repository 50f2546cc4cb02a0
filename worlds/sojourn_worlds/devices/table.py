"""The devices of a car and of a home: what can be set, what it needs, and what it sets besides.

`path: values needs path=value`: it can be set only while that holds. `path=value sets path=value`: setting the one sets
the other too (`>0`: any number above 0). Settings keep their value while their device is off.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

Value = int | str
State = dict[str, Value]

CAR = """
climate.power: off on
climate.temperature: 16..30 needs climate.power=on
climate.fan: 1..7 needs climate.power=on
climate.mode: auto cool heat needs climate.power=on
climate.recirculation: off on needs windows.front=0
windows.child_lock: off on
windows.front: 0..100
windows.rear: 0..100 needs windows.child_lock=off
windows.front>0 sets climate.recirculation=off
sunroof.shade: closed open
sunroof.opening: 0..100 needs sunroof.shade=open
sunroof.shade=closed sets sunroof.opening=0
lights.headlights: off on
lights.high_beam: off on needs lights.headlights=on
lights.fog: off on needs lights.headlights=on
lights.cabin: 0..10
lights.headlights=off sets lights.high_beam=off
lights.headlights=off sets lights.fog=off
media.power: off on
media.source: radio bluetooth usb needs media.power=on
media.volume: 0..40 needs media.power=on
media.playback: stopped playing needs media.power=on
media.power=off sets media.playback=stopped
seat.heating: 0..3
seat.cooling: 0..3
seat.massage: off on
seat.heating>0 sets seat.cooling=0
seat.cooling>0 sets seat.heating=0
doors.lock: unlocked locked
doors.mirrors: folded unfolded
trunk.lid: closed open needs doors.lock=unlocked
trunk.light: off on needs trunk.lid=open
trunk.lid=closed sets trunk.light=off
doors.lock=locked sets trunk.lid=closed
navigation.power: off on
navigation.route: home work airport needs navigation.power=on
navigation.voice: off on needs navigation.power=on
wipers.power: off on
wipers.speed: 1..5 needs wipers.power=on
wipers.rear: off on
"""

HOME = """
thermostat.power: off on
thermostat.target: 10..28 needs thermostat.power=on
thermostat.schedule: day night away needs thermostat.power=on
oven.door: closed open
oven.power: off on needs oven.door=closed
oven.temperature: 50..250 needs oven.power=on
oven.light: off on
oven.door=open sets oven.power=off
blinds.mode: manual auto
blinds.left: 0..100 needs blinds.mode=manual
blinds.right: 0..100 needs blinds.mode=manual
lamp.power: off on
lamp.brightness: 1..100 needs lamp.power=on
lamp.colour: warm cool red needs lamp.power=on
entrance.lock: unlocked locked
entrance.bell: loud quiet
entrance.lock=unlocked sets alarm.power=off
alarm.power: off on needs entrance.lock=locked
alarm.siren: loud quiet
television.power: off on
television.input: antenna disc stream needs television.power=on
television.volume: 0..50 needs television.power=on
television.subtitles: off on needs television.power=on
vacuum.bin: attached removed
vacuum.work: docked cleaning needs vacuum.bin=attached
vacuum.suction: 1..4
vacuum.bin=removed sets vacuum.work=docked
fridge.temperature: 1..8
fridge.ice: off on needs fridge.holiday=off
fridge.holiday: off on
fridge.holiday=on sets fridge.ice=off
"""


class Condition(NamedTuple):
    path: str
    value: Value
    above: bool = False  # holds for any number above 0

    def holds(self, value: Value) -> bool:
        return isinstance(value, int) and value > 0 if self.above else value == self.value


@dataclass(frozen=True)
class Property:
    path: str
    options: tuple[str, ...] = ()  # empty for numbers
    low: int = 0
    high: int = 0
    needs: Condition | None = None

    @property
    def device(self) -> str:
        return self.path.partition(".")[0]

    @property
    def words(self) -> str:
        device, _, name = self.path.partition(".")
        return device if name == "power" else f"{device} {name}".replace("_", " ")

    def draw(self, rng: random.Random) -> Value:
        return rng.choice(self.options) if self.options else rng.randint(self.low, self.high)

    def refusal(self, value: Value) -> str:
        """Returns why it cannot have this value, empty where it can."""
        if self.options:
            return "" if value in self.options else f"it must be {' or '.join(self.options)}"
        fits = isinstance(value, int) and self.low <= value <= self.high
        return "" if fits else f"it must be a whole number from {self.low} to {self.high}"


class Effect(NamedTuple):
    when: Condition
    then: Condition


@dataclass(frozen=True)
class Appliances:
    """Properties by path, and the rules between them."""

    properties: Mapping[str, Property]
    effects: tuple[Effect, ...]

    def of(self, names: Collection[str]) -> Appliances:
        """Returns these devices, and those that their rules mention."""
        chosen = set(names)
        while True:
            near = {p.needs.path for p in self.properties.values() if p.device in chosen and p.needs}
            near |= {e.then.path for e in self.effects if _device(e.when.path) in chosen}
            near |= {e.when.path for e in self.effects if _device(e.then.path) in chosen}
            if (wider := chosen | {_device(path) for path in near}) == chosen:
                break
            chosen = wider
        kept = {path: p for path, p in self.properties.items() if p.device in chosen}
        return Appliances(kept, tuple(e for e in self.effects if e.when.path in kept))

    def names(self) -> list[str]:
        return list(dict.fromkeys(p.device for p in self.properties.values()))

    def draw(self, rng: random.Random) -> State:
        """Draws a state that can be reached."""
        state = {path: p.draw(rng) for path, p in self.properties.items()}
        for path in state:
            self.settle(state, path)
        return state

    def write(self, state: State, path: str, value: Value) -> None:
        """Sets a value and what follows from it; raises ValueError, with the state unchanged, where it cannot be
        set."""
        if path not in self.properties:
            raise ValueError(f"there is no {path[:40]!r}, use one of {', '.join(self.properties)}")
        wanted = self.properties[path]
        if refusal := wanted.refusal(value):
            raise ValueError(f"{path} = {str(value)[:30]}, but {refusal}")
        if state[path] == value:
            raise ValueError(f"{path} is {value} already")
        if (needs := wanted.needs) and not needs.holds(state[needs.path]):
            raise ValueError(f"{path} can be set only while {needs.path} is {needs.value}, it is {state[needs.path]}")
        state[path] = value
        self.settle(state, path)

    def settle(self, state: State, path: str) -> None:
        for when, then in self.effects:
            if when.path == path and when.holds(state[path]) and state[then.path] != then.value:
                state[then.path] = then.value
                self.settle(state, then.path)

    def achieve(self, state: State, path: str, value: Value) -> None:
        """Sets a value, and before it what it needs."""
        needs = self.properties[path].needs
        if needs and not needs.holds(state[needs.path]):
            self.achieve(state, needs.path, needs.value)
        if state[path] != value:
            self.write(state, path, value)

    def depth(self, path: str) -> int:
        """Returns how many other settings must be right before this one can be set."""
        needs = self.properties[path].needs
        return 1 + self.depth(needs.path) if needs else 0

    def toward(self, state: State, target: State) -> tuple[str, Value]:
        """Returns the next write towards the target: settings that need others come first, the needed ones only when
        nothing waits.
        """
        wrong = [path for path in state if state[path] != target[path]]
        deepest = max(map(self.depth, wrong))
        writes = [self._open(state, path, target[path]) for path in wrong if self.depth(path) == deepest]

        def left(write: tuple[str, Value]) -> int:
            then = dict(state)
            self.write(then, *write)
            return sum(then[path] != target[path] for path in then)

        return min(writes, key=left)

    def _open(self, state: State, path: str, value: Value) -> tuple[str, Value]:
        needs = self.properties[path].needs
        if needs and not needs.holds(state[needs.path]):
            return self._open(state, needs.path, needs.value)
        return path, value


@cache
def devices(place: str) -> Appliances:
    text = {"car": CAR, "home": HOME, "both": CAR + HOME}[place]
    lines = text.strip().splitlines()
    properties = [_property(line) for line in lines if ": " in line]
    pairs = [line.split(" sets ") for line in lines if " sets " in line]
    return Appliances({p.path: p for p in properties}, tuple(Effect(_condition(a), _condition(b)) for a, b in pairs))


def _property(line: str) -> Property:
    path, _, rest = line.partition(": ")
    values, _, needs = rest.partition(" needs ")
    condition = _condition(needs) if needs else None
    if ".." in values:
        low, high = map(int, values.split(".."))
        return Property(path, low=low, high=high, needs=condition)
    return Property(path, options=tuple(values.split()), needs=condition)


def _condition(text: str) -> Condition:
    if ">" in text:
        return Condition(text.partition(">")[0], 0, above=True)
    path, _, value = text.partition("=")
    return Condition(path, int(value) if value.isdigit() else value)


def _device(path: str) -> str:
    return path.partition(".")[0]
