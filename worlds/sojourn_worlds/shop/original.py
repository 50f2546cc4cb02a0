"""The original WebShop data: products, mined attributes and instructions, as its authors publish them in JSON.

It reads `items_shuffle*.json` (products), `items_ins_v2*.json` (attributes and synthetic instructions, by ASIN) and,
where present, `items_human_ins.json` (crowd-sourced instructions), the files of github.com/princeton-nlp/WebShop,
`setup.sh`. It differs from its loader (web_agent_site/engine/engine.py): a price is drawn from a price range by this
project's seed; a synthetic instruction makes one goal, with one combination of options drawn by the seed, instead of
one goal per combination; reviews are not read.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from sojourn.errors import ConfigError
from sojourn_worlds.shop.catalogue import Catalogue, Product
from sojourn_worlds.shop.goals import limit_text, price_limit
from sojourn_worlds.shop.reward import Goal

NO_PRICE = 100.0  # the price that WebShop gives a product whose price is unknown


class Wish(NamedTuple):
    """An instruction as the data have it, before a price limit is set."""

    product: str
    text: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]


class Original(NamedTuple):
    catalogue: Catalogue
    wishes: tuple[Wish, ...]  # shuffled by the seed


def find_products_file(data: str) -> Path:
    """Returns the products file that a folder or file name in the config means."""
    path = Path(data).expanduser()
    if path.is_file():
        return path.resolve()
    files = sorted(path.glob("items_shuffle*.json")) if path.is_dir() else []
    if len(files) == 1:
        return files[0].resolve()
    what = f"has {', '.join(file.name for file in files)}" if files else "has no items_shuffle*.json"
    raise ConfigError(f"shop: data = '{data}' {what}: name one products file of WebShop, or a folder with one")


@lru_cache(maxsize=2)
def load(file: Path, count: int, seed: int) -> Original:
    """Returns the first `count` products of a file with distinct ASINs, and the instructions about them."""
    suffix = file.stem.removeprefix("items_shuffle")
    beside = [file.with_name(f"items_ins_v2{suffix}.json"), file.with_name("items_ins_v2.json")]
    described = next((path for path in beside if path.is_file()), None)
    if described is None:
        raise ConfigError(
            f"shop: there is no {beside[0].name} beside '{file}': WebShop's attributes come with its data"
        )
    notes = _read(described, dict)
    products: dict[str, Product] = {}
    for item in _read(file, list):
        asin = str(item.get("asin", "nan"))
        if len(products) < count and asin != "nan" and len(asin) <= 10 and asin not in products:
            products[asin] = _product(asin, item, notes.get(asin, {}), seed)
    human = file.with_name("items_human_ins.json")
    wishes = _human(products, _read(human, dict)) if human.is_file() else _synthetic(products, notes, seed)
    if not wishes:
        raise ConfigError(f"shop: no instruction in {human.name} or {described.name} is about a product of '{file}'")
    random.Random(f"wishes {seed}").shuffle(wishes)
    return Original(Catalogue(tuple(products.values())), tuple(wishes))


def make_goal(data: Original, number: int, seed: int, *, priced: bool) -> Goal:
    """Returns the goal of an instruction by its number, with a price limit drawn by the seed as WebShop draws it."""
    wish = data.wishes[number]
    target = data.catalogue.by_id[wish.product]
    limit = price_limit(random.Random(f"goal {seed}"), target.price) if priced else None
    return Goal(wish.text + limit_text(limit), target, wish.attributes, wish.options, limit)


def _read(file: Path, kind: type) -> Any:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"shop: '{file}' cannot be read as JSON ({error}): expected WebShop's file") from None
    if not isinstance(content, kind):
        raise ConfigError(f"shop: '{file}' holds a JSON {type(content).__name__}, WebShop's has a {kind.__name__}")
    return content


def _line(text: Any) -> str:
    return " ".join(str(text or "").split())


def _product(asin: str, item: Mapping[str, Any], notes: Mapping[str, Any], seed: int) -> Product:
    features = item.get("small_description") or []
    features = features if isinstance(features, list) else [features]
    return Product(
        id=asin,
        kind=_line(item.get("query")).lower(),
        category=tuple(level.strip() for level in str(item.get("product_category", "")).split("›") if level.strip()),
        brand="",
        title=_line(item.get("name")),
        attributes=tuple(_line(attribute) for attribute in notes.get("attributes") or ()),
        options=_options(item.get("customization_options") or {}),
        price=_price(item.get("pricing"), random.Random(f"price {seed} {asin}")),
        features=tuple(_line(feature) for feature in features if _line(feature)),
        description=_line(item.get("full_description")),
    )


def _options(listed: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    options = {}
    for name, contents in listed.items():
        values = [_line(content["value"]).replace("/", " | ").lower() for content in contents or ()]
        if values:
            options[name.lower()] = tuple(dict.fromkeys(values))
    return options


def _price(pricing: Any, rng: random.Random) -> float:
    """Returns the price in "$9.99", and for "$5.00$9.00" a price drawn from that range."""
    amounts = [float(re.sub(r"[^\d.]", "", part)) for part in str(pricing or "").split("$")[1:]]
    if not amounts:
        return NO_PRICE
    return amounts[0] if len(amounts) == 1 else round(rng.uniform(*amounts[:2]), 2)


def _human(products: Mapping[str, Product], instructions: Mapping[str, Any]) -> list[Wish]:
    """Returns the crowd-sourced instructions; WebShop skips those without attributes."""
    wishes = []
    for asin, notes in instructions.items():
        for note in notes if asin in products else ():
            if note["instruction_attributes"]:
                asked = note["instruction_options"]
                pairs = asked.items() if isinstance(asked, dict) else [("", value) for value in asked]
                options = tuple((name.lower(), _line(value).lower()) for name, value in pairs)
                text = _line(note["instruction"]).strip(".")
                wishes.append(Wish(asin, text, tuple(map(_line, note["instruction_attributes"])), options))
    return wishes


def _synthetic(products: Mapping[str, Product], notes: Mapping[str, Any], seed: int) -> list[Wish]:
    wishes = []
    for asin, product in products.items():
        note = notes.get(asin, {})
        if note.get("instruction") and note.get("instruction_attributes"):
            rng = random.Random(f"options {seed} {asin}")
            options = tuple((name, rng.choice(product.options[name])) for name in sorted(product.options))
            extras = ", and ".join(f"{name}: {value}" for name, value in options)
            text = _line(note["instruction"]).strip(".") + (f" with {extras}" if extras else "")
            wishes.append(Wish(asin, text, tuple(map(_line, note["instruction_attributes"])), options))
    return wishes
