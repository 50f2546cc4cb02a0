"""What clients send again is masked once, and what is remembered has bounds."""

from sojourn.gateway.known_texts import EACH, MasksOnce

TEXT = "a word " * 10


def test_a_text_is_masked_once_while_it_is_remembered():
    masked = list[str]()

    def mask(text: str) -> str:
        masked.append(text)
        return text

    known = MasksOnce(mask, characters=3 * (len(TEXT) + EACH))
    others = [f"{number} {TEXT}"[: len(TEXT)] for number in range(3)]
    for text in (TEXT, TEXT, *others[:2], TEXT, others[2], TEXT, others[0]):
        assert known(text) == text
    assert masked == [TEXT, *others, others[0]]  # what was used longest ago was forgotten first


def test_many_short_texts_are_forgotten_too():
    known = MasksOnce(str, characters=10 * (EACH + 1))
    for number in range(100):
        known(chr(ord("A") + number))
    assert len(known._clean) == 10


def test_what_has_something_private_is_masked_each_time_and_not_held():
    known = MasksOnce(lambda text: text.replace("secret", "<masked>"))
    assert [known("the secret"), known("the secret"), known("no harm")] == ["the <masked>"] * 2 + ["no harm"]
    assert list(known._clean) == ["no harm"]
