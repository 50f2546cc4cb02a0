"""Tokens read from a run folder give the text that the tokenizer gives, to the byte."""

import pytest

from sojourn.record.episodes import vocabulary
from sojourn.render import pieces
from sojourn.render.text import Codec, Piece
from tests.render.tokenizers_of_models import tokenizer

TEXT = "Say 'hi', naïvely:\n\t日本語 👩‍🚀 ﷽ \u202e x == 3.14;  two  spaces"
MODELS = ["tiny", "smollm2", "gemma3-270m"]


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    real = tokenizer(request.param)
    return real, pieces.vocabulary(Codec(real))


def test_tokens_give_the_text_that_the_tokenizer_gives(model):
    real, words = model
    tokens = real.encode(TEXT, add_special_tokens=False)
    assert words.text(tokens) == real.decode(tokens, skip_special_tokens=False) == TEXT
    assert "".join(words.parts(tokens)) == TEXT
    assert len(words.parts(tokens)) == len(tokens)


def test_a_part_of_a_character_is_shown_as_bytes(model):
    real, words = model
    tokens = real.encode("a🜲", add_special_tokens=False)
    assert len(tokens) > 2  # alchemy is in no vocabulary
    assert words.parts(tokens)[-1] == "🜲"
    assert set(words.parts(tokens)[1:-1]) == {""}
    assert words.text(tokens[:-1]).startswith("a\\xf0\\x9f")
    assert "".join(words.parts(tokens[:-1])) == words.text(tokens[:-1])


def test_half_a_surrogate_pair_is_a_question_mark(model):
    """As in Python's name of a file that is not in UTF-8, which a world may show."""
    codec = Codec(model[0])
    assert codec.encode([Piece("a file \udcff.txt")]).tolist() == codec.encode([Piece("a file ?.txt")]).tolist()


def test_what_structures_a_chat_is_marked(model):
    real, words = model
    for text in real.all_special_tokens:
        assert real.convert_tokens_to_ids(text) in words.special
    assert not words.special & set(real.encode(TEXT, add_special_tokens=False))


def test_a_vocabulary_comes_back_from_the_folder(model, tmp_path):
    _, words = model
    assert vocabulary.read(tmp_path) is None
    vocabulary.write(tmp_path, words)
    assert vocabulary.read(tmp_path) == words
    assert vocabulary.read(tmp_path) is vocabulary.read(tmp_path)  # read once
    assert words.text([len(words.pieces), -1]) == f"<{len(words.pieces)}><-1>"
