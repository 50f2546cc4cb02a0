"""What clients send again is masked once, and what is remembered has bounds."""

from sojourn.gateway.known_texts import SHORT, MasksOnce

TEXT = "a word " * SHORT


def test_a_text_is_masked_once_while_it_is_remembered():
    masked = list[str]()

    def mask(text: str) -> str:
        masked.append(text)
        return text.upper()

    known = MasksOnce(mask, characters=3 * len(TEXT))
    others = [f"{number} {TEXT}"[: len(TEXT)] for number in range(3)]
    for text in (TEXT, TEXT, *others[:2], TEXT, others[2], TEXT, others[0]):
        assert known(text) == text.upper()
    assert masked == [TEXT, *others, others[0]]  # what was used longest ago was forgotten first


def test_short_texts_are_not_remembered():
    masks = iter([str.upper, str.lower])
    known = MasksOnce(lambda text: next(masks)(text))
    assert [known("a"), known("a")] == ["A", "a"]
