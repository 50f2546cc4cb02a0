"""Draws pages from a seed: forms, toolbars of icons, lists, tables and cards, in many styles."""

from __future__ import annotations

import random
from html import escape

# fmt: off
FIELDS = ["Name", "City", "Street", "Phone", "Company", "Country", "Title", "Notes", "Code", "Colour", "Date", "Email"]
BUTTONS = ["Save", "Cancel", "Send", "Print", "Apply", "Reset", "Help", "Back", "Next", "Export", "Share", "Delete"]
LINKS = ["Home", "News", "Prices", "Contact", "Jobs", "Terms", "Blog", "Docs", "Login", "Support", "Events", "Team"]
CHECKS = ["Remember me", "Dark mode", "Sound", "Updates", "Sync", "Backup", "Location", "Notifications"]
WORDS = ["amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "harbor", "island", "jasper", "kelp", "lagoon",
         "maple", "nectar", "onyx", "pebble", "quartz", "river", "saffron", "tundra", "umber", "valley", "willow"]
FONTS = ["sans-serif", "serif", "monospace"]
PAINTS = [("#ffffff", "#202020", "#1a60c0"), ("#202428", "#e8e8e8", "#60b0ff"), ("#fbf6e8", "#403020", "#a04010"),
          ("#eef4f0", "#103020", "#107040")]
ICONS = {
    "circle": '<circle cx="12" cy="12" r="8"/>', "square": '<rect x="5" y="5" width="14" height="14"/>',
    "triangle": '<path d="M12 4 21 20H3z"/>', "plus": '<path d="M10 4h4v6h6v4h-6v6h-4v-6H4v-4h6z"/>',
    "minus": '<path d="M4 10h16v4H4z"/>', "diamond": '<path d="M12 3 21 12 12 21 3 12z"/>',
    "right arrow": '<path d="M4 10h9V5l8 7-8 7v-5H4z"/>', "left arrow": '<path d="M20 10h-9V5l-8 7 8 7v-5h9z"/>',
    "star": '<path d="M12 2 15 9h7l-6 4 2 8-6-5-6 5 2-8-6-4h7z"/>',
    "three bars": '<path d="M4 5h16v3H4zm0 5h16v3H4zm0 5h16v3H4z"/>',
    "cross": '<path d="M6 4 12 10 18 4l2 2-6 6 6 6-2 2-6-6-6 6-2-2 6-6-6-6z"/>',
}
# fmt: on


def draw_page(rng: random.Random) -> str:
    """Returns the HTML of a page of two or three parts."""
    back, ink, accent = rng.choice(PAINTS)
    size, gap, round_ = rng.randint(12, 18), rng.randint(4, 14), rng.choice((0, 4, 12))
    parts = rng.sample([_links, _toolbar, _form, _list, _table, _cards], rng.randint(2, 3))
    style = (
        f"body{{margin:{gap}px;background:{back};color:{ink};font:{size}px {rng.choice(FONTS)}}}"
        f"a{{color:{accent};margin-right:{gap}px}}button,input,select{{font:inherit;border-radius:{round_}px}}"
        f"button{{margin:{gap // 2}px;padding:{gap // 2}px {gap}px}}section{{margin-bottom:{gap}px}}"
        f"button svg{{width:{size + 4}px;height:{size + 4}px;fill:{accent};display:block}}"
        f"td{{padding:2px {gap}px;border:1px solid {accent}}}label{{display:inline-block;min-width:6em}}"
        f".cards{{display:flex;gap:{gap}px}}.card{{border:1px solid {accent};padding:{gap}px;border-radius:{round_}px}}"
    )
    body = "".join(f"<section>{part(rng)}</section>" for part in parts)
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><style>{style}</style><body>{body}</body></html>'


def _links(rng: random.Random) -> str:
    return "".join(f'<a href="#">{escape(name)}</a>' for name in rng.sample(LINKS, rng.randint(3, 6)))


def _toolbar(rng: random.Random) -> str:
    return "".join(
        f'<button aria-label="{name} icon"><svg viewBox="0 0 24 24">{ICONS[name]}</svg></button>'
        for name in rng.sample(list(ICONS), rng.randint(3, 6))
    )


def _form(rng: random.Random) -> str:
    rows = [
        f'<div><label for="f{n}">{name}</label><input id="f{n}" size="{rng.randint(8, 24)}"></div>'
        for n, name in enumerate(rng.sample(FIELDS, rng.randint(2, 4)))
    ]
    rows += [
        f'<div><input type="checkbox" id="c{n}"><label for="c{n}">{name}</label></div>'
        for n, name in enumerate(rng.sample(CHECKS, rng.randint(1, 3)))
    ]
    return "".join(rows) + "".join(f"<button>{name}</button>" for name in rng.sample(BUTTONS, 2))


def _list(rng: random.Random) -> str:
    names = rng.sample(WORDS, rng.randint(3, 5))
    return "<ul>" + "".join(f'<li><a href="#">{name} {rng.randint(2, 99)}</a></li>' for name in names) + "</ul>"


def _table(rng: random.Random) -> str:
    verbs = rng.sample(BUTTONS, 2)
    rows = "".join(
        f"<tr><td>{word}</td>" + "".join(f"<td><button>{verb} {word}</button></td>" for verb in verbs) + "</tr>"
        for word in rng.sample(WORDS, rng.randint(2, 4))
    )
    return f"<table>{rows}</table>"


def _cards(rng: random.Random) -> str:
    cards = "".join(
        f'<div class="card"><b>{word}</b><br>{" ".join(rng.sample(WORDS, 2))}<br><button>Open {word}</button></div>'
        for word in rng.sample(WORDS, rng.randint(2, 3))
    )
    return f'<div class="cards">{cards}</div>'
