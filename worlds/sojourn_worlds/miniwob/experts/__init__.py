"""Scripted expert policies: they choose the next action from what the page shows now, so that demonstrations teach only
what can be known.

They use nothing that the observation hides: `click-tab-2` and `navigate-tree` open tabs and folders in order until the
goal is in sight. Each can be asked at any point of an episode; where a page does not show its progress (what has the
focus, what was copied), the actions so far tell it. Where an inbox holds two messages of the person who is meant, they
take the first: nothing says which it is.
"""

from __future__ import annotations

from sojourn_worlds.miniwob.experts.clicks import CLICKS
from sojourn_worlds.miniwob.experts.drawn import DRAWN
from sojourn_worlds.miniwob.experts.forms import FORMS
from sojourn_worlds.miniwob.experts.look import Expert
from sojourn_worlds.miniwob.experts.sites import SITES

EXPERTS: dict[str, Expert] = dict(sorted((CLICKS | FORMS | DRAWN | SITES).items()))
