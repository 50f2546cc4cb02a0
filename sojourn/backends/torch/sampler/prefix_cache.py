"""The sampler's prefix tree, which records which page holds the keys and values of which tokens, and which contexts
share it.

A page holds consecutive tokens that follow those of its parent. Pages that are full and computed are shared by all
contexts that begin with their tokens; the last page of a context is its own, so a fork copies less than a page. Pages
that no context reads stay until their memory is needed, and the least recently used is evicted first. Models that are
sampled by one engine, as adapters over one base, have a tree each, and share the pages of none. This module only does
the bookkeeping: the tensors are in `cache.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np

from sojourn.types import IntArray, SamplingParams

POLICY = SamplingParams.model
MOST_LEAVES = 2  # entries of idle pages that are held for each page, those that are out of date included
PATIENCE = 4  # tokens: a request waits for a page that is being filled only if that saves it more than this


@dataclass(eq=False)
class Page:
    """A node of the tree: up to `size` tokens and the number of the page in the cache."""

    number: int  # the index of its keys and values in the cache
    parent: Page | None
    tokens: IntArray  # (size,) of which the first `known` are valid, the others -1: a row of the tree's table
    known: int = 0
    filled: int = 0  # tokens whose keys and values are computed
    readers: int = 0  # contexts that use it now
    used: int = 0  # the tree's clock when a context last released it
    attached: bool = True  # whether it can be found from the root
    children: dict[int, Page] = field(default_factory=dict)  # by their numbers
    complete: dict[bytes, Page] = field(default_factory=dict)  # the full children, by the bytes of their tokens


@dataclass(eq=False)
class Context:
    """The pages of one admitted request, in order (its block table)."""

    root: Page  # of the tree that it belongs to
    model: str  # whose keys and values they are
    pages: list[Page]
    table: IntArray  # (max pages,) the numbers of its pages
    known: int  # its tokens
    filled: int  # tokens whose keys and values are computed
    reserve: int  # pages that are reserved for it


class Copy(NamedTuple):
    """A page whose first tokens another page needs; the rest of the copy will be overwritten."""

    source: int
    target: int


class Claim(NamedTuple):
    """The context of an admitted request; the first `reused` tokens of its prompt need not be computed."""

    context: Context
    reused: int
    copy: Copy | None = None


class Wait:
    """Says that the prompt shares a longer prefix with a context that is still being computed: ask again after the next
    step."""


WAIT = Wait()


class Match(NamedTuple):
    """The longest prefix of a prompt that the tree holds: whole pages, then the beginning of another."""

    pages: list[Page]
    partial: Page | None
    ready: int  # tokens of the prompt that are computed
    coming: int  # tokens that are computed or are being computed for another context


class Leaf(NamedTuple):
    """A page that became idle at the time `used`; of equal times the one of the least `order` is evicted first."""

    used: int
    order: int
    page: Page


def _is_current(leaf: Leaf) -> bool:
    """Returns whether a page is still as idle as it was then, and a leaf of the tree."""
    page = leaf.page
    return page.attached and page.readers == 0 and not page.children and page.used == leaf.used


class PrefixTree:
    """The trees of all models over `pages` pages of `size` tokens; a context has at most `length` tokens."""

    def __init__(self, pages: int, size: int, length: int) -> None:
        self.size, self.pages = size, pages
        self.width = -(-length // size)
        self.evicted = 0
        self._tokens = np.zeros((pages, size), dtype=np.int64)  # of every page, by its number
        self._roots: dict[str, Page] = {}  # by model
        self._free = list(range(pages - 1, -1, -1))
        self._reserved = self._idle = self._clock = 0
        self._leaves: list[Leaf] = []  # a heap of idle pages; entries may be out of date
        self._order = count()

    @property
    def held(self) -> int:
        """Returns the number of pages that are in use or kept for later."""
        return self.pages - len(self._free)

    def claim(self, prompt: IntArray, room: int, *, model: str = POLICY, reuse: bool = True) -> Claim | Wait | None:
        """Returns a context of the model for this prompt and `room` more tokens, or None where memory is short. The
        last token of the prompt is always left to compute."""
        root = self._roots.setdefault(model, self._new_root())
        match = self._match(root, prompt[:-1]) if reuse else Match([], None, 0, 0)
        if match.coming - match.ready > PATIENCE:
            return WAIT
        extended = match.partial if match.partial is not None and self._can_extend(match) else None
        shared = [*match.pages, extended] if extended is not None else match.pages
        needed = -(-(len(prompt) + room) // self.size) - len(shared)
        if needed > len(self._free) + self._idle - self._reserved - sum(page.readers == 0 for page in shared):
            return None
        context = Context(root, model, [], np.zeros(self.width, dtype=np.int64), 0, match.ready, needed)
        self._reserved += needed
        for page in shared:
            self._idle -= page.readers == 0
            page.readers += 1
            self._join(context, page)
        return Claim(context, match.ready, self._append_uncached(context, prompt, match, extended))

    def append(self, context: Context, tokens: Sequence[int] | IntArray) -> None:
        """Appends tokens that are not computed yet."""
        while len(tokens):
            page = context.pages[-1] if context.pages else None
            if page is None or page.known == self.size:
                page = self._grow(context)
            part = tokens[: self.size - page.known]
            page.tokens[page.known : page.known + len(part)] = part
            page.known += len(part)
            context.known += len(part)
            if page.known == self.size and page.attached and page.parent is not None:
                page.parent.complete.setdefault(page.tokens.tobytes(), page)
            tokens = tokens[len(part) :]

    def tokens(self, context: Context, begin: int, end: int) -> IntArray:
        if end - begin == 1:
            return context.pages[begin // self.size].tokens[begin % self.size : begin % self.size + 1]
        first, last = begin // self.size, -(-end // self.size)
        joined = np.concatenate([page.tokens for page in context.pages[first:last]])
        return joined[begin - first * self.size : end - first * self.size]

    def fill(self, context: Context, end: int) -> None:
        """Notes that the context's keys and values are computed up to this token."""
        for number in range(context.filled // self.size, -(-end // self.size)):
            page = context.pages[number]
            page.filled = max(page.filled, min(end - number * self.size, self.size))
            if page.filled == self.size and page.attached:
                self._merge(context, number)
        context.filled = end

    def release(self, context: Context, *, keep: bool = True) -> None:
        """Ends a context. With `keep`, what it has computed stays for contexts that share its prefix."""
        self._clock += 1
        self._reserved -= context.reserve
        for page in reversed(context.pages):
            page.readers -= 1
            if page.readers:
                continue
            if not page.attached or not page.filled or not (keep or page.children):
                self._drop(page)
            else:
                self._make_idle(page)

    def invalidate(self) -> None:
        """Empties all trees after a change of weights: idle pages are freed, and pages in use are shared no more."""
        for model in list(self._roots):
            self.forget(model)
        self._leaves = []

    def forget(self, model: str) -> None:
        """Empties the tree of one model, as `invalidate` does that of all."""
        for page in list(self._descendants(self._roots.pop(model, self._new_root()))):
            page.attached = False
            if page.readers == 0:
                self._idle -= 1
                self._free.append(page.number)

    # -- lookup

    def _match(self, root: Page, prompt: IntArray) -> Match:
        page, pages, known = root, [], 0
        while (child := page.complete.get(prompt[known : known + self.size].tobytes())) is not None:
            page, known = child, known + self.size
            pages.append(child)
        partial, common = self._closest_child(page, prompt[known:])
        ready = 0
        for number, whole in enumerate(pages):
            ready += whole.filled
            if whole.filled < self.size:
                return Match(pages[:number], whole, ready, known + common)
        return Match(pages, partial, ready + min(common, partial.filled if partial else 0), known + common)

    def _closest_child(self, page: Page, prompt: IntArray) -> tuple[Page | None, int]:
        """Finds the child page that shares the longest prefix with the prompt; among equals it prefers one that can be
        extended. Returns it with the length of that prefix.

        The children are compared in one operation: as many as there are plays may differ in their first tokens."""
        children, width = page.children, min(self.size, len(prompt))
        if not children or not width:
            return None, 0
        numbers = np.fromiter(children, np.intp, len(children))
        different = self._tokens[numbers, :width] != prompt[:width]  # (children, width)
        common = different.argmax(axis=1)  # where the first difference is, or 0 where there is none
        common[(common == 0) & ~different[:, 0]] = width
        longest = int(common.max())
        if not longest:
            return None, 0
        closest = [children[number] for number in numbers[common == longest].tolist()]
        free = (child for child in closest if child.known == longest and child.readers == 0)
        return next(free, closest[0]), longest

    def _can_extend(self, match: Match) -> bool:
        """Returns whether the new context may append to the partial page itself: the page holds only tokens of this
        prompt, and no context or page uses it."""
        page = match.partial
        assert page is not None
        if page.readers or page.children or page.known == self.size:
            return False
        return match.ready == len(match.pages) * self.size + page.known

    # -- changes of the tree

    def _append_uncached(self, context: Context, prompt: IntArray, match: Match, extended: Page | None) -> Copy | None:
        """Appends the tokens that the context's pages do not hold yet. Returns the page of which the first of these can
        be copied, if any."""
        self.append(context, prompt[context.known :])
        shared = len(match.pages) * self.size
        self.fill(context, match.ready)
        if extended is not None or match.partial is None or match.ready == shared:
            return None
        return Copy(match.partial.number, context.pages[len(match.pages)].number)

    def _join(self, context: Context, page: Page) -> None:
        context.table[len(context.pages)] = page.number
        context.pages.append(page)
        context.known += page.known

    def _grow(self, context: Context) -> Page:
        """Adds a page to the end of a context, from its reserve."""
        parent = context.pages[-1] if context.pages else context.root
        if not self._free:
            self._evict()
        context.reserve, self._reserved = context.reserve - 1, self._reserved - 1
        number = self._free.pop()
        self._tokens[number] = -1
        page = Page(number, parent, self._tokens[number], readers=1, attached=parent.attached)
        if page.attached:
            parent.children[number] = page
        self._join(context, page)
        return page

    def _merge(self, context: Context, number: int) -> None:
        """Replaces a full page by an equal one that another context computed before, if there is one."""
        page = context.pages[number]
        assert page.parent is not None
        same = page.parent.complete.setdefault(page.tokens.tobytes(), page)
        if same is page:
            return
        if same.filled < self.size:
            page.parent.complete[page.tokens.tobytes()] = page
            return
        for child in page.children.values():
            child.parent = same
        same.children |= page.children
        same.complete = page.complete | same.complete
        self._idle -= same.readers == 0
        same.readers += 1
        context.pages[number], context.table[number] = same, same.number
        self._drop(page)

    def _make_idle(self, page: Page) -> None:
        """Marks a page that no context reads as idle, and forgets its tokens that were never computed."""
        if page.filled < page.known:
            self._forget_tokens(page)
            page.known = page.filled
            page.tokens[page.known :] = -1
        page.used = self._clock
        self._idle += 1
        self._push_leaf(page)

    def _evict(self) -> None:
        """Frees the leaf that has been idle for longest."""
        while True:
            leaf = heapq.heappop(self._leaves)
            if _is_current(leaf):
                break
        page = leaf.page
        self._idle -= 1
        self.evicted += 1
        self._drop(page)
        if page.parent is not None and page.parent.readers == 0:
            self._push_leaf(page.parent)

    def _push_leaf(self, page: Page) -> None:
        if page.children or page.parent is None:
            return
        heapq.heappush(self._leaves, Leaf(page.used, next(self._order), page))
        if len(self._leaves) > MOST_LEAVES * self.pages:  # where nothing is evicted, nothing else removes them
            self._leaves = [leaf for leaf in self._leaves if _is_current(leaf)]
            heapq.heapify(self._leaves)

    def _drop(self, page: Page) -> None:
        if page.attached:
            assert page.parent is not None
            self._forget_tokens(page)
            del page.parent.children[page.number]
            page.attached = False
        self._free.append(page.number)

    def _forget_tokens(self, page: Page) -> None:
        assert page.parent is not None
        key = page.tokens.tobytes()
        if page.known == self.size and page.parent.complete.get(key) is page:
            del page.parent.complete[key]

    def _descendants(self, page: Page) -> Iterator[Page]:
        stack = list(page.children.values())
        while stack:
            yield (child := stack.pop())
            stack += child.children.values()

    def _new_root(self) -> Page:
        return Page(-1, None, np.zeros(0, dtype=np.int64), readers=1)
