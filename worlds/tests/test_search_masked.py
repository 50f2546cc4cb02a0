"""Texts with masks in the world `search`: what they hide, how answers are marked, and what cannot go with them."""

from __future__ import annotations

import random
import re

import pytest
from search_play import follow

from sojourn.config.registry import build
from sojourn.errors import ConfigError
from sojourn_worlds.search import Search
from sojourn_worlds.search.invented import invent
from sojourn_worlds.search.marking import mark_spans, normalised
from sojourn_worlds.search.masked import MOST_MASKS, mask_spans


@pytest.mark.parametrize("marking", ["exact", "f1", "evidence"])
async def test_the_expert_finds_what_masks_hide(marking) -> None:
    family = Search(masks=0, marking=marking)
    seen = set()
    for split, count in (("train", 40), ("test", 10)):
        for task in [family.tasks(split)[n] for n in range(count)]:
            steps = await follow(family.make(task))
            assert steps[-1][1].rewards == {"agent": 1.0}
            assert steps[-1][1].success
            seen.update(task.tags)
    assert seen == {f"masks-{count}" for count in range(1, MOST_MASKS + 1)}


def test_a_text_with_masks_is_a_passage_without_what_they_hide() -> None:
    """Filled in again, it is what the passages say; what is hidden stands nowhere in it."""
    for seed in range(200):
        corpus = invent(seed % 20, 12)
        masks = 1 + seed % MOST_MASKS
        task = mask_spans(random.Random(seed), corpus, masks)
        assert len(task.spans) == masks
        assert task.answer == "; ".join(value for value, *_ in task.spans)
        text = task.text
        for number, (value, *_) in enumerate(task.spans, 1):
            assert f"[mask {number}]" in text
            text = text.replace(f"[mask {number}]", value)
        passages = [corpus.by_id[id] for id in task.evidence]
        assert text == "\n".join(f"{passage.title}\n{passage.text}" for passage in passages)
        left = f" {normalised(re.sub(r'.mask [0-9].', ' ', task.text))} "
        assert not [value for value, *_ in task.spans if f" {normalised(value)} " in left]
        assert len({passage.names[0] for passage in passages}) == 1
        assert task == mask_spans(random.Random(seed), corpus, masks)


def test_masks_are_marked_one_by_one() -> None:
    spans = [["Tranton"], ["Thalu Thukrus", "Thukrus"], ["19"]]

    def judged(reply: str) -> tuple[float, float]:
        exact, overlap, _ = mark_spans(reply, spans, {"1"}, {"1"}, lambda text: names & set(text.split()))
        return exact, round(overlap, 4)

    names = {"Tranton", "Krolia"}
    assert judged("tranton; Thukrus; 19") == (1.0, 1.0)
    assert judged("Tranton; Thalu Thukrus;19") == (1.0, 1.0)
    assert judged("Tranton; Krolia; 20") == (0.0, round(1 / 3, 4))
    assert judged("Tranton; Thalu") == (0.0, round((1 + 2 / 3) / 3, 4))  # half of a name, and a mask without a part
    assert judged("Thukrus; Tranton; 19") == (0.0, round(1 / 3, 4))  # their order counts
    assert judged("Tranton Krolia; Thukrus; 19") == (0.0, round(2 / 3, 4))  # a part with two names is worth nothing
    assert judged("Tranton; Thukrus; 19; 20") == (0.0, 1.0)
    assert judged("nothing") == (0.0, 0.0)


@pytest.mark.parametrize("keys", [{"choices": True}, {"hops": 3}, {"corpus": "", "questions": "mine.jsonl"}], ids=str)
def test_masks_and_questions_are_one_or_the_other(keys) -> None:
    with pytest.raises(ConfigError, match="leave these out, or masks"):
        Search(masks=2, **keys)
    with pytest.raises(ConfigError, match="masks"):
        Search(masks=5)


async def test_levels_open_by_the_number_of_masks() -> None:
    family = Search(masks=0, train=60)
    curriculum = build("curriculum", {"name": "levels", "by": "tag"}).value.bind(family.tasks("train"), 0)
    assert {curriculum.draw(slot).tags for slot in range(10)} == {("masks-1",)}
