"""The language of searches: what is written comes back the same, and what cannot be read is one sentence."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from sojourn.errors import QueryError
from sojourn.record.search.fts_documents import clean
from sojourn.record.search.query import (
    EXACT,
    FRACTIONS,
    MAX_CHARACTERS,
    NUMBERS,
    ORDERS,
    TEXTS,
    Bound,
    Failed,
    OneOf,
    Query,
    Range,
    Words,
)

texts = st.text(min_size=1, max_size=12).map(clean)
signs = st.booleans()


@st.composite
def words(draw):
    text = draw(texts.filter(lambda text: any(character.isalpha() and character.isascii() for character in text)))
    return Words(text, draw(st.sampled_from(("", *TEXTS))), draw(signs))


@st.composite
def exact(draw):
    key = draw(st.sampled_from(sorted(EXACT)))
    value = {
        "success": st.sampled_from(("yes", "no")),
        "ending": st.sampled_from(("done", "malformed", "turns")),
        "seed": st.integers(-(2**70), 2**70).map(str),
    }.get(key, texts)
    return OneOf(key, tuple(draw(st.lists(value, min_size=1, max_size=3))), draw(signs))


@st.composite
def ranges(draw):
    key = draw(st.sampled_from(sorted(NUMBERS)))
    value = st.floats(-1e18, 1e18) if key in FRACTIONS else st.integers(-(2**63) + 1, 2**63 - 1)
    low, high = sorted([draw(value), draw(value)])
    bound = Bound(low, draw(st.booleans()))
    kind = draw(st.sampled_from(("equal", "between", "low", "high")))
    made = {
        "equal": (Bound(low), Bound(low)),
        "between": (Bound(low), Bound(high)),
        "low": (bound, None),
        "high": (None, bound),
    }
    return Range(key, *made[kind], draw(signs))


terms = st.one_of(words(), exact(), ranges(), st.builds(Failed, signs, signs))
queries = st.builds(Query, st.lists(terms, max_size=5, unique=True).map(tuple), st.sampled_from(ORDERS))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # tables of Unicode are made at first
@given(queries)
@example(Query((Words("Any", "error"), Words('a" -b', "message"))))
@example(Query((Words("-a"), Words("tag:a"), Words("a\\"), Words('"a'), OneOf("tag", (",", "", '"', "-", "a b")))))
def test_what_is_written_is_read_back(query: Query):
    assume(all(all(term.values) for term in query.terms if isinstance(term, OneOf)))  # an empty value has no text
    assume(len(str(query)) <= MAX_CHARACTERS)
    assert Query.parse(str(query)) == query


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.text(max_size=60))
@example('a:b "')
@example("-")
@example("tag:a,,b")
@example("reward:..")
def test_any_text_is_a_query_or_one_sentence(text: str):
    try:
        query = Query.parse(text)
    except QueryError:  # anything else would be ours
        return
    assert Query.parse(str(query)) == query
    str(query).encode()  # a link has no lone surrogates


def test_the_forms_that_the_guide_names():
    text = 'refund "out of stock" -umbrella tag:hard,easy reward:>0.5 reward:0..1 step:3 -tool:click message:sorry'
    text += " sort:-reward"
    query = Query.parse(text)
    assert str(query) == text
    assert query.words == (Words("refund"), Words("out of stock"), Words("sorry", "message"))
    assert Query.parse("step:>=10").terms == (Range("step", Bound(10), None),)
    assert Query.parse("tokens:<100").terms == (Range("tokens", None, Bound(100, included=False)),)
    assert Query.parse("error:any -error:none error:refused").terms == (
        Failed(True),
        Failed(False, negated=True),
        Words("refused", "error"),
    )
    assert Query.parse('error:"any"').terms == (Words("any", "error"),)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("  a \t a\nA ", "a A"),
        ("TAG:x Success:YES Ending:Done ERROR:Any", "tag:x success:yes ending:done error:any"),
        ("reward:1.0 reward:2..2 step:+3 reward:1e3", "reward:1 reward:2 step:3 reward:1000"),
        ("step:3.. step:..7", "step:>=3 step:<=7"),
        ("sort:reward a sort:newest", "a"),
        ('"a"b', "a b"),
        ("--a", '-"-a"'),
        ("12:30", "12:30"),
        ('tag:"a b",c', 'tag:"a b",c'),
        ("a\x00b \ud800c", "a\ufffdb \ufffdc"),
    ],
)
def test_one_query_has_one_text(text: str, canonical: str):
    assert str(Query.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("brief:x", "'brief:' is now 'system:': rename it"),
        ("said:x", "'said:' is now 'message:': rename it"),
        ("shown:x", "'shown:' is now 'observed:': rename it"),
        ("rewrad:5", r"unknown key 'rewrad': did you mean 'reward'\?"),
        ("http://a", "unknown key 'http': use one of .* .in quotes it is text"),
        ("tag:", "'tag:' has no value"),
        ("tag:a,", "'tag:' has no value"),
        ('say "hello', "the quote before 'hello' is not closed"),
        ("***", r"'\*\*\*' has no letter or digit"),
        ('message:"!"', "'!' has no letter or digit"),
        ("-", "'-' has no letter or digit"),
        ("reward:many", r"reward:many: expected a number or a range, such as reward:3"),
        ("reward:nan", "expected a number"),
        ("reward:1e999", "larger than any recorded number"),
        ("step:1.5", "step:1.5: expected a whole number"),
        ("step:\u0663", "expected a whole number"),
        ("step:99999999999999999999", "larger than any recorded number"),
        ("step:7..3", "step:7..3 matches nothing: write the smaller bound first"),
        ("step:..", "has no bound"),
        ("success:perhaps", "'perhaps' is no value of success: use one of no, yes"),
        ("ending:malfromed", r"did you mean 'malformed'\?"),
        ("seed:x", "seed:x: expected a whole number"),
        ("sort:best", "'sort:best' is no sort order"),
        ("-sort:reward", "'-sort:reward' is no sort order"),
        ("a" * 3000, "the query has 3000 characters: ask with at most 2000"),
        (" ".join(f"w{n}" for n in range(60)), "the query has 60 terms: ask with at most 50"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(text: str, sentence: str):
    with pytest.raises(QueryError, match=sentence):
        Query.parse(text)
