"""Facts about the task pages that `miniwob` ships (MiniWoB++, Liu et al. 2018, arXiv:1802.08802)."""

from __future__ import annotations

import difflib
import importlib.util
from functools import cache
from pathlib import Path

from sojourn.errors import ConfigError, MissingExtraError
from sojourn_worlds.miniwob.experts import EXPERTS
from sojourn_worlds.miniwob.families import FAMILIES

# The plain text of these pages is random filler that no goal refers to; it is left out of observations by default.
FILLER = frozenset(
    {
        "click-button",
        "click-collapsible",
        "click-collapsible-nodelay",
        "click-collapsible-2",
        "click-collapsible-2-nodelay",
        "click-dialog",
        "click-dialog-2",
        "click-link",
        "click-tab",
        "click-tab-2",
        "click-tab-2-easy",
        "click-tab-2-hard",
        "click-tab-2-medium",
        "unicode-test",
    }
)

# Pages that are loaded anew for every episode, as `core.startEpisodeReal` was not seen to bring them back to exactly
# what a fresh load shows: random plays and expert plays of four seeds each, in random order, of which text, source,
# values and scroll positions at every turn were compared with those after a load. (Of social-media-all and
# use-autocomplete, loads differ from each other in values or scroll positions too.) A test checks all others.
RELOADED = frozenset(
    {
        "book-flight",
        "book-flight-nodelay",
        "chase-circle",
        "choose-date",
        "choose-date-easy",
        "choose-date-medium",
        "choose-date-nodelay",
        "click-collapsible",
        "click-menu-2",
        "click-pie",
        "click-pie-nodelay",
        "copy-paste-2",
        "drag-items",
        "drag-items-grid",
        "drag-sort-numbers",
        "form-sequence",
        "moving-items",
        "scroll-text",
        "scroll-text-2",
        "search-engine",
        "simon-says",
        "social-media",
        "social-media-all",
        "social-media-some",
        "use-autocomplete",
        "use-autocomplete-nodelay",
        "use-colorwheel",
        "use-colorwheel-2",
        "use-slider",
        "use-slider-2",
        "use-spinner",
    }
)

# Pages that can pay something between -1 and 1, so that `raw > 0` ("success") may be a partly right answer.
PARTIAL = frozenset(
    {
        "bisect-angle",
        "button-delay",
        "chase-circle",
        "circle-center",
        "click-checkboxes",
        "click-checkboxes-large",
        "click-checkboxes-soft",
        "click-checkboxes-transfer",
        "find-greatest",
        "find-midpoint",
        "hot-cold",
        "hover-shape",
        "moving-items",
        "right-angle",
        "tic-tac-toe",
    }
)


# The 56 pages over which WebN-T5 (Gur et al. 2022, arXiv:2210.03945), WebGUM and others publish their success.
PUBLISHED = (
    "book-flight",
    "choose-date",
    "choose-date-easy",
    "choose-date-medium",
    "choose-list",
    "click-button",
    "click-button-sequence",
    "click-checkboxes",
    "click-checkboxes-large",
    "click-checkboxes-soft",
    "click-checkboxes-transfer",
    "click-collapsible",
    "click-collapsible-2",
    "click-color",
    "click-dialog",
    "click-dialog-2",
    "click-link",
    "click-menu",
    "click-option",
    "click-pie",
    "click-scroll-list",
    "click-shades",
    "click-shape",
    "click-tab",
    "click-tab-2",
    "click-tab-2-hard",
    "click-test",
    "click-test-2",
    "click-widget",
    "count-shape",
    "email-inbox",
    "email-inbox-forward-nl",
    "email-inbox-forward-nl-turk",
    "email-inbox-nl-turk",
    "enter-date",
    "enter-password",
    "enter-text",
    "enter-text-dynamic",
    "enter-time",
    "focus-text",
    "focus-text-2",
    "grid-coordinate",
    "guess-number",
    "identify-shape",
    "login-user",
    "login-user-popup",
    "multi-layouts",
    "multi-orderings",
    "navigate-tree",
    "search-engine",
    "social-media",
    "social-media-all",
    "social-media-some",
    "tic-tac-toe",
    "use-autocomplete",
    "use-spinner",
)


@cache
def html_folder() -> Path:
    """Returns the folder that is served: it holds `miniwob/*.html` and what they load."""
    spec = importlib.util.find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("the miniwob world needs the package `miniwob`: pip install 'sojourn-worlds[miniwob]'")
    return Path(next(iter(spec.submodule_search_locations))) / "html"


@cache
def page_names() -> tuple[str, ...]:
    """Returns the names of all task pages that the package ships, sorted."""
    return tuple(sorted(path.stem for path in (html_folder() / "miniwob").glob("*.html")))


def expand_pages(pages: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the pages that a config names, by themselves or by family.

    "experts" stands for the pages with an expert policy, "published" for the 56 over which results of others are
    published, `()` and "all" for all pages.
    """
    known = page_names()
    groups = {**FAMILIES, "all": known, "experts": tuple(EXPERTS), "published": PUBLISHED}
    for page in pages:
        if page not in known and page not in groups:
            near = difflib.get_close_matches(page, [*known, *groups], n=1, cutoff=0.0)
            raise ConfigError(f"miniwob has no page {page!r} among its {len(known)}: did you mean {near[0]!r}?")
    named = [(page,) if page in known else groups[page] for page in pages or ("all",)]
    return tuple(dict.fromkeys(page for group in named for page in group if page in known))
