"""What the generated shop sells: departments, the kinds of product in them, and the words that describe those.

Written for Sojourn. Three properties keep rewards exact, and a test checks them: no two kinds share a word, no
attribute is similar to another one (see `reward.similar`), and no attribute occurs in a kind's name or in a sentence of
a description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Department:
    """A department. `groups`: group -> kinds of product. `prices`: lowest and highest, in whole dollars. `options`:
    names.
    """

    attributes: tuple[str, ...]
    groups: Mapping[str, tuple[str, ...]]
    options: tuple[str, ...]
    prices: tuple[int, int]


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


def _department(attributes: str, options: str, prices: tuple[int, int], **groups: str) -> Department:
    kinds = {name: _words(text) for name, text in groups.items()}
    return Department(_words(attributes), kinds, _words(options), prices)


DEPARTMENTS: dict[str, Department] = {
    "clothing": _department(
        "machine washable, moisture wicking, wrinkle free, lightweight, hand stitched, organic cotton, stretchy, "
        "fleece lined, water repellent, quick drying, reflective, anti pilling, slim fit, arch support",
        "size, colour",
        (12, 140),
        shoes="sneakers, boots, sandals, loafers",
        tops="hoodie, cardigan, blouse, parka",
        bottoms="jeans, leggings, trousers, skirt",
        accessories="scarf, beanie, belt, gloves",
    ),
    "electronics": _department(
        "fast charging, noise cancelling, voice controlled, shock resistant, plug and play, energy saving, backlit, "
        "foldable, dual band, dust proof, magnetic, low latency, splash resistant, ultra thin",
        "connector, colour, pack",
        (15, 260),
        audio="earbuds, soundbar, turntable, microphone",
        computing="keyboard, monitor, router, webcam",
        power="charger, flashlight, extension cord, battery bank",
        optics="tripod, drone, projector, binoculars",
    ),
    "kitchen": _department(
        "dishwasher safe, non stick, bpa free, heat resistant, stainless steel, leak proof, oven ready, easy grip, "
        "space saving, scratch resistant, induction compatible, double walled, rust free, stackable",
        "capacity, colour, pack",
        (8, 120),
        appliances="kettle, toaster, blender, juicer",
        cookware="skillet, saucepan, wok, griddle",
        utensils="colander, whisk, spatula, corkscrew",
        tableware="mug, tumbler, lunch box, platter",
    ),
    "home": _department(
        "solid wood, easy assembly, hypoallergenic, blackout, hand woven, adjustable, memory foam, stain resistant, "
        "pet friendly, wall mounted, dimmable, fade resistant, lead free, mid century",
        "finish, colour, width",
        (20, 380),
        seating="sofa, armchair, ottoman, stool",
        storage="bookshelf, nightstand, wardrobe, cabinet",
        textiles="rug, curtain, pillow, blanket",
        decor="lamp, mirror, vase, clock",
    ),
    "beauty": _department(
        "cruelty free, sulfate free, fragrance free, alcohol free, long lasting, paraben free, vegan, travel sized, "
        "dermatologist tested, anti aging, tea tree, deep cleansing, shine boosting, fast absorbing",
        "scent, volume, pack",
        (6, 70),
        hair="shampoo, conditioner, pomade, hairspray",
        skin="lotion, sunscreen, serum, toner",
        makeup="lipstick, mascara, eyeliner, concealer",
        bath="soap, deodorant, perfume, scrub",
    ),
    "grocery": _department(
        "gluten free, sugar free, non gmo, keto friendly, low sodium, plant based, dairy free, high fiber, "
        "individually wrapped, fair trade, slow roasted, nut free, stone ground, preservative free",
        "flavour, pack, weight",
        (5, 60),
        breakfast="granola, oatmeal, pancake mix, muesli",
        snacks="pretzels, popcorn, crackers, jerky",
        drinks="coffee, lemonade, cocoa, cider",
        pantry="noodles, salsa, honey, mustard",
    ),
    "sports": _department(
        "anti slip, high density, weather proof, uv protected, heavy duty, compact, padded, carbon fiber, "
        "puncture resistant, breathable, tear resistant, sweat absorbing, quick release, low profile",
        "size, colour, pack",
        (14, 300),
        fitness="yoga mat, dumbbell, jump rope, treadmill",
        camping="tent, sleeping bag, hammock, lantern",
        water="kayak, snorkel, surfboard, paddle",
        team="basketball, racket, helmet, backpack",
    ),
    "garden": _department(
        "eco friendly, child safe, hand painted, battery operated, glow in the dark, chew resistant, self watering, "
        "frost resistant, educational, non toxic, sturdy, wear resistant, solar powered, rounded edges",
        "colour, age, pack",
        (7, 160),
        toys="puzzle, doll house, building blocks, kite",
        tools="shovel, hose, wheelbarrow, rake",
        plants="planter, trellis, birdbath, compost bin",
        pets="leash, scratching post, aquarium, kennel",
    ),
}

OPTIONS: dict[str, tuple[str, ...]] = {
    "size": ("small", "medium", "large", "x-large"),
    "colour": _words("black, white, navy, crimson, teal, olive, grey, pink, purple, yellow, orange, brown"),
    "pack": ("single", "pair", "trio", "dozen"),
    "connector": ("usb-c", "lightning", "micro"),
    "capacity": ("half litre", "one litre", "two litres", "family"),
    "finish": ("oak", "walnut", "bamboo", "ebony", "maple"),
    "width": ("narrow", "standard", "wide"),
    "scent": ("lavender", "vanilla", "citrus", "rose", "mint"),
    "volume": ("mini", "regular", "jumbo"),
    "flavour": ("original", "cinnamon", "berry", "caramel", "ginger"),
    "weight": ("small bag", "big bag", "sack"),
    "age": ("toddler", "child", "teen", "adult"),
}
CHARGED = frozenset({"size", "pack", "capacity", "width", "volume", "weight"})
"""Options whose later values may cost more; the first value of an option never does."""

BRAND_STARTS = _words("Nor, Kas, Bel, Tov, Mira, Zen, Ard, Lum, Pex, Vor, Oki, Sol, Ter, Qua, Fen, Hal")
BRAND_ENDS = _words("vel, tori, wick, dal, nix, mo, rano, dex, lia, gard, sen, pur, kin, zo, bert, tessa")

SENTENCES = (
    "{brand} makes this {kind} for {people} who want {wish}.",
    "A {kind} by {brand}, made for {people} and for {wish}.",
    "Our {kind} gives {people} {wish}.",
    "Designed by {brand} with {people} in mind, this {kind} brings {wish}.",
)
PEOPLE = _words("students, parents, commuters, beginners, professionals, hosts, grandparents, neighbours")
WISHES = _words(
    "something that works every day, good value, a fine gift, less trouble at the weekend, a small treat, "
    "one thing fewer to think about, a pleasant surprise, years of use"
)
"""What is nice to have and says nothing: descriptions mix it with the product's attributes."""
