"""The jobs on a desktop, and their right results: made from a seed, and never sent into the sandbox."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

KINDS = ("edit", "form", "calculator", "board")
# fmt: off
VERBS = ["buy", "sell", "wash", "paint", "repair", "carry", "count", "find", "hide", "pack", "open", "sort"]
NUMBERS = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve"]
THINGS = ["apples", "bikes", "books", "boxes", "cups", "doors", "eggs", "flags", "hats", "keys", "lamps", "maps",
          "pears", "ropes", "shoes", "spoons"]
NAMES = ["Ada", "Boris", "Clara", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kira", "Liam"]
CITIES = ["Athens", "Bergen", "Cairo", "Dakar", "Essen", "Fukuoka", "Geneva", "Hanoi", "Izmir", "Jaipur", "Kyoto"]
CHECKS = ["Newsletter", "Gift wrap", "Insurance", "Receipt", "Express"]
RADIOS = {"Size": ("Small", "Medium", "Large"), "Seat": ("Aisle", "Middle", "Window")}
MENUS = {"Colour": ("Black", "Blue", "Green", "Red", "White"), "Pay by": ("Card", "Cash", "Cheque", "Transfer")}
SLIDERS = {"Volume": 10, "Stars": 5, "Copies": 20}
COLOURS = ["red", "green", "blue", "yellow", "purple"]
# fmt: on
NOTES = "notes.txt"


@dataclass(frozen=True)
class Job:
    """One job: its words, what is opened, and what must be saved."""

    kind: str
    goal: str
    wanted: Any  # the text of the file, or what the panel must have saved
    files: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] | None = None
    steps: Any = None  # what the expert needs beside that

    def right(self, screen: Mapping[str, Any]) -> bool:
        """Returns whether what was saved is what was wanted; a file's last line may end with a line end or not."""
        if self.kind == "edit":
            text = screen["files"][NOTES]
            return text is not None and text.rstrip("\n") == self.wanted.rstrip("\n")
        return bool(screen["widgets"]) and screen["widgets"]["saved"] == self.wanted


def draw(kind: str, seed: int) -> Job:
    rng = random.Random(f"desktop {kind} {seed}")
    makers: dict[str, Callable[[random.Random], Job]] = {
        "edit": _edit,
        "form": _form,
        "calculator": _calculator,
        "board": _board,
    }
    return makers[kind](rng)


def _line(rng: random.Random) -> str:
    return f"{rng.choice(VERBS)} {rng.choice(NUMBERS)} {rng.choice(THINGS)}"


def _edit(rng: random.Random) -> Job:
    lines = list(dict.fromkeys(_line(rng) for _ in range(rng.randint(3, 6))))
    at, new = rng.randrange(len(lines)), _line(rng)
    way = rng.choice(("append", "first", "delete", "replace", "change"))
    if way == "append":
        goal, result = f'Add the line "{new}" at the end of the file', [*lines, new]
    elif way == "first":
        goal, result = f'Add the line "{new}" at the top of the file', [new, *lines]
    elif way == "delete":
        goal, result = f"Delete line {at + 1} of the file", lines[:at] + lines[at + 1 :]
    elif way == "replace":
        goal, result = f'Replace line {at + 1} of the file by "{new}"', [*lines[:at], new, *lines[at + 1 :]]
    else:
        old = lines[at].split()[2]
        other = rng.choice([thing for thing in THINGS if thing != old])
        result = [" ".join(other if word == old else word for word in line.split()) for line in lines]
        goal = f'Replace the word "{old}" by "{other}" wherever it stands in the file'
    text = "\n".join(lines) + "\n"
    instruction = f"{goal}, and save it. It is open, and holds:\n{text.rstrip()}"
    return Job("edit", instruction, "\n".join(result) + "\n", files={NOTES: text})


def _form(rng: random.Random) -> Job:
    count = rng.randint(3, 5)
    rows = ["entry", *rng.sample(["entry", "check", "check", "radio", "menu", "slider"], count - 1)]
    rng.shuffle(rows)
    labels = {"entry": ["Name", "City"], "check": rng.sample(CHECKS, 2), "radio": [rng.choice(list(RADIOS))]}
    labels |= {"menu": [rng.choice(list(MENUS))], "slider": [rng.choice(list(SLIDERS))]}
    fields: list[dict[str, Any]] = []
    wanted: dict[str, Any] = {}
    asked: list[str] = []
    for kind in rows:
        name = labels[kind].pop(0)
        one: dict[str, Any] = {"kind": kind, "name": name}
        if kind == "entry":
            one["value"] = rng.choice(("", "", "nobody"))
            wanted[name] = rng.choice(NAMES if name == "Name" else CITIES)
            asked.append(f'{name} to "{wanted[name]}"')
        elif kind == "check":
            one["value"] = rng.random() < 0.3
            wanted[name] = rng.random() < 0.7
            asked.append(f"{name} to {'on' if wanted[name] else 'off'}")
        elif kind == "slider":
            one |= {"value": 0, "to": SLIDERS[name]}
            wanted[name] = rng.randint(1, min(SLIDERS[name], 10))
            asked.append(f"{name} to {wanted[name]}")
        else:
            options = (RADIOS if kind == "radio" else MENUS)[name]
            first, wanted[name] = rng.sample(options, 2)
            one |= {"value": first, "options": list(options)}
            asked.append(f"{name} to {wanted[name]}")
        fields.append(one)
    spec = {"kind": "form", "title": "Form", "save": "Save", "fields": fields}
    return Job("form", f"Set {', '.join(asked)}, and press Save.", wanted, spec=spec)


def _calculator(rng: random.Random) -> Job:
    one, two, sign = rng.randint(12, 99), rng.randint(3, 99), rng.choice("+-*")
    result = {"+": one + two, "-": one - two, "*": one * two}[sign]
    spec = {"kind": "calculator", "title": "Calculator", "save": "Store"}
    instruction = f"Work out {one} {sign} {two} on the calculator, and press Store while it shows the result."
    return Job("calculator", instruction, {"Display": str(result)}, spec=spec, steps=f"{one}{sign}{two}")


def _board(rng: random.Random) -> Job:
    kinds = [(colour, kind) for colour in COLOURS for kind in ("circle", "square")]
    shapes = rng.sample(kinds, rng.randint(2, 4))
    spots = rng.sample([(60 + 110 * n, 60) for n in range(6)], len(shapes))
    boxes = [{"name": name, "x": x, "y": 160, "w": 280, "h": 220} for name, x in (("Left", 40), ("Right", 400))]
    placed = [{"colour": c, "kind": k, "x": x, "y": y} for (c, k), (x, y) in zip(shapes, spots, strict=True)]
    names = [f"{colour} {kind}" for colour, kind in shapes]
    if rng.random() < 0.5:
        wanted = {name: "Left" if name.endswith("circle") else "Right" for name in names}
        instruction = "Drag every circle into the box Left and every square into the box Right"
    else:
        wanted = {name: rng.choice(("Left", "Right", "")) for name in names}
        wanted[rng.choice(names)] = "Right"
        moved = [f"the {name} into the box {box}" for name, box in wanted.items() if box]
        instruction = f"Drag {', '.join(moved)}, and nothing else into a box"
    spec = {"kind": "board", "title": "Board", "save": "Save", "boxes": boxes, "shapes": placed}
    return Job("board", f"{instruction}, then press Save.", wanted, spec=spec)
